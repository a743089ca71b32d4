/**
 * Where a process can be reached, and how it reaches others.
 *
 * Owned here: the listening sockets, handshakes under way, and every link that came out of one. A link owns its socket
 * from the handshake's end on.
 *
 * EP1 a socket becomes a link only after both sides proved that they hold the run's token.
 * EP2 a handshake ends within its deadline, whatever the other side does; how many wait, and who gives way, is `half-open.ts`'s.
 * EP3 the unix socket has mode 0600 inside a directory of mode 0700; TCP listens on loopback unless told otherwise.
 * EP4 `close()` leaves no socket, no file and no timer behind.
 */

import { randomBytes } from "node:crypto";
import { chmod, mkdir, rm, stat } from "node:fs/promises";
import net from "node:net";
import { dirname } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { TLSSocket } from "node:tls";
import { type Link, type LinkTls, type PeerName, runPrefix, TreadleError } from "@treadle/contracts";
import { PoolExchange } from "../memory/segment-exchange.ts";
import { SegmentPool } from "../memory/segment-pool.ts";
import { checkSegmentPrefix, type SharedMemory, sharedMemory } from "../memory/shared-memory.ts";
import { protocolError } from "../protocol-error.ts";
import { type Address, checkUnixPath, type ParsedAddress, parseAddress } from "./address.ts";
import { adoptSocket } from "./adopt-socket.ts";
import { type FrameHandler, FrameReader, frameKind, headBytes, writeHead } from "./frame.ts";
import { HalfOpen, sourceOf } from "./half-open.ts";
import { Handshake, type HandshakeRole, type Introduction, maxHelloBytes } from "./handshake.ts";
import { Refusals } from "./refusals.ts";
import { defaultLinkLimits, type LinkLimits, SocketLink } from "./socket-link.ts";
import { type Certificates, createTlsServer, dialTls, readCertificates } from "./tls.ts";

/** How much memory this process shares with others of its host, and under which names. */
export type SegmentOptions = {
  /** Start of the names of the files in /dev/shm; `removeSegments` with it cleans up after any death. */
  readonly prefix: string;
  /** Most bytes lent and kept for reuse, together. Default 2 GiB. */
  readonly maxBytes?: number | undefined;
  /** Memory is shared within one scope only; a node's name, where several nodes are one machine. */
  readonly scope?: string | undefined;
};

export type EndpointOptions = {
  /** This process's name, as others see it. */
  readonly name: PeerName;
  readonly runId: string;
  /** Shared secret of the run; at least 16 characters. */
  readonly token: string;
  /** Path of a unix socket to listen on; its directory is made with mode 0700. */
  readonly unixPath?: string | undefined;
  /** Listens on TCP as well; port 0 takes a free one. Host defaults to 127.0.0.1; others dial `advertise` if given. */
  readonly tcp?:
    | { readonly host?: string | undefined; readonly port: number; readonly advertise?: string | undefined }
    | undefined;
  /** Path of the relay's unix socket on this machine, by which addresses as `relay:node-a/rollout-0-0` are reached. */
  readonly relayPath?: string | undefined;
  /** Told of each link that goes by way of a relay, and why the addresses before it do not serve. */
  readonly onRelayed?: ((address: Address, cause: TreadleError) => void) | undefined;
  /** With certificates, TCP is encrypted, and nothing else is dialled or admitted there. */
  readonly tls?: LinkTls | undefined;
  /** Told, in a line, of whoever dialled over TCP and was not admitted, and why; seldom, however many there are. */
  readonly onRefused?: ((line: string) => void) | undefined;
  readonly limits?: Partial<LinkLimits> | undefined;
  readonly handshakeTimeoutMs?: number | undefined;
  /**
   * Shared memory for large arrays between processes of this host; on by default, with the prefix `treadle-<runId>-`.
   * With false, and where the host has none, they stream through the socket.
   */
  readonly segments?: SegmentOptions | false | undefined;
};

