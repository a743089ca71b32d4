/**
 * The way out of one sandbox: an HTTP proxy with an allow-list. It takes CONNECT, and `http://` URLs in absolute form.
 *
 * Owns every connection that the sandbox makes to the servers it was given, and those that it makes for them. It asks a
 * `Lookup`, and never a proxy of its own: hosts that reach the network only through one (HTTP_PROXY) cannot use it. Nothing
 * of this process's environment and none of its credentials is used.
 *
 * EPX1 a connection is made only where every list allows the host, and to an address that was checked: a name is resolved
 *      once for each request, and what it resolves to later has no effect.
 * EPX2 each request on a connection is checked, and the Host header is that of its URL.
 * EPX3 what waits in memory is bounded whatever either side does: connections, look-ups, headers, requests in progress, bytes on
 *      their way. Connections on which nothing happens end.
 * EPX4 what breaks on one side is broken on the other, and what ends on one side ends on the other once all has arrived. But Node
 *      tells a connection that broke while it had unread data as one that ended: what is left out then is for the protocol to notice.
 * EPX5 after `close` there is no socket and no timer.
 *
 * Only where a connection goes is decided. In a tunnel nothing is looked into: who may reach an address that many names share
 * (a content network) may ask it for any of these names, in TLS by SNI or Host ("domain fronting"), and in a tunnel to port 80
 * by Host. Where that matters, allow no host of such a network. Names that are looked up, and all that is sent, can carry data
 * out to whoever owns an allowed host.
 */
import {
  createServer,
  type IncomingMessage,
  request as requestHttp,
  type Server,
  type ServerResponse,
} from "node:http";
import type { Server as NetServer, Socket } from "node:net";
import { pipeline } from "node:stream";
import { type AllowList, type Allows, allowedByEach, parsePort } from "./allow-list.ts";
import { type Dialled, describeTarget, dial, type Target } from "./dial.ts";
import { forwardedRequest, forwardedResponse } from "./forwarded-headers.ts";
import { type Address, isOfThisMachine, parseHost } from "./host.ts";
import { type Lookup, lookupsOfSystem } from "./lookup.ts";
import { abort, tunnel } from "./tunnel.ts";

export type EgressLimits = {
  /** at once; further ones are refused with 503 */
  readonly connections: number;
  /** until a connection ends on which nothing is sent either way */
  readonly idleMs: number;
  /** of names, at once; one whose client has gone counts until it ends */
  readonly lookups: number;
  /** from the start of a connection, or the end of an answer, until the next request's headers are there */
  readonly headersMs: number;
  /** of a request or an answer */
  readonly headerBytes: number;
  /** to resolve a name and connect; then the answer is 504 */
  readonly connectMs: number;
};

const defaultLimits: EgressLimits = {
  connections: 32,
  lookups: 32,
  idleMs: 300_000,
  headersMs: 60_000,
  headerBytes: 16_384,
  connectMs: 30_000,
};

export type EgressProxyOptions = {
  /** Each must allow (ALW3); none allows nothing. */
  readonly allow: readonly AllowList[];
  /** default: the system's */
  readonly lookup?: Lookup | undefined;
  /** whether an address is this machine's; default: of one of its network cards */
  readonly isOwn?: ((address: Address) => boolean) | undefined;
  readonly limits?: Partial<EgressLimits> | undefined;
};

const mostClients = 8192;
const mostTries = 100;

/** for the sandbox to take the answer that ends a connection */
const lingerMs = 2000;

/** A connection of the sandbox. */
type Client = {
  readonly socket: Socket;
  readonly ended: AbortSignal;
  /** a request is in progress, or it is a tunnel */
  isBusy: boolean;
  /** until it ends unless a request begins */
  timer: NodeJS.Timeout | undefined;
};

export class EgressProxy {
  readonly #allow: Allows;
  readonly #lookup: Lookup;
  readonly #endLookups: () => void;
  readonly #isOwn: (address: Address) => boolean;
  readonly #limits: EgressLimits;
  /** Listens nowhere: it parses what is handed to it. */
  readonly #http: Server;
  readonly #servers = new Set<NetServer>();
  readonly #clients = new Map<Socket, Client>();
  readonly #upstreams = new Set<Socket>();
  /** of all proxies of this process, which share its descriptors */
  static #numClients = 0;
  #isClosed = false;

