/** What a request in OpenAI's API asks for, and how one is refused. Pure: bytes and names in, decisions out. */

import { type ServedService, unitsFor } from "../services/leased-services.ts";

/** As OpenAI's clients expect one. */
export class OpenAiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly retryAfterSeconds: number | undefined;

  constructor(status: number, code: string, message: string, retryAfterSeconds?: number) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  get body(): string {
    return JSON.stringify({
      error: { message: this.message, type: typeOf(this.status), param: null, code: this.code },
    });
  }
}

function typeOf(status: number): string {
  if (status === 401) return "authentication_error";
  if (status === 403) return "permission_error";
  if (status === 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

const longestName = 200;

/** Whether a request with these `Content-Type` headers has a body of JSON in UTF-8, for whichever of them a server reads. */
export const isJsonType = (types: readonly string[]): boolean =>
  types.length === 1 && /^application\/json(\s*;\s*charset=("utf-8"|utf-8))?$/i.test(types[0]!);

/**
 * The value of `model` in a JSON object; of several the last, as JSON.parse has it. The body is looked through once, byte by byte,
 * and nothing is made of it but that: parsing megabytes takes seconds, in which this process decides nothing. So what is wrong
 * elsewhere in it is for the service to say. Throws an `OpenAiError`.
 */
export const modelIn = (body: Uint8Array): string => modelAt(body).name;

/** Where its value stands in the body, quotes included, and how often the key is there, in upper case or lower. */
export function modelAt(body: Uint8Array): {
  readonly name: string;
  readonly start: number;
  readonly end: number;
  readonly count: number;
} {
  let depth = 0;
  let isOver = false;
  let count = 0;
  /** at depth 1: whether the key whose value comes is the model's, and whether it comes */
  let isModel = false;
  let isValue = false;
  /** the value's quotes */
  let model: readonly [start: number, end: number] | undefined;
  for (let at = 0; at < body.length; at++) {
    const byte = body[at]!;
    if (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) continue;
    if (isOver || (depth === 0 && byte !== 0x7b)) throw notJson(body.length);
    const isItsValue = isModel && isValue && depth === 1;
    switch (byte) {
      case 0x22: {
        const end = endOfString(body, at);
        if (isItsValue) model = [at, end];
        else if (depth === 1 && !isValue) {
          const key = keyLikeModel(body, at, end);
          isModel = key === "model";
          if (key !== undefined) count++;
        }
        at = end;
        break;
      }
      case 0x7b:
      case 0x5b:
        if (isItsValue) model = undefined;
        depth++;
        break;
      case 0x7d:
      case 0x5d:
        depth--;
        isOver = depth === 0;
        break;
      case 0x3a:
        if (depth === 1) isValue = true;
        break;
      case 0x2c:
        if (depth === 1) isValue = isModel = false;
        break;
      default:
        if (isItsValue) model = undefined;
    }
  }
  if (!isOver) throw notJson(body.length);
  const name = model && textOf(body, model[0], model[1]);
  if (model !== undefined && name !== undefined && name !== "" && name.length <= longestName)
    return { name, start: model[0], end: model[1] + 1, count };
  throw new OpenAiError(
    400,
    "model_missing",
    `model: is the name of a service, a string of at most ${longestName} characters; GET /v1/models lists them`,
  );
}

const modelKey = Buffer.from("model");
const upperCase = 0x20;

/** The key as it reads, where it is `model` but for upper case. It may be written with escapes, of which each takes six characters. */
function keyLikeModel(body: Uint8Array, start: number, end: number): string | undefined {
  const length = end - start - 1;
  if (length < modelKey.length || length > 6 * modelKey.length) return undefined;
  // Most keys are told apart without making a string.
  const isPlain = length === modelKey.length;
  if (isPlain && !modelKey.every((byte, i) => (body[start + 1 + i]! | upperCase) === byte)) return undefined;
  const key = textOf(body, start, end);
  return key?.toLowerCase() === "model" ? key : undefined;
}

const notJson = (bytes: number): OpenAiError =>
  new OpenAiError(400, "invalid_json", `the body, of ${bytes} bytes, is no JSON object; send one with 'model'`);

/** Of the closing quote. */
function endOfString(body: Uint8Array, start: number): number {
  for (let at = start + 1; at < body.length; at++) {
    if (body[at] === 0x5c) at++;
    else if (body[at] === 0x22) return at;
  }
  throw notJson(body.length);
}

/** Undefined where it is longer than any name, each character of which may be written as six. */
function textOf(body: Uint8Array, start: number, end: number): string | undefined {
  if (end - start > 6 * longestName) return undefined;
  try {
    return JSON.parse(Buffer.from(body.subarray(start, end + 1)).toString()) as string;
  } catch {
    throw notJson(body.length);
  }
}

/** Throws an `OpenAiError` that names those which are served. */
export function servedModel<Model extends { readonly name: string }>(models: readonly Model[], name: string): Model {
  const found = models.find((model) => model.name === name);
  if (found !== undefined) return found;
  const known = models.map((model) => `'${model.name}'`).join(", ");
  throw new OpenAiError(404, "model_not_found", `model '${name}' is not served; served are ${known}`);
}

/**
 * The `ActionSpec` of a request: at whichever of its degrees the scheduler gives. A second attempt is for a service that had
 * ended unseen, or did not start.
 */
export function specFor(
  service: ServedService,
  {
    id,
    tenant,
    deadlineMs,
  }: { readonly id: string; readonly tenant: string; readonly deadlineMs?: number | undefined },
) {
  const { name } = service;
  return { id, kind: name, service: name, tenant, ...unitsFor(service), deadlineMs, retries: { limit: 1 } };
}

/** Throws an `OpenAiError` where the header gives no number that a timer takes. */
export function deadlineOf(header: string | undefined, mostMs: number): number | undefined {
  if (header === undefined) return undefined;
  const deadlineMs = Number(header);
  if (/^\d+$/.test(header) && deadlineMs > 0 && deadlineMs <= mostMs) return deadlineMs;
  throw new OpenAiError(
    400,
    "invalid_deadline",
    `x-treadle-deadline-ms: '${header.slice(0, 40)}' is no time; give whole milliseconds from 1 to ${mostMs}`,
  );
}
