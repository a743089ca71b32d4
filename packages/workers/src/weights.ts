import { TreadleError, type Weights } from "@treadle/contracts";
import { type GenerationEngine, weightsIdOf } from "@treadle/engines";
import type { Worker, WorkerGroup } from "@treadle/runtime";
import type { ActorWorker } from "./actor/actor-worker.ts";

/**
 * Brings a worker's engine to the actor's newest weights, and does nothing when it has them, and not others of their version (W3:
 * paused, transferred, verified, resumed). Ranks pull from different ranks of the actor, which all hold the same weights. The
 * devices are locked once the weights are here: an actor that is starting again may need them to load.
 */
export async function pullWeights(
  engine: GenerationEngine,
  actor: WorkerGroup<ActorWorker>,
  { rank, devices }: Pick<Worker, "rank" | "devices">,
): Promise<void> {
  const source = actor.onRanks(rank % actor.size);
  const weights: Weights | undefined = await source.weights(engine.weightsId).first();
  if (!weights) return;
  await using _ = await devices.lock();
  await engine.pause();
  try {
    await engine.loadWeights(weights);
  } finally {
    engine.resume();
  }
  if (engine.weightsId !== weightsIdOf(weights)) {
    throw new TreadleError(
      "engine.weights-mismatch",
      `engine reports weights '${engine.weightsId}' of version '${engine.policyVersion}' after loading '${weightsIdOf(weights)}'`,
    );
  }
}
