/**
 * Models that an external API serves, behind a quota: what a request to one costs, and what is sent there.
 *
 * UJ1 the API's key is this server's: a tenant neither sends nor sees it, and asks only the models and paths that were given. So what
 *     the API could read otherwise than this server does is refused, or not sent.
 * UJ2 what the API refuses (429, 503) stops its quota for everybody until Retry-After. The request is tried again after that, where
 *     its deadline leaves time, and else answered as the API did. Attempts after refusals and after failures are counted apart: a
 *     failed one may have been charged, so only a request that says so has another after it.
 */
import type { IncomingMessage } from "node:http";
import { type Passing, passingOf, retryFor, type SentRequest } from "../services/service-request.ts";
import { modelAt, OpenAiError } from "./openai-request.ts";

export type UpstreamModel = {
  readonly name: string;
  /** what the API calls it */
  readonly upstreamName: string;
  /** of the API, such as `https://api.example.com/v1` */
  readonly url: string;
  readonly key: string | undefined;
  /** of its certificate; those that Node knows when undefined */
  readonly authority: Buffer | undefined;
  readonly quota: string;
  /** that a request takes of it */
  readonly units: number;
  /** below /v1, as clients ask for them */
  readonly paths: readonly string[];
  /** further attempts after refusals */
  readonly retries: number;
};

/** Of the client's headers. Others choose an account or a path, or name what clients of one account share, as idempotency keys do. */
const passed = ["accept", "accept-encoding", "user-agent"];
/** What an answer would tell of this server's account. */
export const withheldOfUpstreams: readonly string[] = ["set-cookie", "openai-organization", "openai-project"];

/** The `ActionSpec` of a request. */
export const upstreamSpec = (
  { name, quota, units, retries }: UpstreamModel,
  asked: { readonly id: string; readonly tenant: string; readonly deadlineMs?: number | undefined },
) => ({ ...asked, kind: name, cost: { [quota]: units }, retries: { limit: retries } });

/**
 * Of a request of JSON at `path`, one of the model's. Throws an `OpenAiError` where the API may take a model that was not looked at
 * (UJ1): the body names more than one, or has bytes by which some take it for another encoding.
 */
export function upstreamRequest(
  { url, key, authority, upstreamName }: UpstreamModel,
  {
    path: asked,
    headers: given,
  }: { readonly path: string; readonly headers: Readonly<Record<string, string | string[] | undefined>> },
  body: Buffer,
): Omit<SentRequest, "method" | "signal"> {
  if (body.includes(0))
    throw new OpenAiError(400, "invalid_json", "the body has NUL bytes, which no JSON in UTF-8 has; send it without");
  const { start, end, count } = modelAt(body);
  if (count !== 1)
    throw new OpenAiError(400, "model_missing", `model: was given ${count} times; give it once, in lower case`);
  const renamed = Buffer.concat([
    body.subarray(0, start),
    Buffer.from(JSON.stringify(upstreamName)),
    body.subarray(end),
  ]);
  const { host, pathname } = new URL(url);
  const headers = ["Host", host, "Content-Type", "application/json", "Content-Length", String(renamed.length)];
  for (const name of passed) if (given[name] !== undefined) headers.push(name, String(given[name]));
  if (key !== undefined) headers.push("Authorization", `Bearer ${key}`);
  headers.push("Connection", "close");
  const path = pathname.replace(/\/$/, "") + asked.slice("/v1".length);
  return { url, path, headers, body: renamed, authority };
}

/** Further attempts that are left, by what they follow. */
export type AttemptsLeft = Readonly<Record<Passing, number>>;

/** The API, or a proxy before it, does not take this server's key. Its words may show a part of that. */
const ofKey = [401, 403, 407];

/** Why an answer of the API is not passed on: it is of this server's key (UJ1), or another attempt follows (UJ2). `leftMs` until the deadline. */
export function upstreamFailure(answer: IncomingMessage, left: AttemptsLeft, leftMs: number): Error | undefined {
  if (ofKey.includes(answer.statusCode ?? 502))
    return new OpenAiError(
      502,
      "upstream_refused",
      "the external API does not take this server's key, or not for this; its operator has to look at openai.upstreams",
    );
  const which = passingOf(answer);
  const again = which === undefined || left[which] <= 0 ? undefined : retryFor(answer);
  const waitMs = Number(again?.details["retryAfterMs"] ?? 0);
  return waitMs < leftMs ? again : undefined;
}
