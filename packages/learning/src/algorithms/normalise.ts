import type { TrainSample } from "./algorithm.ts";
import { stdEpsilon } from "./statistics.ts";

/** Of the advantages of policy tokens; those of several parts of a step, and of several ranks, add up field by field. */
export type AdvantageMoments = { readonly tokens: number; readonly sum: number; readonly squares: number };

export function advantageMoments(samples: readonly TrainSample[]): AdvantageMoments {
  let tokens = 0;
  let sum = 0;
  let squares = 0;
  for (const { episode, advantages } of samples) {
    for (let token = 0; token < advantages.length; token++) {
      if (episode.mask[token] === 0) continue;
      tokens += 1;
      sum += advantages[token]!;
      squares += advantages[token]! ** 2;
    }
  }
  return { tokens, sum, squares };
}

/** Scales advantages to mean 0 and standard deviation 1 over the policy tokens of which `moments` are. */
export function normaliseAdvantages(samples: readonly TrainSample[], moments: AdvantageMoments): TrainSample[] {
  const tokens = Math.max(1, moments.tokens);
  const mean = moments.sum / tokens;
  const deviation = Math.sqrt(Math.max(0, moments.squares / tokens - mean ** 2));
  const scale = 1 / (deviation + stdEpsilon);
  return samples.map((sample) => ({
    ...sample,
    advantages: sample.advantages.map((advantage, token) =>
      sample.episode.mask[token] === 0 ? 0 : (advantage - mean) * scale,
    ),
  }));
}
