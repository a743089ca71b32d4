import { type Completion, type Episode, type Prompt, versionRunsOf } from "@treadle/contracts";
import type { Span } from "./episode-stream.ts";

/** A completion of a kind of engine with its prompt; tokens in `others` (from and to, counted after the prompt) are somebody else's than the policy's, so they are masked. `turns`: what each of the policy's has earned. */
export function toEpisode(
  engine: string,
  prompt: Prompt,
  { tokens: written, logprobs: sampled, temperature, finishReason, policyVersion, versions = [] }: Completion,
  reward: number,
  others: readonly Span[] = [],
  turns?: readonly number[],
): Episode {
  const promptLength = prompt.tokens.length;
  const length = promptLength + written.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt.tokens);
  tokens.set(written, promptLength);
  const logprobs = new Float32Array(length);
  logprobs.set(sampled, promptLength);
  const mask = new Float32Array(length).fill(1, promptLength);
  const policyVersions = new Int32Array(length).fill(-1, 0, promptLength);
  let at = promptLength;
  for (const [version, count] of versionRunsOf(versions, written.length, policyVersion)) {
    policyVersions.fill(version, at, at + count); // W1
    at += count;
  }
  for (const [from, to] of others) {
    mask.fill(0, promptLength + from, promptLength + to);
    policyVersions.fill(-1, promptLength + from, promptLength + to);
  }
  // A turn ends where its tool's answer begins, and the last one with the episode.
  const endOf = (turn: number): number => promptLength + (others[turn]?.[0] ?? written.length);
  return {
    promptId: prompt.id,
    promptLength,
    tokens,
    mask,
    logprobs,
    temperature,
    policyVersions,
    engine,
    finishReason,
    reward,
    ...(turns && { turnRewards: turns.map((each, turn) => ({ end: endOf(turn), reward: each })) }),
  };
}
