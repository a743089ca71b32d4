/**
 * The listeners of an action service. Where it has no secret, on loopback, callers are told apart by their user.
 *
 * Owns the listeners and all connections, and which is whose. It hands connections to `inject`, and answers of a call's peer
 * whether it may go on.
 *
 * LD1 on loopback, without a secret and unless it trusts everybody, a call is answered only on a connection of this process's
 *    user or of root. On any other, and on one that the tables do not name, each call ends with the reason and the remedy.
 *    Others' connections end soon, and are few, so that nobody keeps its owner out.
 * LD2 where the system has no such tables, callers are not told apart, and `warning` says so.
 */
import { lookup } from "node:dns/promises";
import { createServer, type Server, type Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { isLoopback } from "@treadle/contracts";
import { ConnectionTurns } from "./connection-turns.ts";
import { type Endpoint, type Owners, ownersIn, readSocketTables } from "./socket-owner.ts";

/** A connection that has just been made may not be in the tables yet. */
const looks = 5;
const lookMs = 10;
/** Of those that may not call: time enough to be told why. */
const mostRefused = 32;
const refusedMs = 2000;

/** Each may take a second descriptor for what it asks for; processes commonly have some thousands. */
const usualConnections = 2048;

/** Such addresses do not exist on this machine, so nobody dials them. */
const absent = new Set(["EADDRNOTAVAIL", "EAFNOSUPPORT", "EINVAL"]);

/** A path, or a name with a port. */
export type Place = { readonly path: string } | { readonly host: string; readonly port: number };

const remedy = "give tokens by tokenFile, listen at unix:/path, or set insecure: true, which trusts everybody";

/**
 * Connections to a path have no address of their other end. Each gets a number in its place, because a call is traced to its
 * connection by the peer's address and port. That also tells which connections are idle (CT2).
 */
let numUnix = 0;
const numbered = (socket: Socket): Socket =>
  Object.defineProperties(socket, { remoteAddress: { value: "unix" }, remotePort: { value: ++numUnix } });

/** Of `connections`: those of this machine share an address, one of another machine has half. */
export const mostOfAddress = (address: string, connections: number): number =>
  isLoopback(address) ? connections : Math.ceil(connections / 2);

export type Door = {
  /** 1 for a path */
  readonly port: number;
  readonly warning: string | undefined;
  /** why nothing is done for a call of that peer, `address:port`; undefined where it may go on */
  refusalOf(peer: string): string | undefined;
  /** That peer asked for something, and its connection is not idle; returns what is to be called when it was answered, or gave up. */
  asked(peer: string): () => void;
  /** Accepts no more connections; open ones stay. */
  stop(): void;
  /** Ends the open ones, too, even of a peer that hangs. */
  close(): Promise<void>;
};

export async function openDoor(options: {
  readonly place: Place;
  /** LD1 */
  readonly isForOwner: boolean;
  /** open at once (CT1), of which one address of another machine has half at most */
  readonly connections?: number | undefined;
  /** encrypted ones to a path cannot be told apart: none of them counts as idle, so that a new one gives way where there are too many */
  readonly isEncrypted?: boolean | undefined;
  readonly inject: (connection: Socket) => void;
  readonly readTables?: () => Promise<string | undefined>;
}): Promise<Door> {
  const { place, isForOwner, inject, connections = usualConnections, readTables = readSocketTables } = options;
  const warning =
    isForOwner && (await readTables()) === undefined
      ? `this system does not say whose a connection is: every user of this machine may call; ${remedy}`
      : undefined;
  /** Those that were handed on. A peer that is not among them may not call (LD1). */
  const peers = new Map<string, { readonly socket: Socket; readonly refusal: string | undefined }>();
  const open = new Set<Socket>();
  const turns = new ConnectionTurns<Socket>(connections, (address) =>
    "path" in place ? connections : mostOfAddress(address, connections),
  );
  /** oldest first */
  const refused = new Set<Socket>();
  const readOwners = shared(async () => ownersIn((await readTables()) ?? ""));
  let isStopped = false;

  const accept = async (socket: Socket): Promise<void> => {
    const { remoteAddress = "", remotePort = 0, localAddress = "", localPort = 0 } = socket;
    const peer = `${remoteAddress}:${remotePort}`;
    socket.on("error", () => {}); // whoever has dialled went away
    const givesWay = turns.admit(socket, remoteAddress);
    givesWay?.destroy();
    if (givesWay === socket) return;
    if ("path" in place && options.isEncrypted === true) turns.asked(socket);
    open.add(socket);
    socket.once("close", () => {
      turns.closed(socket);
      open.delete(socket);
      refused.delete(socket);
      if (peers.get(peer)?.socket === socket) peers.delete(peer);
    });
    const their: Endpoint = { address: remoteAddress, port: remotePort };
    const our: Endpoint = { address: localAddress, port: localPort };
    const refusal = isForOwner && warning === undefined ? await refusalFor(their, our, readOwners) : undefined;
    if (isStopped) socket.destroy();
    if (socket.destroyed) return;
    if (refusal !== undefined) {
      const [oldest] = refused;
      if (oldest !== undefined && refused.size >= mostRefused) {
        refused.delete(oldest);
        oldest.destroy();
      }
      refused.add(socket);
      setTimeout(() => socket.destroy(), refusedMs).unref();
    }
    peers.set(peer, { socket, refusal });
    inject(socket);
  };

  const servers: Server[] = [];
  let closed: Promise<unknown> = Promise.resolve();
  const stop = (): void => {
    if (isStopped) return;
    isStopped = true;
    closed = Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  };
  const close = async (): Promise<void> => {
    stop();
    for (const socket of open) socket.destroy();
    await closed;
  };
  let bound = "path" in place ? 1 : place.port;
  let failure: unknown;
  for (const at of await addressesOf(place)) {
    const server = createServer((socket) => void accept("path" in at ? numbered(socket) : socket));
    try {
      bound = await listenAt(server, "path" in at ? at : { ...at, port: bound });
      servers.push(server);
    } catch (error) {
      failure = error;
      if (absent.has(String((error as NodeJS.ErrnoException).code))) continue;
      await close();
      throw error;
    }
  }
  if (servers.length === 0) throw failure;
  return {
    port: bound,
    warning,
    refusalOf(peer) {
      if (!isForOwner) return undefined;
      const known = peers.get(peer);
      return known === undefined ? unknownCaller : known.refusal;
    },
    asked(peer) {
      const socket = peers.get(peer)?.socket;
      if (socket === undefined) return () => {};
      turns.asked(socket);
      let isAnswered = false;
      return () => {
        if (!isAnswered) turns.answered(socket);
        isAnswered = true;
      };
    },
    stop,
    close,
  };
}

const unknownCaller = `this server has no tokens and serves its own user alone, and cannot tell whose this connection is; ${remedy}`;

/** LD1 */
async function refusalFor(
  their: Endpoint,
  our: Endpoint,
  readOwners: () => Promise<Owners>,
): Promise<string | undefined> {
  const self = process.geteuid?.();
  for (let look = 1; look <= looks; look++) {
    const uid = (await readOwners())(their, our);
    if (uid === self || uid === 0) return undefined;
    if (uid !== undefined)
      return `user '${uid}' may not call: this server has no tokens and serves user '${self}' and root alone; ${remedy}`;
    if (look < looks) await delay(lookMs);
  }
  return unknownCaller;
}

/** Whoever comes while something is read is told by the next reading, all by the same, which begins after they have come. */
function shared<T>(read: () => Promise<T>): () => Promise<T> {
  let current: Promise<unknown> = Promise.resolve();
  let next: Promise<T> | undefined;
  return () => {
    next ??= current.then(() => {
      next = undefined;
      const reading = read();
      current = reading.catch(() => {});
      return reading;
    });
    return next;
  };
}

async function addressesOf(place: Place): Promise<readonly Place[]> {
  if ("path" in place) return [place];
  const found = await lookup(place.host.replace(/^\[|\]$/g, ""), { all: true });
  return found.map(({ address }) => ({ host: address, port: place.port }));
}

/** Its port. */
function listenAt(server: Server, place: Place): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(place, () => {
      server.off("error", reject);
      const address = server.address();
      resolve(typeof address === "object" && address !== null ? address.port : 1);
    });
  });
}