/** Bytes over sockets; what goes through shared memory is not among them. */
export type LinkTraffic = { readonly sentBytes: number; readonly receivedBytes: number };

export interface Endpoint {
  readonly name: PeerName;
  /** Over all links so far, ended ones included. */
  readonly traffic: LinkTraffic;
  /** Where others reach this process; the unix socket first. */
  readonly addresses: readonly Address[];
  /**
   * Dials the first address that answers. `expect` is the name that must answer.
   * Rejects with `link.refused`, `link.unauthorized`, `link.protocol`, `call.cancelled`. The detail `isTurnedAway` says that
   * somebody listens there who let it in and then closed, as one does whom many others ask.
   */
  connect(
    addresses: Address | readonly Address[],
    options?: { expect?: PeerName | undefined; signal?: AbortSignal | undefined },
  ): Promise<Link>;
  /** One listener, called for each link that another process opened. */
  onLink(listener: (link: Link) => void): void;
  /** Stops listening and closes every link in order. */
  close(): Promise<void>;
}

const defaultHandshakeTimeoutMs = 5000;
const relayStartMs = 10_000;
const relayRetryMs = 50;
const defaultPoolBytes = 2 * 1024 ** 3;
const halfOpenLimits = { maxTotal: 256, maxPerSource: 128, maxSeen: 16_384 };
const scratchBytes = 64 * 1024;

type Way =
  | { readonly kind: "unix"; readonly path: string; readonly ask?: string }
  | Extract<ParsedAddress, { kind: "tcp" | "tls" }>;

type Wire = { readonly socket: net.Socket; readonly reader: FrameReader; receive: (bytes: Uint8Array) => void };

/** Starts listening where the options say. Rejects with `link.refused` when an address cannot be had. */
export async function openEndpoint(options: EndpointOptions): Promise<Endpoint> {
  if (options.token.length < 16) {
    throw new TreadleError(
      "link.unauthorized",
      `a token of ${options.token.length} characters is too short: at least 16 are needed`,
    );
  }
  const endpoint = new SocketEndpoint(options);
  try {
    await endpoint.listen();
  } catch (error) {
    await endpoint.close();
    throw error;
  }
  return endpoint;
}

const sumOf = (parts: readonly LinkTraffic[]): LinkTraffic => ({
  sentBytes: parts.reduce((sum, { sentBytes }) => sum + sentBytes, 0),
  receivedBytes: parts.reduce((sum, { receivedBytes }) => sum + receivedBytes, 0),
});

class SocketEndpoint implements Endpoint {
  readonly name: PeerName;
  readonly addresses: Address[] = [];
  readonly #options: EndpointOptions;
  readonly #limits: LinkLimits;
  readonly #servers: net.Server[] = [];
  readonly #handshaking = new Set<net.Socket>();
  /** of those, the ones that were accepted */
  readonly #halfOpen = new HalfOpen<net.Socket>(halfOpenLimits);
  /** those that do not encrypt yet, by address and port */
  readonly #encrypting = new Map<string, net.Socket>();
  readonly #refusals = new Refusals();
  /** accepted, whatever became of them */
  readonly #sockets = new Set<net.Socket>();
  readonly #links = new Set<SocketLink>();
  /** of the links that have ended */
  #traffic: LinkTraffic = { sentBytes: 0, receivedBytes: 0 };
  readonly #memory: SharedMemory | undefined;
  readonly #memoryKey: string = "";
  readonly #certificates: Certificates | undefined;
  readonly #pool: SegmentPool | undefined;
  #listener: ((link: Link) => void) | undefined;
  #closed = false;

