/** The engine's terms as messages of `protos/engines/v1`, and messages as its terms. */
import {
  type Completion,
  type FinishReason,
  type LossSpec,
  type ReleasableTag,
  type Sampling,
  type TagMemory,
  type TrainBatch,
  TreadleError,
  type WeightLink,
  type WeightTicket,
} from "@treadle/contracts";
import type { CompletionPiece, EngineMemory, JoiningCompletion, Publication, TokenRows } from "../engine.ts";
import type { ParameterShape } from "../parameters.ts";
import { PieceReader } from "../pieces.ts";
import { sealTicket } from "../weight-ticket.ts";
import { type GenerateCall, type Message, type TorchClient, write } from "./torch-client.ts";

const reasons: readonly FinishReason[] = ["stop", "length", "abort"];
/** as they are numbered */
const tagNames: readonly ReleasableTag[] = ["weights", "optimiser", "cache"];
const batchArrays = [
  "temperatures",
  "weights",
  "advantages",
  "oldLogprobs",
  "refLogprobs",
  "returns",
  "oldValues",
] as const;
/** of one message of prompts */
const promptTokens = 2 ** 16;

export type Described = {
  readonly epoch: string;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly layout: readonly ParameterShape[];
  readonly trained: readonly ParameterShape[];
  /** of the device whose memory it maps; empty where it maps none */
  readonly deviceUuid: string;
};

type Sending = {
  readonly isExtensible: boolean;
  readonly progressMs: number | undefined;
  /** under which what has begun is to go on; it begins again where other weights come first */
  readonly policyVersion: number;
};

export async function sendPrompts(
  call: GenerateCall,
  prompts: readonly JoiningCompletion[],
  sampling: Sampling,
  { isExtensible, progressMs, policyVersion }: Sending,
): Promise<void> {
  const { maxTokens, temperature, stopTokens, seed } = sampling;
  const progress = progressMs !== undefined && { progress_ms: progressMs };
  const start = {
    ...{ max_tokens: maxTokens, temperature, stop_tokens: stopTokens, seed, extensible: isExtensible },
    ...progress,
    ...(prompts.some(({ begun }) => begun) && { policy_version: policyVersion }),
  };
  await write(call, { start: { num_prompts: prompts.length, ...start } });
  let some: JoiningCompletion[] = [];
  let tokens = 0;
  for (const [index, one] of prompts.entries()) {
    some.push(one);
    tokens += one.prompt.length + (one.begun?.tokens.length ?? 0);
    if (tokens < promptTokens && index < prompts.length - 1) continue;
    await write(call, { prompts: promptsMessage(some) });
    [some, tokens] = [[], 0];
  }
}

function promptsMessage(prompts: readonly JoiningCompletion[]): Message {
  const columns = {
    keys: prompts.map(({ key }) => key),
    lengths: prompts.map(({ prompt }) => prompt.length),
    tokens: joined(prompts.map(({ prompt }) => prompt)),
  };
  if (!prompts.some(({ begun }) => begun)) return columns;
  const begun = prompts.flatMap((one) => (one.begun ? [one.begun] : []));
  return {
    ...columns,
    begun_lengths: prompts.map((one) => one.begun?.tokens.length ?? 0),
    num_appended: prompts.map((one) => one.begun?.numAppended ?? 0),
    begun_tokens: joined(begun.map((one) => one.tokens)),
    begun_logprobs: joined(begun.map((one) => one.logprobs)),
  };
}

const joined = (arrays: readonly (Int32Array | Float32Array)[]): Uint8Array => Buffer.concat(arrays.map(bytesOf));

/** A completion as a process tells it, which may be held until it is answered for. */
export type ToldCompletion = {
  readonly index: number;
  readonly attempt: number;
  readonly isHeld: boolean;
  readonly completion: Completion;
};

/** What replies of one call are checked against. */
export type ReplyBounds = { readonly numCompletions: number; readonly vocabSize: number };

/** Throws `service.failed` where columns disagree, or have what no engine makes. */
export function completionsIn(reply: Message, temperature: number, bounds: ReplyBounds): ToldCompletion[] {
  const {
    rows,
    finish_reasons: finishReasons,
    held,
    policy_version: policyVersion,
  } = (reply["completions"] ?? noCompletions) as Completions;
  return rowsIn(rows, bounds, { finish_reasons: finishReasons, held }).map(
    ({ index, attempt, tokens, logprobs }, at) => {
      const finishReason = reasons[finishReasons[at] as number];
      if (!finishReason)
        return refuseReply(`completion '${index}' ended with the unknown reason '${finishReasons[at]}'`);
      return {
        index,
        attempt,
        isHeld: held[at] as boolean,
        completion: { tokens, logprobs, temperature, finishReason, policyVersion },
      };
    },
  );
}

