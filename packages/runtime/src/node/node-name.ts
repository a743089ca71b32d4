/** What a node is called when nobody says: the same after each start, and another on each machine, cloned ones included. */
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { hostname, networkInterfaces } from "node:os";
import { join } from "node:path";

const maxHostLength = 50;

/** `identity`: whatever tells this machine from others that have its host name. */
export function machineName(host: string, identity: readonly string[]): string {
  const word = (host.split(".")[0] as string).replace(/[^A-Za-z0-9_-]/g, "-").slice(0, maxHostLength) || "node";
  const digest = createHash("sha256")
    .update([...new Set(identity)].sort().join("\n"))
    .digest("hex");
  return `${word}-${digest.slice(0, 6)}`;
}

/** Clones of a machine share its id and its host name, but no network card's address. */
export function defaultNodeName({
  host = hostname(),
  cards = builtInCards() ?? cardAddresses(),
  id = machineId(),
}: MachineIdentity = {}): string {
  return machineName(host, [...cards, id]);
}

type MachineIdentity = {
  readonly host?: string;
  /** addresses of its network cards */
  readonly cards?: readonly string[];
  /** as the system keeps it */
  readonly id?: string;
};

/** Addresses of the machine's own cards, up or not; undefined where none is seen, as in a container or on another system. */
export function builtInCards(folder = "/sys/class/net"): string[] | undefined {
  try {
    const own = readdirSync(folder).filter((name) => existsSync(join(folder, name, "device")));
    const addresses = own.map((name) => readFileSync(join(folder, name, "address"), "utf8").trim());
    return addresses.length === 0 ? undefined : addresses;
  } catch {
    return undefined;
  }
}

/** Of cards that come with the machine, not with what runs on it: bridges of containers, tunnels and pairs have others each time. */
export function cardAddresses(read: typeof networkInterfaces = networkInterfaces): string[] {
  try {
    const own = Object.entries(read()).filter(([name]) => !passing.test(name));
    return own.flatMap(([, cards = []]) => cards.map(({ mac }) => mac));
  } catch {
    return []; // a sandbox that may not ask; clones of this machine need --name there
  }
}

const passing = /^(docker|br-|veth|virbr|vnet|tun|tap|wg|tailscale|zt|cni|cali|flannel|cilium|lxc|lxd|podman|kube)/;

function machineId(): string {
  try {
    return readFileSync("/etc/machine-id", "utf8").trim();
  } catch {
    return ""; // another system than Linux, or a container without one
  }
}
