/**
 * OpenAI's API in front of model services: each request is an action that is queued, has its service restored on devices, and is
 * then forwarded there.
 *
 * Owns the connections of clients and those that it makes to services. The pool owns the queue, `LeasedServices` say where a
 * service answers.
 *
 * OA1 bodies, statuses and headers pass as they are, both ways and while they come; what names a client (`authorization`, cookies)
 *     does not reach the service.
 * OA2 devices are held while the service answers: they are back when its answer has ended, its client has gone or reads nothing for
 *     `stallMs`, the deadline has passed, or the service has died.
 * OA3 what waits in memory is bounded whatever clients do: requests of a tenant, and bytes of their bodies. Of an answer no more
 *     waits than a connection's buffers hold.
 * OA4 as GS1 and LD1: with tokens a tenant is its token; without, on loopback, only this process's user and root may ask, and no
 *     web page that this user reads.
 * OA5 after `close` there is no connection and no request.
 */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { Socket } from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import type { Door } from "../grpc/door.ts";
import { type DoorOptions, openDoorAt, tenantOf } from "../grpc/listen.ts";
import { forwardedRequest, forwardedResponse, ofClients } from "../network/forwarded-headers.ts";
import type { ActionPool } from "../pool/action-pool.ts";
import type { ActionContext, ActionHandle } from "../pool/action-record.ts";
import { askService, type LeasedServices, type ServedService } from "../services/leased-services.ts";
import {
  hadRequest,
  isServedPath,
  learnFrom,
  missingRetryAfter,
  type SentRequest,
  sendRequest,
} from "../services/service-request.ts";
import { deadlineOf, isJsonType, modelIn, OpenAiError, servedModel, specFor } from "./openai-request.ts";
import { type UpstreamModel, upstreamFailure, upstreamRequest, upstreamSpec, withheldOfUpstreams } from "./upstream.ts";

export type OpenAiEndpointOptions = DoorOptions & {
  readonly pool: ActionPool;
  readonly services?: LeasedServices | undefined;
  /** models that others serve */
  readonly upstreams?: readonly UpstreamModel[] | undefined;
  /** of one tenant, waiting and running */
  readonly requests: number;
  readonly bodyBytes: number;
  /** of all bodies of one tenant */
  readonly waitingBytes: number;
  /** of a request that states none, until its answer has ended */
  readonly deadlineMs?: number | undefined;
  /** from its beginning until a connection has said what it wants */
  readonly headersMs?: number | undefined;
  /** until headers and body have come; for the next request, from the end of an answer */
  readonly requestMs?: number | undefined;
  /** that a client may read nothing while there is something */
  readonly stallMs?: number | undefined;
};

export type OpenAiEndpoint = {
  readonly port: number;
  readonly warning: string | undefined;
  /** Refuses what is new, and waits for the rest. */
  drain(timeoutMs: number): Promise<void>;
  close(): Promise<void>;
};

const minuteMs = 60_000;
const usualHeadersMs = 15_000;
const tenantHeader = "x-treadle-tenant";
const deadlineHeader = "x-treadle-deadline-ms";
const queueFullRetrySeconds = 1;

type Load = { requests: number; bytes: number };

export async function serveOpenAi(options: OpenAiEndpointOptions): Promise<OpenAiEndpoint> {
  const endpoint = new Endpoint(options);
  const door = await openDoorAt(options, () => endpoint.inject());
  endpoint.door = door;
  return endpoint.opened(door);
}

class Endpoint {
  readonly #options: OpenAiEndpointOptions;
  readonly #loads = new Map<string, Load>();
  readonly #running = new Set<ActionHandle<void>>();
  readonly #timers = new WeakMap<Socket, NodeJS.Timeout>();
  readonly #answering = new WeakMap<Socket, number>();
  #isDraining = false;
  door: Door | undefined;

  constructor(options: OpenAiEndpointOptions) {
    this.#options = options;
  }

