/**
 * Which hosts and ports the programs of a sandbox may reach.
 *
 * ALW1 a host that is asked for by name matches an entry that is a name; each address it resolves to is public and not this
 *     machine's, or an entry names that address for that port. So a name, which belongs to whoever answers for it, opens nothing of this network.
 * ALW2 a host that is asked for as an address, in any spelling, is named by an entry that is an address or a range.
 * ALW3 of several lists each allows the host and each of its addresses. So what one list names does not widen another.
 */
import { TreadleError } from "@treadle/contracts";
import ipaddr from "ipaddr.js";
import { z } from "zod";
import { type Address, type Host, isPublic, parseAddress, parseHost } from "./host.ts";

type Entry = {
  readonly host:
    | { readonly type: "name"; readonly name: string; readonly isBelow: boolean }
    | { readonly type: "range"; readonly base: Address; readonly prefixLength: number };
  readonly ports: readonly number[] | "any";
};

/** of one list: each sandbox's host reads all of them */
export const mostEntries = 1000;

/** of entries without a port */
const webPorts = [80, 443];

/**
 * `pypi.org`, `*.pythonhosted.org` (any depth below, not the name itself), `10.1.2.3`, `2001:db8::1`, `10.1.0.0/16`,
 * `2001:db8::/32`. Ports 80 and 443 are meant, or `:443` that one, or `:*` any; then IPv6 is in brackets: `[2001:db8::/32]:443`.
 */
export const AllowEntry = z.string().superRefine((text, context) => {
  const parsed = parseEntry(text);
  if (typeof parsed === "string") context.addIssue({ code: "custom", message: parsed });
});

export class AllowList {
  readonly entries: readonly string[];
  readonly #entries: readonly Entry[];

  /** Without entries nothing is allowed. Throws `config.invalid` where one is not an `AllowEntry`. */
  constructor(entries: readonly string[]) {
    this.entries = entries;
    this.#entries = entries.map((text) => {
      const parsed = parseEntry(text);
      if (typeof parsed === "string") throw new TreadleError("config.invalid", parsed);
      return parsed;
    });
  }

  /** Whether it may be asked for. Of a name, each address is then to be asked of `allowsAddress` (ALW1). */
  allowsHost(host: Host, port: number): boolean {
    return host.type === "address"
      ? this.#names(host.address, port) // ALW2
      : this.#entries.some((entry) => reaches(entry, port) && isOf(entry, host.name));
  }

  /** Whether a name that is allowed may resolve to it (ALW1); `isOwn`: it is one of this machine's. */
  allowsAddress(address: Address, port: number, isOwn = false): boolean {
    return (isPublic(address) && !isOwn) || this.#names(address, port);
  }

  #names(address: Address, port: number): boolean {
    return this.#entries.some(
      ({ host, ports }) =>
        host.type === "range" && reaches({ ports }, port) && isWithin(address, host.base, host.prefixLength),
    );
  }
}

export type Allows = Pick<AllowList, "allowsHost" | "allowsAddress">;

/** ALW3; of no list, nothing. */
export function allowedByEach(lists: readonly AllowList[]): Allows {
  return {
    allowsHost: (host, port) => lists.length > 0 && lists.every((list) => list.allowsHost(host, port)),
    allowsAddress: (address, port, isOwn) =>
      lists.length > 0 && lists.every((list) => list.allowsAddress(address, port, isOwn)),
  };
}

const reaches = ({ ports }: Pick<Entry, "ports">, port: number): boolean => ports === "any" || ports.includes(port);

const isOf = ({ host }: Entry, name: string): boolean =>
  host.type === "name" && (host.isBelow ? name.endsWith(`.${host.name}`) : name === host.name);

function isWithin(address: Address, base: Address, prefixLength: number): boolean {
  if (address instanceof ipaddr.IPv4) return base instanceof ipaddr.IPv4 && address.match(base, prefixLength);
  return base instanceof ipaddr.IPv6 && address.match(base, prefixLength);
}

const forms = "give 'name', '*.name', an address or a range, with ':port' or ':*' or, for ports 80 and 443, without";

