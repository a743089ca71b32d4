/** How processes are named to a relay: the member on whose machine they are, and there a socket or a port. */
import { basename } from "node:path";

export const runnerMember = "runner";

/** Behind the addresses of a process that may be dialled: the way that is left when none answers. */
export function withRelay(addresses: readonly string[], member: string, target: string | undefined): string[] {
  return target === undefined ? [...addresses] : [...addresses, `relay:${member}/${target}`];
}

/** A worker is reached on its own machine by its unix socket. */
export function workerTarget(addresses: readonly string[]): string | undefined {
  const own = addresses.find((address) => address.startsWith("unix:"));
  return own && basename(own);
}

/** Where processes that listen at `bind` are dialled on their own machine, by name. */
export function localPorts(
  processes: Readonly<Record<string, readonly string[]>>,
  bind: string,
): Record<string, { host: string; port: number }> {
  const anywhere = bind === "0.0.0.0" || bind === "::";
  return Object.fromEntries(
    Object.entries(processes).flatMap(([name, addresses]) => {
      const port = Number(
        addresses
          .find((address) => address.startsWith("tcp:"))
          ?.split(":")
          .at(-1),
      );
      return port > 0 ? [[name, { host: anywhere ? "127.0.0.1" : bind, port }]] : [];
    }),
  );
}
