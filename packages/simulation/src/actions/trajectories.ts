/** What the trajectories of a step do, drawn before any policy runs, so that all policies meet the same step. */
import { normalBelow } from "@treadle/contracts";
import type { Random } from "@treadle/learning";
import { normal } from "../durations.ts";
import type { CodingWorkload } from "./scenario.ts";

/** Generation, then a tool call, turn by turn; then the reward. All on one core, in seconds. */
export type CodingTrajectory = {
  readonly generations: readonly number[];
  readonly tools: readonly number[];
  readonly reward: {
    readonly seconds: number;
    readonly serialShare: number;
    /** what the scheduler is told */
    readonly estimate: number;
  };
};

export function drawTrajectories(workload: CodingWorkload, count: number, random: Random): CodingTrajectory[] {
  const { turns, turnsSpread, generationSeconds, rewardMedianSeconds, rewardSpread, estimateSpread } = workload;
  const tool = toolSeconds(workload);
  const [low, high] = workload.serialShare;
  return Array.from({ length: count }, (_, i) => {
    const own = random.split(i);
    const numTurns = Math.max(1, Math.round(turns * Math.exp(turnsSpread * normal(own))));
    const seconds = rewardMedianSeconds * Math.exp(rewardSpread * normal(own));
    const least = Math.max(1e-4, low);
    return {
      generations: Array.from({ length: numTurns + 1 }, () => generationSeconds * (0.5 + own.float())),
      tools: Array.from({ length: numTurns }, () => tool(normal(own))),
      reward: {
        seconds,
        serialShare: least * (Math.max(least, high) / least) ** own.float(),
        estimate: seconds * Math.exp(estimateSpread * normal(own)),
      },
    };
  });
}

/**
 * A tool call's seconds by a standard normal deviate: lognormal through median and 90th percentile, cut where the mean
 * becomes the stated one, since its uncut mean has no bound in practice (p90 8 s at a median of 0.05 s: 127 s).
 */
function toolSeconds(workload: CodingWorkload): (deviate: number) => number {
  const { toolMedianSeconds: median } = workload;
  const { p90Seconds: p90, meanSeconds: mean } = workload.tools;
  const sigma = Math.max(1e-6, Math.log(p90 / median) / 1.2815515655);
  let low = p90;
  let high = 1e6 * p90;
  for (let i = 0; i < 80; i++) {
    const cut = Math.sqrt(low * high);
    if (meanCutAt(median, sigma, cut) < mean) low = cut;
    else high = cut;
  }
  return (deviate) => Math.min(low, median * Math.exp(sigma * deviate));
}

/** E[min(X, cut)] of a lognormal X. */
function meanCutAt(median: number, sigma: number, cut: number): number {
  const z = Math.log(cut / median) / sigma;
  return median * Math.exp(sigma ** 2 / 2) * normalBelow(z - sigma) + cut * (1 - normalBelow(z));
}
