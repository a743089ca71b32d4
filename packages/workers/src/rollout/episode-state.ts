import type { Completion } from "@treadle/contracts";
import type { BegunCompletion } from "@treadle/engines";
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
