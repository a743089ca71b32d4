/** What an emulated engine's completions are made of. Pure. */
import type { Completion, FinishReason, Sampling, VersionRuns } from "@treadle/contracts";
import type { BegunCompletion, GenerateOptions } from "../engine.ts";
import { priorityOf } from "../model-engine.ts";
import { mix, normal } from "../random.ts";
import type { DecoderSequence } from "./decoder.ts";
import type { EmulatedProfile } from "./profile.ts";

/** One call of `generate`. */
export type Call = {
  readonly sampling: Sampling;
  readonly options: GenerateOptions;
  /** of all that it asks for */
  readonly ids: number[];
};

export type Running = {
  readonly call: Call;
  readonly index: number;
  readonly prompt: Int32Array;
  readonly key: number;
  /** all after the prompt that was there when the turn under way began */
  said: BegunCompletion;
  turn: Turn;
  /** of what other weights than those of now have chosen */
  versions: VersionRuns;
  /** tokens whose keys and values other weights have computed, while `extend` is asked about it */
  numLost: number;
  /** `extend` is asked about it */
  isHeld: boolean;
  /** how often it has begun again: what `extend` says of an earlier time counts no more */
  attempt: number;
  end(completion: Completion): void;
  fail(error: unknown): void;
};

/** What a sequence chooses until it stops. */
export type Turn = {
  readonly tokens: Int32Array;
  readonly finishReason: FinishReason;
  /** of these, chosen elsewhere */
  readonly numAhead: number;
  readonly prefillSteps: number;
  readonly mayGoOn: boolean;
};

export type TurnDraws = {
  readonly profile: EmulatedProfile;
  readonly seed: number;
  /** as in `EmulatedEngineOptions` */
  readonly turnTokens: ((key: number, from: number) => number | undefined) | undefined;
};

/** Length, tokens and reason are drawn when a turn begins; only the time to them passes. */
export function drawTurn(
  { profile, seed, turnTokens }: TurnDraws,
  { call, prompt, key, said }: Omit<Running, "turn">,
  { numAhead = 0, numRead }: { readonly numAhead?: number; readonly numRead: number },
): Turn {
  const { response, vocabSize, contextLength, prefillSteps } = profile;
  const { sampling, options } = call;
  const from = said.tokens.length;
  const stream = mix(seed, sampling.seed, key, ...(from === 0 ? [] : [from]));
  const drawn =
    turnTokens?.(key, from) ?? Math.round(response.medianTokens * Math.exp(response.spread * normal(stream, 0)));
  const numChosen = from - said.numAppended;
  const limit = Math.min(sampling.maxTokens - numChosen, contextLength - prompt.length - from);
  const finishReason: FinishReason = drawn > limit ? "length" : "stop";
  const stops = new Set(sampling.stopTokens);
  const tokens = Int32Array.from({ length: Math.max(1, Math.min(drawn, limit)) }, (_, i) => {
    let token = mix(stream, 1, i) % vocabSize;
    for (let tries = 0; stops.has(token) && tries < vocabSize; tries++) token = (token + 1) % vocabSize;
    return token;
  });
  const [stop] = sampling.stopTokens;
  if (finishReason === "stop" && stop !== undefined) tokens[tokens.length - 1] = stop;
  const mayGoOn = options.extend !== undefined && finishReason === "stop" && tokens.length < limit;
  return { tokens, finishReason, numAhead, prefillSteps: prefillSteps * numRead, mayGoOn };
}

/** The turn under way, as the decoder has it. */
export function sequenceOf(id: number, { call, index, turn }: Running): DecoderSequence {
  const { order } = call.options;
  return {
    id,
    steps: turn.prefillSteps + turn.tokens.length - turn.numAhead,
    priority: priorityOf(order, index),
    numSpare: order?.spareCaches,
    mayGoOn: turn.mayGoOn,
  };
}
