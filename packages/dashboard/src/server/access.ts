/**
 * Who may look.
 *
 * AC1 only who has the token may, once in the URL, afterwards in a cookie that scripts cannot read: other users of this machine,
 *     who cannot read the folders of runs, reach its loopback, too.
 * AC2 on loopback a page of another site that has its name point here (DNS rebinding) sends that name as `Host`, and is refused.
 */
import { createHash, randomBytes, timingSafeEqual } from "node:crypto";
import { isLoopback } from "@treadle/contracts";

export type Access = {
  readonly token: string;
  /** the name of the cookie: pages on other ports of a machine have others */
  readonly cookie: string;
  /** what a browser may call this server */
  readonly isOwnHost: (host: string | undefined) => boolean;
  readonly isToken: (text: string | undefined) => boolean;
};

/** `token`: given by a person; else a random one. */
export function accessTo(host: string, token: string = randomBytes(24).toString("base64url")): Access {
  const loopback = isLoopback(host);
  return {
    token,
    cookie: `treadle-dashboard-${createHash("sha256").update(token).digest("hex").slice(0, 8)}`,
    isOwnHost: (header) => !loopback || (header !== undefined && isLoopback(hostnameOf(header))), // AC2
    isToken: (text) => text !== undefined && isSame(text, token), // AC1
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
