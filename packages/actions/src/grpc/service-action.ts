/**
 * An action that is a request to a model service, or to an external API's model (`SubmitRequest.service`): scheduled like a lease, asked
 * like OpenAI's API asks.
 *
 * AQ1 a client reaches the service that it names, at the paths that the configuration gives, and nothing else; headers that are
 *     of the connection or name a client are refused (`isForwarded`). An external API is sent what OpenAI's API sends there (UJ1, UJ2).
 * AQ2 devices are held until the answer has ended, or the action was cut, and no longer: a client that reads slowly does not hold
 *     them, as its answer waits in a file.
 */
import type { IncomingMessage } from "node:http";
import * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import { defaultLimits } from "../drivers/sandbox.ts";
import { isJsonType, modelIn, OpenAiError } from "../openai/openai-request.ts";
import {
  type UpstreamModel,
  upstreamFailure,
  upstreamRequest,
  upstreamSpec,
  withheldOfUpstreams,
} from "../openai/upstream.ts";
import type { ActionContext } from "../pool/action-record.ts";
import { askService, type LeasedServices, type ServedService, unitsFor } from "../services/leased-services.ts";
import {
  type AnswerSink,
  hadRequest,
  isServedPath,
  learnFrom,
  missingRetryAfter,
  passingOf,
  retryFor,
  type SentRequest,
  sendRequest,
} from "../services/service-request.ts";
import { limitsOf, type ServiceRequest, type SubmitMessage, type specOf } from "./messages.ts";
import type { Stream } from "./output-spool.ts";
import type { ActionServerOptions } from "./server.ts";
import { StatusError } from "./status.ts";

type Spec = ReturnType<typeof specOf>;
type Named = { readonly service: string; readonly request?: ServiceRequest | null | undefined };
type ServiceResult = {
  readonly status: "answered" | "timeout" | "output-limit";
  /** undefined where none came */
  readonly httpStatus: number | undefined;
  readonly headers: Readonly<Record<string, string>>;
};

/** Throws a `StatusError` for what is not served: `upstreams` are only asked. */
export function servedFor(
  { services, upstreams = [] }: Pick<ActionServerOptions, "services" | "upstreams">,
  { service, request }: Named,
): ServedService {
  const served = services?.served ?? [];
  const found = served.find(({ name }) => name === service);
  const isUpstream = upstreams.some(({ name }) => name === service);
  const known = [...served, ...(request ? upstreams : [])].map(({ name }) => `'${name}'`).join(", ");
  if (found === undefined)
    throw new StatusError(
      grpc.status.INVALID_ARGUMENT,
      isUpstream
        ? `service: '${service}' is an external API's, which has no lease: its key stays here; ask it by Submit, or acquire its quota`
        : `service: '${service}' is not served; served are ${known || "none"}`,
    );
  if (request) checkPath(found, request.path, "the service's paths");
  return found;
}

/** Returns the path without its query. `where` of the configuration it could be added. */
function checkPath(
  { name, paths }: { readonly name: string; readonly paths: readonly string[] },
  given: string,
  where: string,
): string {
  const [path = ""] = given.split("?", 1);
  if (isServedPath(path, paths)) return path;
  throw new StatusError(
    grpc.status.INVALID_ARGUMENT,
    `request.path: '${path.slice(0, 200)}' is not served by '${name}'; served are ${paths.join(", ")}, or add it to ${where}`,
  );
}

/** What names no units of its devices gets those that the service runs on. */
function onDevices(spec: Spec, served: ServedService): Spec & { readonly service: string } {
  const { name, resource } = served;
  const asked = { ...spec, kind: spec.kind || name, service: name };
  if (resource in spec.cost) return asked;
  const units = unitsFor(served, "key" in spec ? spec.key : undefined);
  return { ...units, ...asked, cost: { ...spec.cost, ...units.cost } };
}

type Told = { started(context: ActionContext): void; output(stream: Stream, chunk: Buffer): void };
type Sent = Omit<SentRequest, "signal">;
type Asked = { readonly spec: object; readonly execute: (context: ActionContext) => Promise<ServiceResult> };

/** The `ActionSpec` of a request to whichever is named, and what the action executes. Throws a `StatusError` for what is not served. */
export function requestOf(
  { services, upstreams = [] }: Pick<ActionServerOptions, "services" | "upstreams">,
  message: SubmitMessage,
  asked: Spec,
  told: Told,
): Asked {
  const upstream = upstreams.find(({ name }) => name === message.service);
  if (upstream !== undefined) return ofUpstream(upstream, message, asked, told);
  const served = servedFor({ services, upstreams }, message);
  return { spec: onDevices(asked, served), execute: asksService(services!, message, told) };
}

/** Another attempt follows where the service ended, or answered that it may be asked again. */
function asksService(services: LeasedServices, message: SubmitMessage, told: Told): Asked["execute"] {
  const { service, retries } = message;
  const { method, path, headers, body } = message.request!;
  return (context) =>
    answered(context, message, told, {
      failureOf: (answer) => (context.attempt < retries ? retryFor(answer) : undefined),
      ask: (send) =>
        askService(services, service, context, (url) => {
          const sent = ["Host", new URL(url).host, ...Object.entries(headers).flat(), "Connection", "close"];
          return send({ url, method, path, headers: [...sent, "Content-Length", String(body.length)], body });
        }),
    });
}

