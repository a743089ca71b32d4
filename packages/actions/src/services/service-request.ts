/**
 * One HTTP request to a model service, and its answer as it comes.
 *
 * HQ1 nothing but the server at `url` is asked: what is sent there names a path below it and no other host.
 * HQ2 when `sendRequest` has settled there is no connection.
 */
import { once } from "node:events";
import { type IncomingMessage, request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { TreadleError } from "@treadle/contracts";
import { parseRetryAfter } from "../managers/quota.ts";
import type { ActionContext } from "../pool/action-record.ts";

export type SentRequest = {
  /** of the server, such as `http://127.0.0.1:8000` */
  readonly url: string;
  readonly method: string;
  /** with its query */
  readonly path: string;
  /** name, value, name, value */
  readonly headers: readonly string[];
  readonly body: Uint8Array;
  /** PEM, of its certificate; those that Node knows when undefined */
  readonly authority?: Buffer | undefined;
  readonly signal: AbortSignal;
};

/** No more of an answer is read while what `take` returns is waited for. What either throws ends the request. */
export type AnswerSink = {
  answered(answer: IncomingMessage): void;
  take(piece: Buffer): void | Promise<void>;
};

/** The server ended while it had the request: it may have done what it was asked. */
export const hadRequest = (error: unknown): boolean =>
  error instanceof TreadleError && error.code === "service.failed" && error.details["hadRequest"] === true;

/** Throws `service.failed` where no whole answer came, and what `signal` or the sink says. */
export async function sendRequest(
  { url, method, path, headers, body, authority, signal }: SentRequest,
  sink: AnswerSink,
): Promise<void> {
  const { protocol, hostname, port } = new URL(url);
  const options = {
    hostname: hostname.replace(/^\[|\]$/g, ""),
    port,
    method,
    path,
    headers: [...headers],
    agent: false,
    signal,
  } as const;
  const sent =
    protocol === "https:"
      ? requestHttps({ ...options, rejectUnauthorized: true, ...(authority === undefined ? {} : { ca: authority }) })
      : requestHttp(options);
  let isConnected = false;
  sent.on("socket", (socket) => {
    socket.once(protocol === "https:" ? "secureConnect" : "connect", () => {
      isConnected = true;
    });
  });
  sent.on("error", () => {}); // `once` and the answer tell
  sent.on("upgrade", (_, socket) => {
    socket.destroy();
    sent.emit("error", new Error("it wants to speak something else"));
  });
  sent.end(body);
  let isOurs = false;
  const ours = async (act: () => void | Promise<void>): Promise<void> => {
    isOurs = true;
    await act();
    isOurs = false;
  };
  try {
    const [answer] = (await once(sent, "response", { signal })) as [IncomingMessage];
    await ours(() => {
      const { statusCode = 0 } = answer;
      if (statusCode < 200) throw noStatus(String(statusCode));
      return sink.answered(answer);
    });
    for await (const piece of answer) await ours(() => sink.take(piece as Buffer));
  } catch (cause) {
    signal.throwIfAborted();
    if (isOurs) throw cause;
    const { message } = cause as Error;
    const unread = statusLine.exec((cause as { rawPacket?: Buffer }).rawPacket?.toString("latin1", 0, 100) ?? "")?.[1];
    if ((cause as NodeJS.ErrnoException).code === "HPE_INVALID_STATUS" && unread !== undefined) throw noStatus(unread);
    // It ended before the request reached it: the next attempt has it restored.
    if (!isConnected) throw new TreadleError("service.failed", `the service cannot be reached: ${message}`, { cause });
    throw new TreadleError("service.failed", `the service ended before its answer did: ${message}; try again`, {
      cause,
      details: { hadRequest: true },
    });
  } finally {
    sent.destroy();
  }
}

const statusLine = /^HTTP\/\d\.\d +(\S{1,40})/;

const noStatus = (status: string): TreadleError =>
  new TreadleError(
    "service.failed",
    `the service answered with status '${status}', which no answer has (200 to 999 are); try again, or look at the service`,
    { details: { hadRequest: true } },
  );

const refusals = [429, 503];

/** Where neither a service that refuses nor a quota says when to ask again. */
const usualWaitMs = 1000;

/**
 * 429 and 503 stop the quotas that were granted, for everybody, until `retryAfter`, the header as it came. Says in how many ms it is
 * worth to ask again; undefined where it is no refusal.
 */
export function tellRefusal(
  context: ActionContext,
  status: number,
  retryAfter: string | undefined,
): number | undefined {
  if (!refusals.includes(status)) return undefined;
  const retryAfterMs = parseRetryAfter(retryAfter, Date.now());
  const waits = Object.keys(context.allocation).map((resource) => context.throttled(resource, retryAfterMs) ?? 0);
  // Its time is the service's refusal, not a call.
  context.wasRefused();
  return Math.max(...waits, retryAfterMs ?? usualWaitMs);
}

/** What failed, or was refused, says nothing of how long others take. Returns what `tellRefusal` does. */
export function learnFrom(context: ActionContext, { statusCode = 502, headers }: IncomingMessage): number | undefined {
  const waitMs = tellRefusal(context, statusCode, headers["retry-after"]);
  if (waitMs !== undefined) return waitMs;
  if (statusCode >= 500) context.wasCut();
  else if (statusCode >= 400) context.wasRefused();
  return undefined;
}

/** In seconds, where a refusal lacks it or says it in a way that is not understood. `waitMs` is what `tellRefusal` said of it. */
export function missingRetryAfter({ headers }: IncomingMessage, waitMs: number | undefined): string | undefined {
  if (waitMs === undefined || parseRetryAfter(headers["retry-after"], Date.now()) !== undefined) return undefined;
  // What a difference of times has in its last digits is no second more.
  return String(Math.max(1, Math.ceil(Math.round(waitMs) / 1000)));
}

const failures = [500, 502, 504];

/** Too many calls, or a failure that may pass: another attempt may be answered. */
export type Passing = "refused" | "failed";

/** Undefined for an answer that another attempt would not change. */
export function passingOf({ statusCode = 502 }: IncomingMessage): Passing | undefined {
  if (refusals.includes(statusCode)) return "refused";
  return failures.includes(statusCode) ? "failed" : undefined;
}

/** What makes the pool try again, no sooner than the service asks for; undefined where it would not help. */
export function retryFor(answer: IncomingMessage): TreadleError | undefined {
  if (passingOf(answer) === undefined) return undefined;
  const { statusCode, headers } = answer;
  const retryAfterMs = parseRetryAfter(headers["retry-after"], Date.now());
  const details = retryAfterMs === undefined ? {} : { retryAfterMs };
  return new TreadleError("service.failed", `the service answered with ${statusCode}; try again`, { details });
}

/**
 * Nothing that a server could read as another path, and one of `served`: a path, or `/v1/*` for all below one. Not below it are
 * vLLM's adapters, which are everybody's.
 */
export function isServedPath(path: string, served: readonly string[]): boolean {
  if (!/^(\/[A-Za-z0-9_-][A-Za-z0-9_.~-]*)+$/.test(path)) return false;
  return served.some((one) =>
    one.endsWith("/*") ? path.startsWith(one.slice(0, -1)) && !path.endsWith("_lora_adapter") : path === one,
  );
}
