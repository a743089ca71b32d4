import { degreesThatFit, type Interference, interferenceFactor, type RecordedEpisode } from "@treadle/trajectories";
import type { RolloutScenario } from "./scenario.ts";

/** Tokens a second that no way of running a step exceeds, whatever is known of it. */
export type RolloutBounds = {
  /** the step lasts as long as its longest episode does alone at the fastest rank, its tools included */
  readonly longest: number;
  /** every device makes tokens as fast as it can, with the company that is best for it, from the start to the end */
  readonly work: number;
};

/** What is read of a prompt at the start counts in both; what is read anew after a move does not. */
export function boundsOf(
  scenario: RolloutScenario,
  F: Interference,
  episodes: readonly RecordedEpisode[],
): RolloutBounds {
  const { gpus, tokenTime, maxBatch, prefillRatio } = scenario;
  const factor = interferenceFactor(F);
  const degrees = degreesThatFit(scenario);
  const company = Array.from({ length: maxBatch }, (_, k) => k + 1);
  // A table may say that company is faster than none.
  const leastFactor = Math.min(...company.map(factor));
  const leastTokenTime = leastFactor * Math.min(...degrees.map((degree) => tokenTime[degree]!));
  const tokensPerDeviceSecond = Math.max(
    ...degrees.flatMap((degree) => company.map((k) => k / (degree * tokenTime[degree]! * factor(k)))),
  );
  let [tokens, work, longest] = [0, 0, 0];
  for (const { contextTokens, turns } of episodes) {
    const chosen = turns.reduce((sum, turn) => sum + turn.tokens, 0);
    const computed = chosen + prefillRatio * contextTokens;
    const toolSeconds = turns.slice(0, -1).reduce((sum, turn) => sum + (turn.toolSeconds ?? 0), 0);
    tokens += chosen;
    work += computed;
    longest = Math.max(longest, computed * leastTokenTime + toolSeconds);
  }
  return { longest: tokens / longest, work: (tokens / work) * gpus * tokensPerDeviceSecond };
}
