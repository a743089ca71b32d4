import type { Socket } from "node:net";
import type { Allows } from "./allow-list.ts";
import { type Address, type Host, parseAddress } from "./host.ts";
import type { Lookup } from "./lookup.ts";
import { UpstreamSocket } from "./upstream-socket.ts";

export type Target = { readonly host: Host; readonly port: number };

export type Dialled =
  | { readonly type: "open"; readonly socket: Socket }
  | { readonly type: "refused"; readonly status: 403 | 502 | 504; readonly reason: string };

/** As it is said to people, and in a Host header without `port`. */
export function describeTarget({ host, port }: Target, defaultPort?: number): string {
  const name = host.type === "name" ? host.name : String(host.address);
  const bracketed = name.includes(":") ? `[${name}]` : name;
  return port === defaultPort ? bracketed : `${bracketed}:${port}`;
}

/** Of a name with many addresses, how many are tried. */
const mostAddresses = 8;

/**
 * Connects where that is allowed. `onSocket` is told of the socket before it is connected. Once `ended` is aborted, or within
 * `timeoutMs`, the socket is either returned or destroyed; what a lookup says later is ignored.
 */
export async function dial(
  target: Target,
  options: {
    readonly allow: Allows;
    readonly lookup: Lookup;
    /** whether an address is this machine's */
    readonly isOwn: (address: Address) => boolean;
    readonly timeoutMs: number;
    readonly ended: AbortSignal;
    readonly onSocket: (socket: Socket) => void;
  },
): Promise<Dialled> {
  const { allow, lookup, isOwn, timeoutMs, ended, onSocket } = options;
  const { host, port } = target;
  const what = `'${describeTarget(target)}'`;
  // A name that is not allowed is not looked up either: a look-up tells its name server of it.
  if (!allow.allowsHost(host, port))
    return { type: "refused", status: 403, reason: `${what} is not allowed by this server's network.proxy` };

  let stop = (_: Dialled): void => {};
  const stopped = new Promise<Dialled>((resolve) => {
    stop = resolve;
  });
  const onEnded = (): void => stop({ type: "refused", status: 502, reason: `${what} is no longer asked for` });
  const timer = setTimeout(() => {
    stop({ type: "refused", status: 504, reason: `${what} did not answer within ${timeoutMs} ms` });
  }, timeoutMs);
  ended.addEventListener("abort", onEnded);
  if (ended.aborted) onEnded();
  let socket: Socket | undefined;
  try {
    const found = await Promise.race([addressesOf(host, lookup), stopped]);
    if ("type" in found) return found;
    const addresses: Address[] = [];
    for (const text of found.addresses.slice(0, mostAddresses)) {
      const address = parseAddress(text);
      const isHere = address !== undefined && isOwn(address);
      if (address === undefined || !allow.allowsAddress(address, port, isHere))
        return {
          type: "refused",
          status: 403,
          reason: `${what} is at '${text}', which is ${isHere ? "this machine's" : "not public"} and not allowed by this server's network.proxy`,
        };
      addresses.push(address);
    }
    if (addresses.length === 0) return { type: "refused", status: 502, reason: `${what} has no address` };
    socket = connectTo(addresses, target, timeoutMs / 4);
    onSocket(socket);
    const opened = await Promise.race([connected(socket), stopped]);
    if (opened instanceof Error)
      return { type: "refused", status: 502, reason: `${what} cannot be reached: ${reasonOf(opened)}` };
    if (opened.type === "open") socket = undefined;
    return opened;
  } catch (error) {
    return { type: "refused", status: 502, reason: `${what} cannot be found: ${reasonOf(error)}` };
  } finally {
    clearTimeout(timer);
    ended.removeEventListener("abort", onEnded);
    socket?.destroy();
  }
}

async function addressesOf(host: Host, lookup: Lookup): Promise<{ readonly addresses: readonly string[] }> {
  return { addresses: host.type === "name" ? await lookup(host.name) : [String(host.address)] };
}

/** To these addresses and no other: nothing is resolved between the check and the connection (EPX1). */
function connectTo(addresses: readonly Address[], { host, port }: Target, attemptMs: number): Socket {
  const checked = addresses.map((address) => ({
    address: String(address),
    family: address.kind() === "ipv4" ? 4 : 6,
  }));
  const [first = { address: "", family: 4 }] = checked;
  return new UpstreamSocket({ allowHalfOpen: true }).connect({
    host: host.type === "name" ? host.name : first.address,
    port,
    noDelay: true,
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: Math.max(10, Math.floor(attemptMs)),
    lookup: (_, { all }, callback) => {
      // Node reads the handler's answer before `connect` has returned where it comes at once.
      process.nextTick(() => (all ? callback(null, checked) : callback(null, first.address, first.family)));
    },
  });
}

function connected(socket: Socket): Promise<Error | Dialled> {
  return new Promise((resolve) => {
    socket.once("connect", () => resolve({ type: "open", socket }));
    // stays: whatever breaks later is told by `close`
    socket.on("error", resolve);
    socket.once("close", () => resolve(new Error("closed")));
  });
}

function reasonOf(error: unknown): string {
  const { code, message } = error as Partial<NodeJS.ErrnoException>;
  return code ?? (message || "no reason given");
}
