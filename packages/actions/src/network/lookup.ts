/**
 * Which addresses a name has: those of /etc/hosts, else what the name servers of this machine say.
 *
 * Not by the system's own look-up, which holds a thread of this process until it ends: a few names whose servers do not answer would
 * keep all sandboxes, and all files, waiting. So nothing else that the system is configured to ask is asked (search domains, mDNS, LDAP).
 */
import { Resolver } from "node:dns/promises";
import { readFile } from "node:fs/promises";

/** The addresses of a name. Rejects where it has none. */
export type Lookup = (name: string) => Promise<readonly string[]>;

export type Lookups = {
  readonly lookup: Lookup;
  /** Ends those that are under way. */
  close(): void;
};

/** for one try of two with a name server */
const tryMs = 4000;

type LookupOptions = {
  /** in the form of /etc/hosts */
  readonly hostsFile?: string;
  /** of names, as `address:port`; default: this machine's */
  readonly servers?: readonly string[];
};

export function lookupsOfSystem({ hostsFile = "/etc/hosts", servers }: LookupOptions = {}): Lookups {
  const resolver = new Resolver({ timeout: tryMs, tries: 2 });
  if (servers !== undefined) resolver.setServers(servers);
  return {
    lookup: async (name) => {
      const listed = addressesIn(await readFile(hostsFile, "utf8").catch(() => ""), name);
      if (listed.length > 0) return listed;
      const found = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
      const addresses = found.flatMap((one) => (one.status === "fulfilled" ? one.value : []));
      if (addresses.length > 0) return addresses;
      throw (found[0] as PromiseRejectedResult).reason ?? new Error("it has no address");
    },
    close: () => resolver.cancel(),
  };
}

function addressesIn(hosts: string, name: string): string[] {
  return hosts.split("\n").flatMap((line) => {
    const [address, ...names] = (line.split("#")[0] ?? "").trim().split(/\s+/);
    const isNamed = names.some((one) => one.toLowerCase().replace(/\.$/, "") === name);
    return address !== undefined && isNamed ? [address] : [];
  });
}