  constructor(options: EndpointOptions) {
    this.name = options.name;
    this.#options = options;
    this.#limits = { ...defaultLinkLimits, ...options.limits };
    this.#certificates = options.tls && readCertificates(options.tls);
    this.#memory = options.segments === false ? undefined : sharedMemory();
    if (this.#memory) {
      const { prefix, maxBytes, scope } = {
        prefix: runPrefix(options.runId),
        scope: undefined,
        ...(options.segments || undefined),
      };
      this.#memoryKey = scope === undefined ? this.#memory.key : `${this.#memory.key}@${scope}`;
      const ownPrefix = `${prefix}${process.pid}-${randomBytes(4).toString("hex")}-`;
      checkSegmentPrefix(ownPrefix);
      this.#pool = new SegmentPool(this.#memory, ownPrefix, maxBytes ?? defaultPoolBytes);
    }
  }

  async listen(): Promise<void> {
    const { unixPath, tcp } = this.#options;
    if (unixPath !== undefined) {
      checkUnixPath(unixPath);
      const directory = dirname(unixPath);
      // EP3: only a directory made here is narrowed; one that exists keeps its mode, and the socket is narrow anyway.
      await mkdir(directory, { recursive: true, mode: 0o700 });
      await removeStaleSocket(unixPath);
      await this.#listenOn({ path: unixPath });
      await chmod(unixPath, 0o600);
      this.addresses.push(`unix:${unixPath}`);
    }
    if (tcp !== undefined) {
      const host = tcp.host ?? "127.0.0.1";
      const server = await this.#listenOn({ host, port: tcp.port }, this.#certificates);
      const { port } = server.address() as net.AddressInfo;
      const reached = tcp.advertise ?? host;
      const kind = this.#certificates ? "tls" : "tcp";
      this.addresses.push(`${kind}:${reached.includes(":") ? `[${reached}]` : reached}:${port}`);
    }
  }

