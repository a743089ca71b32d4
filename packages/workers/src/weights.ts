import { TreadleError, type Weights } from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import type { WorkerGroup } from "@treadle/runtime";
import type { ActorWorker } from "./actor/actor-worker.ts";

/**
 * Brings an engine to the actor's newest weights, and does nothing when it has them (W3: paused, transferred, verified,
 * resumed). Ranks pull from different ranks of the actor, which all hold the same weights.
 */
export async function pullWeights(
  engine: GenerationEngine,
  actor: WorkerGroup<ActorWorker>,
  rank: number,
): Promise<void> {
  const source = actor.onRanks(rank % actor.size);
  const weights: Weights | undefined = await source.weights(engine.policyVersion).first();
  if (!weights) return;
  await engine.pause();
  try {
    await engine.loadWeights(weights);
  } finally {
    engine.resume();
  }
  if (engine.policyVersion !== weights.policyVersion) {
    throw new TreadleError(
      "engine.weights-mismatch",
      `engine reports policy version '${engine.policyVersion}' after loading version '${weights.policyVersion}'`,
    );
  }
}