  /** Listens nowhere: it parses what the door hands to it. */
  inject(): (connection: Socket) => void {
    const { tls, headersMs = usualHeadersMs, requestMs = minuteMs } = this.#options;
    // Node's own would end a connection that rests five seconds.
    const timing = { keepAliveTimeout: 0 };
    const server: Server =
      tls === undefined
        ? createServer(timing)
        : createTlsServer({
            ...timing,
            key: tls.key,
            cert: tls.certificate,
            handshakeTimeout: headersMs,
            ...(tls.clientAuthority === undefined
              ? {}
              : { ca: tls.clientAuthority, requestCert: true, rejectUnauthorized: true }),
          });
    server.on(tls === undefined ? "connection" : "secureConnection", (socket: Socket) => {
      socket.once("close", () => clearTimeout(this.#timers.get(socket)));
      this.#await(socket, Math.min(headersMs, requestMs));
    });
    // Whatever fails in telling a failure ends its connection alone.
    server.on("request", (request, response) => {
      this.#onRequest(request, response).catch(() => response.destroy());
    });
    return (connection) => server.emit("connection", connection);
  }

  opened(door: Door): OpenAiEndpoint {
    return {
      port: door.port,
      warning: door.warning,
      drain: async (timeoutMs) => {
        this.#isDraining = true;
        const ends = Promise.allSettled([...this.#running].map(({ result }) => result));
        await Promise.race([ends, delay(timeoutMs, undefined, { ref: false })]);
      },
      close: async () => {
        this.#isDraining = true;
        door.stop();
        for (const handle of this.#running) handle.cancel("the server was closed");
        await door.close(); // OA5
      },
    };
  }

  /** While one that has come in full is answered, its client may take its time. */
  #whole(socket: Socket, change: 1 | -1): void {
    const count = (this.#answering.get(socket) ?? 0) + change;
    this.#answering.set(socket, count);
    if (count === 0) this.#await(socket);
    else clearTimeout(this.#timers.get(socket));
  }

  /** What is to come next has this long to come. */
  #await(socket: Socket, limitMs = this.#options.requestMs ?? minuteMs): void {
    clearTimeout(this.#timers.get(socket));
    if (socket.destroyed) return;
    this.#timers.set(
      socket,
      setTimeout(() => socket.destroy(), limitMs),
    );
  }

  async #onRequest(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { socket } = request;
    response.on("error", () => {}); // its client went away
    response.once("close", this.door?.asked(peerOf(socket)) ?? (() => {}));
    // Of a first one the body is still to come.
    if (!this.#answering.has(socket)) this.#await(socket);
    this.#answering.set(socket, this.#answering.get(socket) ?? 0);
    // Of requests that follow one another without a pause, some may have come in full.
    let isWhole = false;
    request.once("end", () => {
      isWhole = !response.closed;
      if (isWhole) this.#whole(socket, 1);
    });
    response.once("close", () => {
      if (isWhole) this.#whole(socket, -1);
    });
    try {
      await this.#answer(request, response);
    } catch (error) {
      request.resume();
      if (response.headersSent) return void response.destroy();
      const { status, body, retryAfterSeconds } = asOpenAi(error);
      const retry = retryAfterSeconds === undefined ? {} : { "retry-after": String(retryAfterSeconds) };
      const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body), ...retry };
      response.writeHead(status, headers).end(body);
    }
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const tenant = this.#tenantOf(request);
    const { method, url = "" } = request;
    const [path = ""] = url.split("?", 1);
    const { services, upstreams = [] } = this.#options;
    const models = [...(services?.served ?? []), ...upstreams];
    if (method === "GET" && path.startsWith("/v1/models")) {
      const listed = ({ name }: Model) => ({ id: name, object: "model", created: 0, owned_by: "treadle" });
      const one = /^\/v1\/models\/(.+)$/.exec(path)?.[1];
      const body = one === undefined ? { object: "list", data: models.map(listed) } : listed(servedModel(models, one));
      return void response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    }
    if (method !== "POST" || !models.some(({ paths }) => isServedPath(path, paths)))
      throw new OpenAiError(
        404,
        "unknown_url",
        `no such call: ${method} ${path.slice(0, 200)}; POST to a path of a model, such as /v1/chat/completions, or GET /v1/models`,
      );
    const types = request.headersDistinct["content-type"] ?? [];
    if (!isJsonType(types) || (request.headers["content-encoding"] ?? "identity") !== "identity")
      throw new OpenAiError(
        415,
        "unsupported_media_type",
        `a body of type '${types.join("', '").slice(0, 100)}' cannot be read; send 'content-type: application/json', once, in UTF-8, uncompressed`,
      );
    const stated = deadlineOf(String(request.headers[deadlineHeader] ?? "") || undefined, longestTimerMs);
    const deadlineMs = stated ?? this.#options.deadlineMs;
    const load = this.#admit(tenant);
    let bytes = 0;
    try {
      const body = await this.#read(request, load, (count) => {
        bytes += count;
      });
      const model = servedModel(models, modelIn(body));
      if (!isServedPath(path, model.paths))
        throw new OpenAiError(
          404,
          "unknown_url",
          `model '${model.name}' is not served at ${path.slice(0, 200)}; it is at ${model.paths.join(", ")}`,
        );
      const asked = { id: `openai/${randomUUID()}`, tenant, deadlineMs };
      const call = { request, response, body };
      if ("upstreamName" in model) await this.#askUpstream(model, asked, call, path);
      else await this.#askService(model, asked, call);
    } finally {
      load.requests--;
      load.bytes -= bytes;
      if (load.requests === 0) this.#loads.delete(tenant);
    }
  }

  /** OA4 */
  #tenantOf(request: IncomingMessage): string {
    const { tokens } = this.#options;
    if (this.door === undefined) throw new OpenAiError(503, "not_open", "the server is just opening; try again");
    const refusal = this.door.refusalOf(peerOf(request.socket));
    if (refusal !== undefined) throw new OpenAiError(403, "not_permitted", refusal);
    if (tokens !== undefined) {
      const tenant = tenantOf(tokens, request.headers.authorization);
      if (tenant !== undefined) return tenant;
      throw new OpenAiError(
        401,
        "invalid_api_key",
        "a known token is needed: send 'Authorization: Bearer <token>' (the API key of OpenAI's clients)",
      );
    }
    if (request.headers.origin !== undefined)
      throw new OpenAiError(
        403,
        "not_permitted",
        "a web page asks, and this server has no tokens; give tokens by tokenFile",
      );
    const named = request.headers[tenantHeader];
    return typeof named === "string" && named !== "" ? named : "default";
  }

