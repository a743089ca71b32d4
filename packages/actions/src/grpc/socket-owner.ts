/** Whose a connection from this machine is, as the tables of Linux say (`/proc/net/tcp`, `/proc/net/tcp6`). */
import { readFile } from "node:fs/promises";
import { isIPv6 } from "node:net";
import { endianness } from "node:os";

export type Endpoint = { readonly address: string; readonly port: number };

const files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
const established = "01";

/** The tables as text; undefined where the system has none. */
export async function readSocketTables(): Promise<string | undefined> {
  const read = await Promise.all(files.map((file) => readFile(file, "utf8").catch(() => undefined)));
  return read.every((text) => text === undefined) ? undefined : read.join("\n");
}

/** The user whose socket at `own` is connected to `other`; undefined where no row says so. */
export type Owners = (own: Endpoint, other: Endpoint) => number | undefined;

/** What is closed already belongs to nobody: its row names user 0 and inode 0. */
export function ownersIn(tables: string): Owners {
  const users = new Map<string, number>();
  for (const row of tables.split("\n")) {
    const [, local, remote, state, , , , uid, , inode] = row.trim().split(/\s+/);
    if (state !== established || inode === undefined || !(Number(inode) > 0)) continue;
    users.set(`${local} ${remote}`, Number(uid));
  }
  return (own, other) =>
    users.get(`${hexadecimal(own)} ${hexadecimal(other)}`) ?? users.get(`${mapped(own)} ${mapped(other)}`);
}

function hexadecimal({ address, port }: Endpoint): string {
  const bytes = isIPv6(address) ? ofIpv6(address) : Buffer.from(address.split(".").map(Number));
  return `${inWords(bytes)}:${hexPort(port)}`;
}

/** A client of IPv6 that has dialled an address of IPv4. */
function mapped({ address, port }: Endpoint): string {
  if (isIPv6(address)) return "";
  const bytes = Buffer.from([...Array(10).fill(0), 0xff, 0xff, ...address.split(".").map(Number)]);
  return `${inWords(bytes)}:${hexPort(port)}`;
}

function ofIpv6(address: string): Buffer {
  const dotted = address.replace(/\d+(\.\d+){3}$/, (last) => {
    const [a = 0, b = 0, c = 0, d = 0] = last.split(".").map(Number);
    return `${(a * 256 + b).toString(16)}:${(c * 256 + d).toString(16)}`;
  });
  const [head = "", tail] = dotted.split("::").map((part) => part.split(":").filter((group) => group !== ""));
  const groups = [...head, ...Array(tail === undefined ? 0 : 8 - head.length - tail.length).fill("0"), ...(tail ?? [])];
  return Buffer.from(groups.flatMap((group) => [Number.parseInt(group, 16) >> 8, Number.parseInt(group, 16) & 0xff]));
}

/** The kernel prints an address as words of 32 bits, in the machine's order of bytes. */
function inWords(address: Buffer): string {
  const ordered = Buffer.from(address);
  if (endianness() === "LE") ordered.swap32();
  return ordered.toString("hex").toUpperCase();
}

const hexPort = (port: number): string => port.toString(16).toUpperCase().padStart(4, "0");
