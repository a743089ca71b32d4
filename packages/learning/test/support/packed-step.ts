/** A random step as an engine gets it. */
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import {
  advantageMoments,
  createAlgorithm,
  normaliseAdvantages,
  packSamples,
  type ReferenceScores,
} from "../../src/index.ts";
import { type RandomStep, randomStepColumns } from "../../src/testing/index.ts";

/** Batches of a step, each with what the policy says of it now. */
export function packedStep(config: unknown, { groups, now }: RandomStep) {
  const algorithm = createAlgorithm(config);
  const raw = algorithm.advantages(algorithm.filter(groups).kept);
  const samples = algorithm.needsWholeBatch ? normaliseAdvantages(raw, advantageMoments(raw)) : raw;
  const packed = packSamples(samples, {
    ...algorithm,
    contextLength: randomStepColumns,
    microBatchTokens: 20,
    paddingToken: 0,
  });
  const scored = packed.map(({ batch, sampleIndexes }) => {
    const rectangle = (name: keyof ReferenceScores) => {
      const filled = new Float64Array(batch.rows * batch.columns).fill(Number.NaN);
      sampleIndexes.forEach((sample, row) => {
        const scores = now.get(original(groups, samples[sample]!.episode))![name];
        filled.set(scores.subarray(0, batch.columns), row * batch.columns);
      });
      return filled;
    };
    return { batch, logprobs: rectangle("logprobs"), entropies: rectangle("entropies"), values: rectangle("values") };
  });
  return { loss: algorithm.loss, scored };
}

/** Samples have the episodes that went in. */
function original(groups: readonly EpisodeGroup[], episode: Episode): Episode {
  for (const group of groups) if (group.episodes.includes(episode)) return episode;
  throw new Error("a sample's episode is none of those given");
}