  /** OA3 */
  #admit(tenant: string): Load {
    if (this.#isDraining)
      throw new OpenAiError(503, "draining", "the server is about to end and takes nothing new; try another");
    const { requests } = this.#options;
    const load = this.#loads.get(tenant) ?? { requests: 0, bytes: 0 };
    if (load.requests >= requests)
      throw new OpenAiError(
        429,
        "queue_full",
        `tenant '${tenant}' has ${requests} requests already, which is its limit; wait for some to end, or raise openai.requests`,
        queueFullRetrySeconds,
      );
    this.#loads.set(tenant, load);
    load.requests++;
    return load;
  }

  async #read(request: IncomingMessage, load: Load, took: (bytes: number) => void): Promise<Buffer> {
    const { bodyBytes, waitingBytes } = this.#options;
    const tooLarge = (): OpenAiError =>
      new OpenAiError(
        413,
        "body_too_large",
        `the body has more than ${bodyBytes} bytes; send less, or raise openai.bodyMib`,
      );
    if (Number(request.headers["content-length"] ?? 0) > bodyBytes) throw tooLarge();
    // Of a body in small pieces, the pieces would take a hundred times its bytes.
    let body = Buffer.allocUnsafe(4096);
    let received = 0;
    // A refused one is answered before all of it has come: its connection is not ended with this loop.
    for await (const piece of request.iterator({ destroyOnReturn: false })) {
      const at = received;
      received += piece.length;
      load.bytes += piece.length;
      took(piece.length);
      if (received > bodyBytes) throw tooLarge();
      if (load.bytes > waitingBytes)
        throw new OpenAiError(
          429,
          "queue_full",
          `bodies of more than ${waitingBytes} bytes wait already; wait for some to end, or raise openai.waitingMib`,
          queueFullRetrySeconds,
        );
      if (received > body.length) body = Buffer.concat([body.subarray(0, at)], Math.max(received, 2 * body.length));
      (piece as Buffer).copy(body, at);
    }
    return body.subarray(0, received);
  }

  #askService(model: ServedService, asked: Asked, call: Call): Promise<void> {
    const { services, stallMs = minuteMs } = this.#options;
    const { request, body } = call;
    return this.#run(specFor(model, asked), call, (context) =>
      askService(services!, model.name, context, (url) => {
        const { headers } = forwardedRequest(request, new URL(url).host, ofClients);
        return forward(call, { url, path: request.url ?? "", headers, body }, { context, stallMs });
      }),
    );
  }

  #askUpstream(model: UpstreamModel, asked: Asked, call: Call, path: string): Promise<void> {
    const { stallMs = minuteMs } = this.#options;
    const sent = upstreamRequest(model, { path, headers: call.request.headers }, call.body);
    const beganMs = performance.now();
    const { deadlineMs = Number.POSITIVE_INFINITY } = asked;
    return this.#run(upstreamSpec(model, asked), call, (context) => {
      const left = { refused: model.retries - context.attempt, failed: 0 };
      const failureOf = (answer: IncomingMessage) =>
        upstreamFailure(answer, left, deadlineMs - (performance.now() - beganMs));
      return forward(call, sent, { context, stallMs, failureOf, withheld: withheldOfUpstreams });
    });
  }

  async #run(spec: object, { response }: Call, execute: (context: ActionContext) => Promise<void>): Promise<void> {
    if (response.destroyed) return;
    const handle = this.#options.pool.submit(spec, execute);
    this.#running.add(handle);
    const cancel = (): void => handle.cancel("its caller went away");
    response.once("close", cancel);
    try {
      await handle.result;
    } finally {
      this.#running.delete(handle);
      response.off("close", cancel);
    }
  }
}