/** Throws as `completionsIn` does. */
export function piecesIn(reply: Message, bounds: ReplyBounds): CompletionPiece[] {
  const { rows, starts } = (reply["progress"] ?? noProgress) as Progress;
  return rowsIn(rows, bounds, { starts }).map((row, at) => ({ ...row, from: starts[at] as number }));
}

export function refuseReply(what: string, remedy = "it and this package must be of one version"): never {
  throw new TreadleError("service.failed", `the engine's process sent what cannot be used: ${what}; ${remedy}`);
}

type Rows = {
  readonly indices: readonly number[];
  readonly attempts: readonly number[];
  readonly lengths: readonly number[];
  readonly tokens: Uint8Array;
  readonly logprobs: Uint8Array;
};
type Completions = {
  readonly rows: Rows | null;
  readonly finish_reasons: readonly number[];
  readonly held: readonly boolean[];
  readonly policy_version: number;
};
type Progress = { readonly rows: Rows | null; readonly starts: readonly number[] };
const noCompletions: Completions = { rows: null, finish_reasons: [], held: [], policy_version: 0 };
const noProgress: Progress = { rows: null, starts: [] };
const noRows: Rows = { indices: [], attempts: [], lengths: [], tokens: new Uint8Array(), logprobs: new Uint8Array() };
/** By how much rounding of a sum of probabilities may exceed 1. */
const mostLogprob = 1e-3;

/** Each has numbers of its own: what one of them keeps is not kept for all. `beside`: columns of the same entries. */
function rowsIn(
  rows: Rows | null,
  { numCompletions, vocabSize }: ReplyBounds,
  beside: { readonly [column: string]: readonly unknown[] },
): Pick<CompletionPiece, "index" | "attempt" | "tokens" | "logprobs">[] {
  const { indices, attempts, lengths, tokens: tokenBytes, logprobs: logprobBytes } = rows ?? noRows;
  for (const [column, { length }] of Object.entries({ attempts, lengths, ...beside }))
    if (length !== indices.length) refuseReply(`'${length}' ${column} of '${indices.length}' completions`);
  const numTokens = lengths.reduce((sum, length) => sum + length, 0);
  for (const [column, { byteLength }] of Object.entries({ tokens: tokenBytes, logprobs: logprobBytes }))
    if (byteLength !== 4 * numTokens) refuseReply(`'${byteLength}' bytes of ${column} for '${numTokens}' tokens`);
  const tokens = intsOf(tokenBytes);
  const logprobs = floatsOf(logprobBytes);
  for (const token of tokens)
    if (token < 0 || token >= vocabSize) refuseReply(`token '${token}' is not in the vocabulary of '${vocabSize}'`);
  for (const logprob of logprobs)
    if (!(logprob <= mostLogprob && logprob > Number.NEGATIVE_INFINITY))
      refuseReply(`a token has the log-probability '${logprob}'`, "check that the engine's weights are finite");
  let to = 0;
  return indices.map((index, at) => {
    if (index >= numCompletions) refuseReply(`completion '${index}' of a call of '${numCompletions}'`);
    const from = to;
    to += lengths[at] as number;
    return {
      index,
      attempt: attempts[at] as number,
      tokens: tokens.slice(from, to),
      logprobs: logprobs.slice(from, to),
    };
  });
}

export function batchMessage(batch: Partial<Omit<TrainBatch, keyof TokenRows>> & TokenRows): {
  readonly header: Message;
  readonly data: Uint8Array;
} {
  const present = batchArrays.flatMap((name) => (batch[name] ? [[name, batch[name]] as const] : []));
  return {
    header: { rows: batch.rows, columns: batch.columns, arrays: ["tokens", ...present.map(([name]) => name)] },
    data: Buffer.concat([bytesOf(batch.tokens), ...present.map(([, array]) => bytesOf(array))]),
  };
}

export function lossMessage(loss: LossSpec): Message {
  if (loss.type === "cross-entropy") return { cross_entropy: {} };
  return {
    policy_gradient: {
      ratio: loss.ratio,
      surrogate: loss.surrogate ?? "clipped",
      clip_low: loss.clipLow,
      clip_high: loss.clipHigh,
      ...(loss.dualClip !== undefined && { dual_clip: loss.dualClip }),
      kl_coefficient: loss.klCoefficient,
      kl_estimator: loss.klEstimator ?? "k3",
      entropy_coefficient: loss.entropyCoefficient,
      ...(loss.value && { value: loss.value }),
    },
  };
}