  #listenOn(where: net.ListenOptions, certificates?: Certificates): Promise<net.Server> {
    const onSocket = (socket: net.Socket) => this.#accept(socket);
    const server = certificates
      ? createTlsServer(certificates, this.#handshakeTimeoutMs, onSocket, (cause, socket) => {
          const what = `its certificate or its encryption is not accepted: ${cause.message}`;
          this.#refused(
            new TreadleError("link.unauthorized", what, { cause }),
            socket.remoteAddress ?? "a closed connection",
          );
          socket.destroy();
        })
      : net.createServer({ allowHalfOpen: true, noDelay: true, pauseOnConnect: true }, onSocket);
    // also before the handshake by which it is encrypted
    if (certificates) server.on("connection", (socket) => this.#awaitEncryption(socket));
    this.#servers.push(server);
    return new Promise((resolve, reject) => {
      server.once("error", (cause) => {
        const place = where.path ?? `${where.host}:${where.port}`;
        reject(new TreadleError("link.refused", `cannot listen at '${place}': ${cause.message}`, { cause }));
      });
      server.listen(where, () => {
        server.removeAllListeners("error");
        server.on("error", () => {}); // E.g. too many open files while accepting: the dialler retries.
        resolve(server);
      });
    });
  }

  get traffic(): LinkTraffic {
    return sumOf([this.#traffic, ...[...this.#links].map((link) => link.traffic)]);
  }

  onLink(listener: (link: Link) => void): void {
    this.#listener = listener;
  }

  async connect(
    addresses: Address | readonly Address[],
    options: { expect?: PeerName | undefined; signal?: AbortSignal | undefined } = {},
  ): Promise<Link> {
    const list = typeof addresses === "string" ? [addresses] : addresses;
    let failure = new TreadleError("link.refused", "there is no address to connect to");
    for (const address of list) {
      try {
        if (!address.startsWith("relay:")) return await this.#dial(address, options.expect, options.signal);
        const link = await this.#dialRelay(address, options.expect, options.signal);
        this.#options.onRelayed?.(address, failure);
        return link;
      } catch (error) {
        const cause = error as TreadleError;
        if (cause.code === "call.cancelled") throw cause;
        const isWayAround = address.startsWith("relay:") && address !== list[0];
        failure = isWayAround ? aroundRefused(failure, cause) : cause;
      }
    }
    throw failure;
  }

  async close(): Promise<void> {
    this.#closed = true;
    for (const socket of this.#handshaking) socket.destroy();
    const servers = this.#servers.map(
      (server) => new Promise<void>((resolve) => (server.listening ? server.close(() => resolve()) : resolve())),
    );
    await Promise.all([...this.#links].map((link) => link.close()));
    for (const socket of this.#sockets) socket.destroy(); // in the midst of a TLS handshake
    await Promise.all(servers);
    this.#pool?.close();
    if (this.addresses.length > 0 && this.#options.unixPath) await rm(this.#options.unixPath, { force: true });
  }

  #accept(socket: net.Socket): void {
    if (this.#closed || this.#listener === undefined) {
      socket.destroy();
      return;
    }
    this.#halfOpen.settle(this.#encrypting.get(endOf(socket)) ?? socket);
    const wire = this.#wireOf(socket);
    this.#track(wire.socket);
    const from = wire.socket.remoteAddress;
    this.#admit(wire.socket, from);
    this.#shake(wire, "acceptor").then(
      (link) => this.#listener?.(link),
      (error: TreadleError) => this.#refused(error, from),
    );
  }

  /** EP2. */
  #admit(socket: net.Socket, from: string | undefined): void {
    const evicted = this.#halfOpen.admit(socket, sourceOf(from));
    const what = "it did not show the run's token while many others asked";
    evicted?.destroy(new TreadleError("link.refused", what));
  }

  #awaitEncryption(socket: net.Socket): void {
    this.#track(socket);
    const end = endOf(socket);
    this.#encrypting.set(end, socket);
    socket
      .on("error", () => {})
      .once("close", () => {
        this.#encrypting.delete(end);
        this.#halfOpen.settle(socket);
      });
    this.#admit(socket, socket.remoteAddress);
  }

  #track(socket: net.Socket): void {
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
  }

  #wireOf(accepted: net.Socket): Wire {
    let wire: Wire | undefined;
    const adopted =
      accepted instanceof TLSSocket
        ? undefined
        : adoptSocket(
            accepted,
            readInPlace(() => wire),
          );
    if (adopted !== undefined) {
      wire = newWire(adopted);
      return wire;
    }
    const other = newWire(accepted);
    accepted.on("data", (bytes) => other.receive(bytes)).resume();
    return other;
  }

  /** The dialler learns the reason too. On this machine somebody may only have looked whether anyone listens. */
  #refused(error: TreadleError, from: string | undefined): void {
    if (from === undefined) return;
    const line = this.#refusals.note(from, error.message, performance.now());
    if (line !== undefined) this.#options.onRefused?.(line);
  }

  get #handshakeTimeoutMs(): number {
    return this.#options.handshakeTimeoutMs ?? defaultHandshakeTimeoutMs;
  }

  async #dial(address: Address, expect: PeerName | undefined, signal: AbortSignal | undefined): Promise<SocketLink> {
    if (this.#closed) throw new TreadleError("link.closed", `endpoint '${this.name}' is closed`);
    if (signal?.aborted) throw cancelled(address, signal);
    const parsed = this.#way(parseAddress(address));
    let wire: Wire | undefined;
    const onread = readInPlace(() => wire);
    if (parsed.kind !== "unix" && (parsed.kind === "tls") !== (this.#certificates !== undefined)) {
      throw new TreadleError(
        "link.refused",
        `'${address}' is ${parsed.kind === "tls" ? "" : "not "}encrypted, '${this.name}' is ${this.#certificates ? "" : "not "}configured with certificates; give every machine some, or none`,
        { details: { encryption: parsed.kind === "tls" } },
      );
    }
    const socket =
      parsed.kind === "tls"
        ? dialTls(this.#certificates as Certificates, parsed, onread)
        : net.connect({
            ...(parsed.kind === "unix" ? { path: parsed.path } : { host: parsed.host, port: parsed.port }),
            allowHalfOpen: true,
            onread,
          });
    if (parsed.kind !== "unix") socket.setNoDelay(true);
    if (parsed.kind === "unix" && parsed.ask !== undefined) socket.write(parsed.ask);
    wire = newWire(socket);
    const onAbort = () => socket.destroy(cancelled(address, signal!));
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      return await this.#shake(wire, "dialler", expect, address);
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** It may still be starting, as nobody waits for it before he needs it. */
  async #dialRelay(address: Address, expect: PeerName | undefined, signal?: AbortSignal): Promise<SocketLink> {
    for (const endMs = performance.now() + relayStartMs; ; await delay(relayRetryMs)) {
      try {
        return await this.#dial(address, expect, signal);
      } catch (error) {
        if (!isAbsent((error as Error).cause) || performance.now() > endMs) throw error;
      }
    }
  }

  /** A relay is dialled on this machine, and told whom it is to reach. */
  #way(address: ParsedAddress): Way {
    if (address.kind !== "relay") return address;
    const { relayPath } = this.#options;
    if (relayPath === undefined) throw new TreadleError("link.refused", `'${this.name}' has no relay on its machine`);
    return { kind: "unix", path: relayPath, ask: `${address.member} ${address.target}\n` };
  }

  #shake(wire: Wire, role: HandshakeRole, expect?: PeerName, address?: Address): Promise<SocketLink> {
    const { socket, reader } = wire;
    const { runId, token } = this.#options;
    const self = {
      name: this.name,
      runId,
      memory: this.#memoryKey,
      segmentPrefix: this.#pool?.prefix ?? "",
    };
    const handshake = new Handshake(role, self, token, expect);
    const timeoutMs = this.#handshakeTimeoutMs;
    const where = address === undefined ? "a dialling process" : `'${address}'`;
    // Of a relay it says nothing: it closes also where nobody is there.
    const turnedAway = address?.startsWith("relay:") ? {} : { details: { isTurnedAway: true } };
    this.#handshaking.add(socket);
    return new Promise((resolve, reject) => {
      const settle = (result: SocketLink | Error) => {
        clearTimeout(timer);
        this.#handshaking.delete(socket);
        socket.off("error", onError).off("close", onClose).off("end", onClose);
        if (result instanceof SocketLink) {
          this.#halfOpen.settle(socket);
          return resolve(result);
        }
        reader.stop();
        if (socket.destroyed) this.#halfOpen.settle(socket);
        this.#halfOpen.refused(socket);
        socket.on("error", () => {}).once("close", () => this.#halfOpen.settle(socket));
        socket.end();
        // The refusal just written has this long to arrive.
        setTimeout(() => socket.destroy(), 200).unref();
        reject(result);
      };
      const onError = (cause: Error) => {
        settle(
          cause instanceof TreadleError
            ? cause
            : new TreadleError("link.refused", `no process answers at ${where}: ${cause.message}`, {
                cause,
                ...(isReset(cause) ? turnedAway : {}),
              }),
        );
      };
      const onClose = () =>
        settle(new TreadleError("link.refused", `${where} closed the connection during the handshake`, turnedAway));
      const timer = setTimeout(
        () =>
          settle(
            new TreadleError(
              "link.refused",
              `${where} gave no handshake within ${timeoutMs} ms; it may be overloaded or no Treadle process`,
            ),
          ),
        timeoutMs,
      ); // EP2
      socket.on("error", onError).on("close", onClose).on("end", onClose);
      reader.handler = handshakeFrames((body) => {
        const outcome = handshake.receive(body);
        if (outcome.next === "wait" && outcome.vouched) this.#halfOpen.vouched(socket, outcome.vouched);
        if (outcome.send) writeStep(socket, outcome.send);
        if (outcome.next === "refuse") settle(outcome.error);
        if (outcome.next === "done") settle(this.#link(wire, outcome.remote)); // EP1
      });
      wire.receive = (bytes) => {
        try {
          reader.push(bytes);
        } catch (error) {
          settle(error as TreadleError);
        }
      };
      if (role === "dialler") {
        socket.once(socket instanceof TLSSocket ? "secureConnect" : "connect", () =>
          writeStep(socket, handshake.hello()),
        );
      }
    });
  }

  #link(wire: Wire, remote: Introduction): SocketLink {
    const [memory, pool] = [this.#memory, this.#pool];
    const shared = memory !== undefined && pool !== undefined && this.#memoryKey === remote.memory;
    const link = new SocketLink({
      remote: remote.name,
      socket: wire.socket,
      reader: wire.reader,
      limits: this.#limits,
      segments: shared ? (reports) => new PoolExchange(memory, pool, remote.segmentPrefix, reports) : undefined,
    });
    wire.receive = (bytes) => link.receive(bytes);
    this.#links.add(link);
    link.onClose(() => {
      this.#links.delete(link);
      this.#traffic = sumOf([this.#traffic, link.traffic]);
    });
    return link;
  }
}

/** Removes the socket file of a process that died without closing it; one that a living process serves stays. */
async function removeStaleSocket(path: string): Promise<void> {
  const existing = await stat(path).catch(() => undefined);
  if (!existing?.isSocket()) return;
  await new Promise<void>((resolve, reject) => {
    const probe = net.connect({ path });
    probe.once("connect", () => {
      probe.destroy();
      resolve(); // Listening then fails, and says that the address is in use.
    });
    probe.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "ECONNREFUSED") rm(path, { force: true }).then(resolve, reject);
      else resolve();
    });
  });
}