type Call = { readonly request: IncomingMessage; readonly response: ServerResponse; readonly body: Buffer };

const peerOf = ({ remoteAddress = "", remotePort = 0 }: Socket): string => `${remoteAddress}:${remotePort}`;

type Model = ServedService | UpstreamModel;
type Asked = { readonly id: string; readonly tenant: string; readonly deadlineMs: number | undefined };
type Forwarding = {
  readonly context: ActionContext;
  readonly stallMs: number;
  /** what is thrown in place of this answer; after some the pool tries again */
  readonly failureOf?: (answer: IncomingMessage) => Error | undefined;
  /** headers of the answer that are not passed on */
  readonly withheld?: readonly string[];
};

/** OA1, OA2 */
async function forward(
  { response }: Call,
  sent: Omit<SentRequest, "method" | "signal">,
  { context, stallMs, failureOf, withheld }: Forwarding,
): Promise<void> {
  const { signal } = context;
  const stall = new AbortController();
  const ends = AbortSignal.any([signal, stall.signal]);
  const take = async (piece: Buffer): Promise<void> => {
    if (response.write(piece)) return;
    const timer = setTimeout(() => stall.abort(), stallMs);
    await once(response, "drain", { signal: ends }).finally(() => clearTimeout(timer));
  };
  try {
    await sendRequest(
      { ...sent, method: "POST", signal },
      {
        answered(answer) {
          const waitMs = learnFrom(context, answer);
          const failure = failureOf?.(answer);
          if (failure !== undefined) throw failure;
          // Not its status message, which may have bytes that Node does not send.
          response.writeHead(answer.statusCode ?? 502, headersOf(answer, { withheld, waitMs })).flushHeaders();
        },
        take,
      },
    );
    response.end();
  } catch (error) {
    // Its client may ask again; what the service had begun to answer is not begun twice here.
    if (hadRequest(error)) throw new OpenAiError(502, "service_failed", (error as Error).message);
    throw error;
  }
}

/** With how long to wait, where a refusal does not say it. */
function headersOf(
  answer: IncomingMessage,
  { withheld = [], waitMs }: { readonly withheld?: readonly string[] | undefined; readonly waitMs: number | undefined },
): string[] {
  const retryAfter = missingRetryAfter(answer, waitMs);
  if (retryAfter === undefined) return forwardedResponse(answer, withheld);
  return [...forwardedResponse(answer, [...withheld, "retry-after"]), "Retry-After", retryAfter];
}

function asOpenAi(error: unknown): OpenAiError {
  if (error instanceof OpenAiError) return error;
  if (error instanceof Error && error.cause instanceof OpenAiError) return error.cause;
  if (!(error instanceof TreadleError)) return new OpenAiError(500, "internal_error", String(error));
  const { code, message, disposition } = error;
  const status = { misuse: 400, retryable: 503, cancelled: 503, fatal: 500 }[disposition];
  return new OpenAiError(code === "action.deadline" ? 504 : status, code, message);
}
