import { type BegunEpisode, type Completion, versionRunsOf } from "@treadle/contracts";
import type { BegunCompletion, OnNewWeights } from "@treadle/engines";
import type { Span } from "./episode-stream.ts";
import type { EpisodeState } from "./rank-messages.ts";

/** As an engine goes on with it. */
export function begunOf(
  { tokens, logprobs }: Pick<EpisodeState, "tokens" | "logprobs">,
  answers: readonly Span[],
): BegunCompletion {
  const numAppended = answers.reduce((sum, [from, to]) => sum + to - from, 0);
  return { tokens, logprobs, numAppended, turnFrom: answers.at(-1)?.[1] ?? 0 };
}

/** What goes on of an episode that an earlier step left; undefined: nothing, and it begins again. What had ended is kept. */
export function goingOn(begun: BegunEpisode, onNewWeights: OnNewWeights | undefined): BegunEpisode | undefined {
  if (begun.finishReason !== undefined) return begun;
  const from = onNewWeights === "restart" ? (begun.tool?.answers.at(-1)?.[1] ?? 0) : begun.tokens.length;
  if (from === 0) return undefined;
  const { tokens, logprobs, versions, policyVersion, ...rest } = begun;
  return {
    ...rest,
    ...{ tokens: tokens.subarray(0, from), logprobs: logprobs.subarray(0, from), policyVersion },
    ...(versions && { versions: versionRunsOf(versions, from, policyVersion) }),
  };
}

/** A turn with what its tool answered, which was not drawn. */
export function answered(
  turn: Pick<Completion, "tokens" | "logprobs">,
  answers: readonly Span[],
  answer: Int32Array,
): EpisodeState {
  const from = turn.tokens.length;
  const to = from + answer.length;
  const tokens = new Int32Array(to);
  tokens.set(turn.tokens);
  tokens.set(answer, from);
  const logprobs = new Float32Array(to);
  logprobs.set(turn.logprobs);
  return { tokens, logprobs, answers: [...answers, [from, to]] };
}