/** One connection over TCP at a time. */
const endOf = ({ remoteAddress, remotePort }: net.Socket): string => `${remoteAddress} ${remotePort}`;

function newWire(socket: net.Socket): Wire {
  return {
    socket,
    reader: new FrameReader(
      handshakeFrames(() => {}),
      maxHelloBytes,
    ),
    receive: () => {},
  };
}

/** Bytes are read into one buffer again and again, or straight into the array that they belong to. */
function readInPlace(wire: () => Wire | undefined): net.OnReadOpts {
  const scratch = Buffer.allocUnsafeSlow(scratchBytes);
  return {
    buffer: () => wire()?.reader.target() ?? scratch,
    callback: (length, buffer) => {
      wire()?.receive(length === buffer.length ? buffer : buffer.subarray(0, length));
      return true;
    },
  };
}

/** HK2: only handshake frames are read. */
function handshakeFrames(receive: (body: Uint8Array) => void): FrameHandler {
  const outOfPlace = () => {
    throw protocolError("a chunk comes before the handshake");
  };
  return {
    frame(kind, _flags, bytes, start, end) {
      if (kind !== frameKind.hello) throw protocolError(`a frame of kind ${kind} comes before the handshake`);
      receive(bytes.subarray(start, end));
    },
    chunkStart: outOfPlace,
    chunkBytes: outOfPlace,
    chunkTarget: () => undefined,
  };
}

function writeStep(socket: net.Socket, step: object): void {
  const body = Buffer.from(JSON.stringify(step));
  const frame = Buffer.allocUnsafe(headBytes + body.length);
  writeHead(frame, body.length, frameKind.hello, 0);
  frame.set(body, headBytes);
  socket.write(frame);
}

const isReset = (cause: unknown): boolean =>
  ["ECONNRESET", "EPIPE"].includes((cause as NodeJS.ErrnoException | undefined)?.code ?? "");

const isAbsent = (cause: unknown): boolean =>
  ["ENOENT", "ECONNREFUSED"].includes((cause as NodeJS.ErrnoException | undefined)?.code ?? "");

/** Why a process cannot be dialled says more than why nobody could help. */
const aroundRefused = (direct: TreadleError, around: TreadleError): TreadleError =>
  new TreadleError(direct.code, `${direct.message}; nor is it reached by way of NATS: ${around.message}`, {
    cause: direct,
  });

function cancelled(address: Address, signal: AbortSignal): TreadleError {
  return new TreadleError("call.cancelled", `connecting to '${address}' was cancelled`, { cause: signal.reason });
}
