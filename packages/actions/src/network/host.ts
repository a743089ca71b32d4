import { networkInterfaces } from "node:os";
import { domainToASCII } from "node:url";
import ipaddr from "ipaddr.js";

export type Address = ipaddr.IPv4 | ipaddr.IPv6;
export type Host =
  | { readonly type: "name"; readonly name: string }
  | { readonly type: "address"; readonly address: Address };

const longestName = 253;
/** What a host may be written with. `domainToASCII` decodes `%2e` and cuts at `/`, so nothing else may reach it. */
const hostCharacters = /^[\p{L}\p{M}\p{N}._\-。．｡]+$/u;
const nameLabels = /^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$/;

/**
 * What a host means to the system, however it is written: `0x7f.1`, `127.1` and `[::ffff:7f00:1]` are the address 127.0.0.1,
 * and `PyPI.org.` is the name `pypi.org`. Undefined where it is neither.
 */
export function parseHost(text: string): Host | undefined {
  const [, bracketed] = /^\[(.*)\]$/s.exec(text) ?? [];
  if (bracketed !== undefined || text.includes(":")) {
    const address = parseAddress(bracketed ?? text);
    return address?.kind() === "ipv4" && !text.includes(":") ? undefined : address && { type: "address", address };
  }
  if (!hostCharacters.test(text)) return undefined;
  const name = domainToASCII(text).replace(/\.$/, "");
  const address = parseAddress(name);
  if (address !== undefined) return { type: "address", address };
  return nameLabels.test(name) && name.length <= longestName ? { type: "name", name } : undefined;
}

/**
 * One in the usual form, of which an IPv4-mapped one is the IPv4 address: so each has one form only. Addresses with a zone
 * (`fe80::1%eth0`) have none.
 */
export function parseAddress(text: string): Address | undefined {
  // ipaddr.js itself takes many spellings, and reads `::1.2.3.4` as `::ffff:1.2.3.4`.
  if (ipaddr.IPv4.isValidFourPartDecimal(text)) return ipaddr.IPv4.parse(text);
  if (!/^[0-9a-f:.]+$/i.test(text) || !URL.canParse(`http://[${text}]`)) return undefined;
  return ipaddr.process(new URL(`http://[${text}]`).hostname.slice(1, -1));
}

/**
 * Azure's platform address is in no special range: it is what 169.254.169.254 is elsewhere, and gives what this machine is
 * configured with.
 */
const platform = new Set(["168.63.129.16"]);

/** All of which is given to anybody lies here (RFC 4291 §2.4, IANA); ipaddr.js calls `::7f00:1` and `4000::` unicast. */
const globalUnicast: readonly [ipaddr.IPv6, number] = [ipaddr.IPv6.parse("2000::"), 3];
const nat64: readonly [ipaddr.IPv6, number] = [ipaddr.IPv6.parse("64:ff9b::"), 96];

/**
 * Globally reachable unicast: what nobody reaches because of where this machine is. Of addresses that carry an IPv4 address,
 * NAT64's well-known prefix counts as that address, since networks without IPv4 reach every name so; tunnels (6to4, Teredo)
 * count as not public. NAT64 with a prefix of the network's own cannot be told from others.
 */
export function isPublic(address: Address): boolean {
  if (address instanceof ipaddr.IPv4) return address.range() === "unicast" && !platform.has(address.toString());
  if (address.match(nat64[0], nat64[1])) return isPublic(new ipaddr.IPv4(address.toByteArray().slice(12)));
  return address.match(globalUnicast[0], globalUnicast[1]) && address.range() === "unicast";
}

/** Of a network card of this machine: what goes there does not leave it, and passes no firewall at its border. */
export function isOfThisMachine(address: Address): boolean {
  const own = Object.values(networkInterfaces()).flatMap((cards = []) =>
    cards.map((card) => parseAddress(card.address)),
  );
  return own.some((one) => one?.toString() === address.toString());
}