  constructor({ allow, lookup, isOwn = isOfThisMachine, limits = {} }: EgressProxyOptions) {
    this.#allow = allowedByEach(allow);
    this.#limits = { ...defaultLimits, ...limits };
    const lookups = lookup === undefined ? lookupsOfSystem() : { lookup, close: () => {} };
    this.#lookup = boundedLookup(lookups.lookup, this.#limits.lookups);
    this.#endLookups = lookups.close;
    this.#isOwn = isOwn;
    this.#http = createServer({ maxHeaderSize: this.#limits.headerBytes, keepAliveTimeout: 0 });
    this.#http.on("request", (request, response) => void this.#onRequest(request, response));
    this.#http.on("connect", (request: IncomingMessage, _, head: Buffer) => void this.#onConnect(request, head));
  }

  /** Takes over a server that listens, and every connection made to it from now on; `close` closes it. */
  serve(server: NetServer): void {
    this.#servers.add(server);
    server.on("connection", (socket) => this.#accept(socket));
    // Of one connection that could not be accepted, as where this process has no more descriptors.
    server.on("error", () => {});
    if (this.#isClosed) server.close();
  }

  /** EPX5 */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#endLookups();
    const servers = [...this.#servers].map((server) => new Promise((resolve) => server.close(resolve)));
    // Again: a connection may have been begun until its client's end was noticed.
    for (let tries = 0; tries < mostTries && this.#clients.size + this.#upstreams.size > 0; tries++)
      await Promise.all([...this.#clients.keys(), ...this.#upstreams].map(ended));
    await Promise.all(servers);
  }

  #accept(socket: Socket): void {
    socket.on("error", () => {}); // `close` tells
    if (this.#isClosed) return void socket.destroy();
    const { connections, idleMs } = this.#limits;
    // EPX3: what goes out is counted, too, as it may outlive the connection that it was made for.
    if (Math.max(this.#clients.size, this.#upstreams.size) >= connections) {
      const reason = `more than ${connections} connections of one sandbox at once: end some, and try again`;
      return void socket.end(writtenAnswer(503, reason), () => socket.destroy());
    }
    if (EgressProxy.#numClients >= mostClients) {
      const reason = `more than ${mostClients} connections of all sandboxes of this machine at once: try again later`;
      return void socket.end(writtenAnswer(503, reason), () => socket.destroy());
    }
    EgressProxy.#numClients++;
    const ending = new AbortController();
    const client: Client = { socket, ended: ending.signal, isBusy: false, timer: undefined };
    this.#clients.set(socket, client);
    socket.once("close", () => {
      clearTimeout(client.timer);
      EgressProxy.#numClients--;
      this.#clients.delete(socket);
      ending.abort();
    });
    socket.allowHalfOpen = true;
    socket.setNoDelay(true);
    socket.setTimeout(idleMs);
    this.#rest(client, this.#limits.headersMs);
    this.#http.emit("connection", socket);
  }

  /** Its next request has this long. */
  #rest(client: Client, ms: number): void {
    client.isBusy = false;
    clearTimeout(client.timer);
    if (!client.socket.destroyed) client.timer = setTimeout(() => abort(client.socket), ms);
  }

  /** Undefined where a request was in progress: one that does not wait for its answer would multiply what we hold (EPX3). */
  #begin({ socket }: IncomingMessage): Client | undefined {
    const client = this.#clients.get(socket);
    if (client === undefined || client.isBusy) {
      abort(socket);
      return undefined;
    }
    client.isBusy = true;
    clearTimeout(client.timer);
    return client;
  }

  #dial(target: Target, client: Client): Promise<Dialled> {
    return dial(target, {
      allow: this.#allow,
      lookup: this.#lookup,
      isOwn: this.#isOwn,
      timeoutMs: this.#limits.connectMs,
      ended: client.ended,
      onSocket: (socket) => {
        this.#upstreams.add(socket);
        socket.once("close", () => this.#upstreams.delete(socket));
      },
    });
  }

  async #onConnect(request: IncomingMessage, head: Buffer): Promise<void> {
    const client = this.#begin(request);
    if (client === undefined) return;
    const { socket } = client;
    const refuse = (status: number, reason: string): void => {
      socket.end(writtenAnswer(status, reason));
      socket.resume();
      this.#rest(client, lingerMs);
    };
    const target = parseTarget(request.url ?? "");
    if (target === undefined) return refuse(400, "CONNECT takes 'host:port', and this is none");
    const dialled = await this.#dial(target, client);
    if (dialled.type === "refused") return refuse(dialled.status, dialled.reason);
    socket.on("timeout", () => abort(socket));
    socket.write("HTTP/1.1 200 Connection Established\r\n\r\n");
    if (head.length > 0) dialled.socket.write(head);
    tunnel(socket, dialled.socket, this.#limits.idleMs);
  }

  async #onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const client = this.#begin(request);
    if (client === undefined) return;
    response.once("close", () => this.#rest(client, this.#limits.headersMs));
    const refuse = (status: number, reason: string): void => {
      const { message, headers, body } = answerOf(reason);
      if (response.headersSent) abort(client.socket);
      else response.writeHead(status, message, headers).end(body);
    };
    const [, authority = "", rest = ""] = /^http:\/\/([^/?#\\@\s]+)(\/[^#]*|\?[^#]*)?$/i.exec(request.url ?? "") ?? [];
    const target = parseTarget(authority, 80);
    if (target === undefined)
      return refuse(
        400,
        "this is a proxy: ask it for an 'http://' URL without user and fragment, or CONNECT to 'host:port'",
      );
    const dialled = await this.#dial(target, client);
    if (dialled.type === "refused") return refuse(dialled.status, dialled.reason);
    if (response.closed) return void dialled.socket.destroy();
    const what = `'${describeTarget(target)}'`;
    response.on("timeout", () => refuse(504, `${what} did not answer within ${this.#limits.idleMs} ms`));
    try {
      this.#forward(request, response, {
        socket: dialled.socket,
        path: rest.startsWith("/") ? rest : `/${rest}`,
        host: describeTarget(target, 80),
        fail: (reason) => refuse(502, `${what} ${reason}`),
      });
    } catch {
      dialled.socket.destroy();
      refuse(400, "the request has a path or a header that cannot be passed on");
    }
  }

  #forward(
    request: IncomingMessage,
    response: ServerResponse,
    to: {
      readonly socket: Socket;
      readonly path: string;
      readonly host: string;
      readonly fail: (reason: string) => void;
    },
  ): void {
    const { socket, path, host, fail } = to;
    const { headers, hasBody } = forwardedRequest(request, host); // EPX2
    const upstream = requestHttp({
      createConnection: () => socket,
      method: request.method,
      path,
      headers,
      maxHeaderSize: this.#limits.headerBytes,
    });
    let answered: IncomingMessage | undefined;
    response.once("close", () => upstream.destroy()); // EPX4
    // A client may read its answer only when it has sent all.
    upstream.once("close", () => request.unpipe(upstream).resume());
    upstream.on("error", (error: NodeJS.ErrnoException) => {
      if (!response.writableEnded && answered?.complete !== true)
        fail(`did not answer as HTTP: ${error.code ?? "no reason given"}`);
    });
    // Without it, Node destroys the socket and says nothing.
    upstream.once("upgrade", (_, upgraded) => {
      upgraded.destroy();
      fail("answers with an upgrade, which was not asked for");
    });
    upstream.once("response", (answer) => {
      answered = answer;
      try {
        response.writeHead(answer.statusCode ?? 502, answer.statusMessage, forwardedResponse(answer));
      } catch {
        upstream.destroy();
        return fail("answers with a status or a header that cannot be passed on");
      }
      pipeline(answer, response, () => {});
    });
    if (hasBody) request.pipe(upstream);
    else upstream.end();
  }
}

/** EPX3 */
function boundedLookup(lookup: Lookup, most: number): Lookup {
  let pending = 0;
  return async (name) => {
    if (pending >= most) throw new Error(`more than ${most} names are looked up at once`);
    pending++;
    try {
      return await lookup(name);
    } finally {
      pending--;
    }
  };
}

/** `host:port`; the port may lack where there is a default. */
function parseTarget(authority: string, defaultPort?: number): Target | undefined {
  const [, hostText = "", portText] = /^(\[[^\]]*\]|[^:[\]]*)(?::(\d*))?$/.exec(authority) ?? [];
  const host = parseHost(hostText);
  const port = portText === undefined || portText === "" ? defaultPort : parsePort(portText);
  return host === undefined || port === undefined ? undefined : { host, port };
}

function answerOf(reason: string) {
  const message = reason.replace(/[^\x20-\x7e]+/g, "?");
  const body = `${message}\n`;
  const headers = { "content-type": "text/plain", connection: "close", "content-length": body.length };
  return { message, headers, body };
}

/** To a CONNECT, or to a connection of which nothing was read. */
function writtenAnswer(status: number, reason: string): string {
  const { message, headers, body } = answerOf(reason);
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${message}\r\n${lines.join("")}\r\n${body}`;
}

async function ended(socket: Socket): Promise<void> {
  if (socket.closed) return;
  await new Promise<void>((resolve) => {
    socket.once("close", () => resolve());
    socket.destroy();
  });
}
