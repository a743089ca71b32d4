/**
 * Models that an external API serves, behind a quota: what a request to one costs, and what is sent there.
 *
 * UJ1 the API's key is this server's: a tenant neither sends nor sees it, and asks only the models and paths that were given.
 * UJ2 what the API refuses (429, 503) stops its quota for everybody until Retry-After. The request is tried again after that, where
 *     its deadline leaves time, and else answered as the API did.
 */
import type { IncomingMessage } from "node:http";
import { forwardedRequest, ofClients } from "../network/forwarded-headers.ts";
import { retryFor, type SentRequest } from "../services/service-request.ts";
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
  /** further attempts after a refusal */
  readonly retries: number;
};

/** They choose an account of the API's, or are secrets of another. */
const ofAccounts = ["api-key", "x-api-key", "openai-organization", "openai-project", "content-length"];
/** What an answer would tell of this server's account. */
export const withheldOfUpstreams: readonly string[] = ["set-cookie", "openai-organization", "openai-project"];

/** The `ActionSpec` of a request. */
export const upstreamSpec = (
  { name, quota, units, retries }: UpstreamModel,
  asked: { readonly id: string; readonly tenant: string; readonly deadlineMs?: number | undefined },
) => ({ ...asked, kind: name, cost: { [quota]: units }, retries: { limit: retries } });

/** Throws an `OpenAiError` where the body names more than one model: the API may take the one that was not looked at (UJ1). */
export function upstreamRequest(
  { url, key, authority, upstreamName }: UpstreamModel,
  request: IncomingMessage,
  body: Buffer,
): Omit<SentRequest, "method" | "signal"> {
  const { start, end, count } = modelAt(body);
  if (count !== 1)
    throw new OpenAiError(400, "model_missing", `model: was given ${count} times; give it once, in lower case`);
  const renamed = Buffer.concat([
    body.subarray(0, start),
    Buffer.from(JSON.stringify(upstreamName)),
    body.subarray(end),
  ]);
  const { host, pathname } = new URL(url);
  const { headers } = forwardedRequest(request, host, [...ofClients, ...ofAccounts]);
  if (request.headers["transfer-encoding"] === undefined) headers.push("Content-Length", String(renamed.length));
  if (key !== undefined) headers.push("Authorization", `Bearer ${key}`);
  const path = pathname.replace(/\/$/, "") + (request.url ?? "").slice("/v1".length);
  return { url, path, headers, body: renamed, authority };
}

/** Why an answer of the API is not passed on: it is of this server's key (UJ1), or another attempt follows (UJ2). `leftMs` until the deadline. */
export function upstreamFailure(answer: IncomingMessage, isLast: boolean, leftMs: number): Error | undefined {
  // Its words may show a part of the key.
  if (answer.statusCode === 401)
    return new OpenAiError(
      502,
      "upstream_refused",
      "the external API does not take this server's key; its operator has to look at openai.upstreams",
    );
  const again = isLast ? undefined : retryFor(answer, "refused");
  const waitMs = Number(again?.details["retryAfterMs"] ?? 0);
  return waitMs < leftMs ? again : undefined;
}
