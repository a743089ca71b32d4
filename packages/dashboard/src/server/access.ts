/**
 * Who may look.
 *
 * AC1 on loopback everybody on this machine may, and nobody else: a page of another site that has its name point here
 *     (DNS rebinding) sends that name as `Host`, and is refused.
 * AC2 on any other address only those who have the token: once in the URL, afterwards in a cookie that scripts cannot read.
 */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { isIP } from "node:net";

export type Access = {
  readonly token: string | undefined;
  /** what a browser may call this server */
  readonly isOwnHost: (host: string | undefined) => boolean;
  readonly isToken: (text: string | undefined) => boolean;
};

export function isLoopback(address: string): boolean {
  const bare = address.replace(/^\[|\]$/g, "");
  return bare === "localhost" || bare === "::1" || (isIP(bare) === 4 && bare.startsWith("127."));
}

/** `token`: given by a person; else a random one where the address needs one. */
export function accessTo(host: string, token: string | undefined): Access {
  const loopback = isLoopback(host);
  const needed = token ?? (loopback ? undefined : randomBytes(24).toString("base64url"));
  return {
    token: needed,
    isOwnHost: (header) => !loopback || (header !== undefined && isLoopback(hostnameOf(header))), // AC1
    isToken: (text) => needed === undefined || (text !== undefined && isSame(text, needed)), // AC2
  };
}

/** `127.0.0.1:4800` and `[::1]:4800` without the port. */
function hostnameOf(header: string): string {
  const bracketed = /^(\[[0-9a-fA-F:.]+\])(?::\d+)?$/.exec(header);
  return bracketed?.[1] ?? header.replace(/:\d+$/, "").toLowerCase();
}

/** Takes as long whatever is wrong about it. */
function isSame(a: string, b: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(a), digest(b));
}