/** As OpenAI's API asks it. Its configuration says how many attempts follow refusals, the message how many follow failures (UJ2). */
function ofUpstream(upstream: UpstreamModel, message: SubmitMessage, asked: Spec, told: Told): Asked {
  const { name, quota } = upstream;
  const refuse = (field: string, text: string): never => {
    throw new StatusError(grpc.status.INVALID_ARGUMENT, `${field}: ${text}`);
  };
  const { method, path: given, headers: named, body } = message.request!;
  const path = checkPath(upstream, given, "'paths' of its entry in openai.upstreams");
  if (method !== "POST") refuse("request.method", `'${method}' is not sent to an external API; POST is`);
  if (quota in asked.cost) refuse(`cost.${quota}`, `is what the configuration says of '${name}'; leave it out`);
  const headers = Object.fromEntries(Object.entries(named).map(([key, value]) => [key.toLowerCase(), value]));
  if (!isJsonType([headers["content-type"] ?? ""]) || (headers["content-encoding"] ?? "identity") !== "identity")
    refuse(
      "request.headers",
      "an external API is sent JSON: give 'content-type: application/json', and no other encoding",
    );
  const sent = sentTo(upstream, { path, headers }, Buffer.from(body));
  const { kind, cost, retries } = upstreamSpec(upstream, asked);
  const left = { refused: retries.limit, failed: message.retries };
  const limit = left.refused + left.failed;
  const spec = { ...asked, kind: asked.kind || kind, cost: { ...asked.cost, ...cost }, retries: { limit } };
  const beganMs = performance.now();
  const { deadlineMs = Number.POSITIVE_INFINITY } = asked;
  const execute: Asked["execute"] = async (context) => {
    // An API that was not reached took an attempt of either kind.
    if (context.attempt >= limit) left.refused = left.failed = 0;
    const failureOf = (answer: IncomingMessage): Error | undefined => {
      const failure = upstreamFailure(answer, left, deadlineMs - (performance.now() - beganMs));
      const which = passingOf(answer);
      if (failure !== undefined && which !== undefined) left[which]--;
      return failure;
    };
    try {
      const ask = (send: (request: Sent) => Promise<void>) => send({ ...sent, method });
      return await answered(context, message, told, { failureOf, ask, withheld: withheldOfUpstreams });
    } catch (error) {
      if (!hadRequest(error) || left.failed-- > 0) throw error;
      // It may have done, and charged, what it was asked.
      throw new TreadleError("action.failed", (error as Error).message, { cause: error });
    }
  };
  return { spec, execute };
}

function sentTo(model: UpstreamModel, asked: Parameters<typeof upstreamRequest>[1], body: Buffer) {
  try {
    const named = modelIn(body);
    if (named !== model.name)
      throw new OpenAiError(400, "model_missing", `model: is '${named}', and '${model.name}' is asked; give that one`);
    return upstreamRequest(model, asked, body);
  } catch (error) {
    if (error instanceof OpenAiError)
      throw new StatusError(grpc.status.INVALID_ARGUMENT, `request.body: ${error.message}`);
    throw error;
  }
}

type Asking = {
  readonly ask: (send: (request: Sent) => Promise<void>) => Promise<void>;
  /** what is thrown in place of this answer; after some the pool tries again */
  readonly failureOf: (answer: IncomingMessage) => Error | undefined;
  /** headers of the answer that are not passed on */
  readonly withheld?: readonly string[];
};

/** AQ2 */
async function answered(
  context: ActionContext,
  message: SubmitMessage,
  told: Told,
  { ask, failureOf, withheld = [] }: Asking,
): Promise<ServiceResult> {
  const { timeoutMs, maxOutputBytes } = { ...defaultLimits, ...limitsOf(message) };
  told.started(context);
  const cut = new AbortController();
  let ended: ServiceResult["status"] = "answered";
  let answer: Pick<ServiceResult, "httpStatus" | "headers"> = { httpStatus: undefined, headers: {} };
  let room = maxOutputBytes;
  const end = (why: ServiceResult["status"]): void => {
    ended = why;
    cut.abort();
  };
  const timer = setTimeout(end, timeoutMs, "timeout");
  const sink: AnswerSink = {
    answered(got) {
      const waitMs = learnFrom(context, got);
      const failure = failureOf(got);
      if (failure !== undefined) throw failure;
      const kept = Object.entries(got.headers).filter(([name]) => !withheld.includes(name));
      const retryAfter = missingRetryAfter(got, waitMs);
      const added = retryAfter === undefined ? {} : { "retry-after": retryAfter };
      answer = { httpStatus: got.statusCode, headers: { ...textOf(Object.fromEntries(kept)), ...added } };
    },
    take(piece) {
      if (room > 0) told.output("stdout", piece.subarray(0, room));
      room -= piece.length;
      if (room < 0) end("output-limit");
    },
  };
  try {
    await ask((request) => sendRequest({ ...request, signal: AbortSignal.any([context.signal, cut.signal]) }, sink));
  } catch (error) {
    context.signal.throwIfAborted();
    if (ended === "answered") throw error;
    context.wasCut();
  } finally {
    clearTimeout(timer);
  }
  return { status: ended, ...answer };
}

const textOf = (headers: Readonly<Record<string, string | readonly string[] | undefined>>): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value = []]) => [
      [name, typeof value === "string" ? value : value.join(", ")],
    ]),
  );

/** As `Finished` has it. */
export const answerOf = ({ status, httpStatus, headers }: ServiceResult): object => ({
  status,
  ...(httpStatus === undefined ? {} : { http_status: httpStatus }),
  headers,
});