/** Why it is none, where it is none. */
function parseEntry(text: string): Entry | string {
  if (text === "") return `'' is no host: ${forms}`;
  if (/\s/.test(text)) return `'${text}' has white space: ${forms}`;
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(text)) return `'${text}' is a URL: give the host alone, as '${hostOfUrl(text)}'`;
  const [hostText, portText] = splitEntry(text);
  const ports = portText === undefined ? webPorts : parsePorts(portText);
  if (ports === undefined)
    return `'${text}' has port '${portText}': give a whole number from 1 to 65535, '*' for any, or none for 80 and 443`;
  const host = hostText.includes("/") ? parseRange(text, hostText) : parseEntryHost(text, hostText);
  return typeof host === "string" ? host : { host, ports };
}

/** IPv6 has a port only outside of brackets. */
function splitEntry(text: string): readonly [host: string, port: string | undefined] {
  const bracketed = /^\[([^\]]*)\](?::(.*))?$/s.exec(text);
  if (bracketed !== null) {
    // An IPv4 address or a name in brackets is none: the brackets stay, and make it invalid.
    const [, host = "", port] = bracketed;
    return [host.includes(":") ? host : `[${host}]`, port];
  }
  const colon = text.lastIndexOf(":");
  return colon === -1 || text.indexOf(":") !== colon
    ? [text, undefined]
    : [text.slice(0, colon), text.slice(colon + 1)];
}

function parsePorts(text: string): Entry["ports"] | undefined {
  if (text === "*") return "any";
  const port = parsePort(text);
  return port === undefined ? undefined : [port];
}

export function parsePort(text: string): number | undefined {
  const port = /^\d{1,5}$/.test(text) ? Number(text) : 0;
  return port >= 1 && port <= 65_535 ? port : undefined;
}

function parseRange(text: string, range: string): Entry["host"] | string {
  const [, baseText = "", lengthText = ""] = /^([0-9a-f.:]+)\/(\d{1,3})$/i.exec(range) ?? [];
  const written = parseAddress(baseText);
  if (written === undefined)
    return `'${text}' has a path or is no range: give a host without a path, or a range as '10.1.0.0/16' or '2001:db8::/32'`;
  // A range of IPv4-mapped addresses is one of IPv4 addresses, as these addresses are.
  const isMapped = baseText.includes(":") && written.kind() === "ipv4";
  const bits = written.kind() === "ipv4" ? 32 : 128;
  const prefixLength = Number(lengthText) - (isMapped ? 96 : 0);
  if (prefixLength < 0 || prefixLength > bits)
    return `'${text}' has prefix length '${lengthText}': give one from ${isMapped ? 96 : 0} to ${isMapped ? 128 : bits}`;
  const base = baseOf(written, prefixLength);
  if (base.toString() !== written.toString())
    return `'${text}' has bits beyond its prefix: give '${base}/${prefixLength}' for the range, or '${written}' for the address`;
  return { type: "range", base, prefixLength };
}

function baseOf(address: Address, prefixLength: number): Address {
  return address instanceof ipaddr.IPv4
    ? ipaddr.IPv4.networkAddressFromCIDR(`${address}/${prefixLength}`)
    : ipaddr.IPv6.networkAddressFromCIDR(`${address}/${prefixLength}`);
}

function parseEntryHost(text: string, hostText: string): Entry["host"] | string {
  if (hostText === "*" || hostText === "*." || hostText === "*..")
    return `'${text}' would be every name: give the names, as '*.pythonhosted.org', or a range of addresses, as '0.0.0.0/0'`;
  const isBelow = hostText.startsWith("*.");
  const host = parseHost(isBelow ? hostText.slice(2) : hostText);
  if (host === undefined || (isBelow && host.type === "address")) return `'${text}' is no host: ${forms}`;
  if (host.type === "name") return { type: "name", name: host.name, isBelow };
  // Whoever reads the configuration is to see which address it is.
  if (parseAddress(hostText) === undefined)
    return `'${text}' is an unusual form of an address: give '${host.address}' if it is meant`;
  return { type: "range", base: host.address, prefixLength: host.address.kind() === "ipv4" ? 32 : 128 };
}

function hostOfUrl(text: string): string {
  return (URL.canParse(text) && new URL(text).host) || "pypi.org";
}
