import { TreadleError } from "@treadle/contracts";

/**
 * Where a process listens: `unix:/run/treadle/x.sock`, `tcp:127.0.0.1:4711` or `tls:10.0.0.1:4711`; or, by way of NATS,
 * `relay:node-a/rollout-0-0`.
 */
export type Address = string;

export type ParsedAddress =
  | { readonly kind: "unix"; readonly path: string }
  | { readonly kind: "tcp" | "tls"; readonly host: string; readonly port: number }
  | { readonly kind: "relay"; readonly member: string; readonly target: string };

/** What `sockaddr_un` holds, less the final zero: 107 on Linux, 103 elsewhere. */
export const maxUnixPathBytes = process.platform === "linux" ? 107 : 103;

/** Throws `link.refused` when the text is no address or the path is longer than the operating system allows. */
export function parseAddress(address: Address): ParsedAddress {
  if (address.startsWith("unix:")) {
    const path = address.slice("unix:".length);
    checkUnixPath(path);
    return { kind: "unix", path };
  }
  const relayed = /^relay:([A-Za-z0-9_-]+)\/([A-Za-z0-9_][A-Za-z0-9_.-]*)$/.exec(address);
  if (relayed !== null) return { kind: "relay", member: relayed[1]!, target: relayed[2]! };
  const match = /^(tcp|tls):(.+):(\d{1,5})$/.exec(address);
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new TreadleError(
      "link.refused",
      `address '${address}' is not of the form 'unix:/path', 'tcp:host:port' or 'tls:host:port'`,
    );
  }
  return { kind: match[1] as "tcp" | "tls", host: match[2]!.replace(/^\[(.*)\]$/, "$1"), port };
}

export function checkUnixPath(path: string): void {
  const bytes = Buffer.byteLength(path);
  if (!path.startsWith("/") || bytes > maxUnixPathBytes) {
    throw new TreadleError(
      "link.refused",
      `socket path '${path}' has ${bytes} bytes: absolute paths of at most ${maxUnixPathBytes} are allowed; use a shorter run folder`,
    );
  }
}