export function describedBy(reply: Message): Described {
  const layoutOf = (key: string): ParameterShape[] =>
    (reply[key] as readonly ParameterShape[]).map(({ name, shape }) => ({ name, shape }));
  return {
    epoch: reply["epoch"] as string,
    vocabSize: reply["vocab_size"] as number,
    contextLength: reply["context_length"] as number,
    layout: layoutOf("parameters"),
    trained: layoutOf("trained"),
    deviceUuid: reply["device_uuid"] as string,
  };
}

export const tagsMessage = (tags: readonly ReleasableTag[]): Message => ({
  tags: tags.map((tag) => `TAG_${tag.toUpperCase()}`),
});

/**
 * What the process has of this engine. Tags are known once it was loaded; `before`: what it has had may be needed again; `sharedAs`: several
 * clients have it.
 */
export function memoryIn(
  reply: Message,
  before: EngineMemory,
  { wasLoaded, sharedAs }: { readonly wasLoaded: boolean; readonly sharedAs?: string | undefined },
): EngineMemory {
  const residentBytes = reply["resident_bytes"] as number;
  const tags = tagsIn(reply, sharedAs);
  const taggedBytes = wasLoaded ? tags.reduce((sum, { bytes }) => sum + bytes, 0) : 0;
  const loadedBytes = Math.max(before.loadedBytes, residentBytes, taggedBytes);
  return { residentBytes, loadedBytes, hostBytes: reply["host_bytes"] as number, ...(wasLoaded && { tags }) };
}

function tagsIn(reply: Message, sharedAs: string | undefined): TagMemory[] {
  return (reply["tags"] as Message[]).map((each) => ({
    tag: tagNames[each["tag"] as number] as ReleasableTag,
    bytes: each["bytes"] as number,
    releaseSeconds: each["release_seconds"] as number,
    restoreSeconds: each["restore_seconds"] as number,
    ...(sharedAs !== undefined && (each["bytes"] as number) > 0 && { sharedAs }),
  }));
}

/** What the process says of its device or its files, as a ticket; names, types and sizes are read where it is taken. */
export function publicationOf(reply: Message): Publication {
  if (reply["obstacle"]) return { obstacle: reply["obstacle"] as string };
  const {
    policy_version: policyVersion,
    store,
    nonce,
    folder,
    tensors,
    adapter,
    device,
  } = reply as unknown as Published;
  const sealed = sealTicket({
    ...{ policyVersion, store, nonce, folder, tensors },
    ...(adapter && {
      adapter: { rank: adapter.rank, tensors: adapter.tensors, configCrc32: adapter.config_crc32 },
    }),
    ...(device && { device: { uuid: device.uuid, handle: Buffer.from(device.handle).toString("hex") } }),
  });
  return { ticket: sealed };
}

type Published = Pick<WeightTicket, "store" | "nonce" | "folder" | "tensors"> & {
  readonly policy_version: number;
  readonly adapter: {
    readonly rank: number;
    readonly tensors: WeightTicket["tensors"];
    readonly config_crc32: number;
  } | null;
  readonly device: { readonly uuid: string; readonly handle: Uint8Array } | null;
};

export const ticketMessage = (
  { policyVersion, store, nonce, folder, tensors, device }: WeightTicket,
  link?: Pick<WeightLink, "name">,
): Message => ({
  policy_version: policyVersion,
  store,
  nonce,
  folder,
  tensors,
  ...(device && { device: { uuid: device.uuid, handle: Buffer.from(device.handle, "hex") } }),
  ...(link && { link: link.name }),
});

export const bytesOf = (array: Int32Array | Float32Array): Uint8Array =>
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

/** A number of each token; 0 where there are weights, and they are 0. */
export function scored(client: TorchClient, output: "logprobs" | "values", rows: TokenRows): Promise<Float32Array> {
  const { tokens, temperatures, weights, columns } = rows;
  const { header, data } = batchMessage({ rows: rows.rows, columns, tokens, temperatures, weights });
  const pieces = client.exchange("Score", { ...header, output: output.toUpperCase() }, data);
  return floatsIn(pieces, rows.rows * columns);
}

export async function floatsIn(pieces: AsyncGenerator<Uint8Array>, length: number): Promise<Float32Array> {
  const floats = new Float32Array(length);
  await using reader = new PieceReader(pieces);
  const numBytes = await reader.fill(floats);
  await reader.fill(new Uint8Array(1)); // to its end, which says whether it has failed
  if (numBytes < floats.byteLength)
    throw new TreadleError(
      "service.failed",
      `the engine's process sent '${numBytes}' bytes where ${floats.byteLength} were expected; it and this package must be of one version`,
    );
  return floats;
}

/** Copies, because bytes of a message need not begin where numbers may. */
export const floatsOf = (bytes: Uint8Array): Float32Array => new Float32Array(Uint8Array.from(bytes).buffer);
export const intsOf = (bytes: Uint8Array): Int32Array => new Int32Array(Uint8Array.from(bytes).buffer);
