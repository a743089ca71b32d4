import { TreadleError, type Weights } from "@treadle/contracts";
import { type Engine, type GenerationEngine, weightsIdOf } from "@treadle/engines";
import type { Worker, WorkerGroup } from "@treadle/runtime";

/** What brings weights to others, such as an `ActorWorker`. */
type Publisher = { weights(known?: string): Promise<Weights | undefined> };

/** One that generates nothing beside its calls need not pause. */
type Receiver = Pick<Engine, "loadWeights" | "policyVersion" | "weightsId"> &
  Partial<Pick<GenerationEngine, "pause" | "resume">>;

/**
 * Brings a worker's engine to the actor's newest weights, and does nothing when it has them, and not others of their version (W3:
 * paused, transferred, verified, resumed). Ranks pull from different ranks of the actor, which all hold the same weights. The
 * devices are locked once the weights are here: an actor that is starting again may need them to load.
 *
 * Throws `worker.late`, with who holds it up, when no weights have come after `supervision.peerTimeoutMs`; and
 * `engine.weights-mismatch` when the engine says that it has others than it was given: it stays paused then. A load that fails
 * leaves the weights before, or an engine that generates nothing (`engine.poisoned`), so it may be resumed.
 */
export async function pullWeights(
  engine: Receiver,
  actor: WorkerGroup<Publisher>,
  { rank, devices, messages }: Pick<Worker, "rank" | "devices" | "messages">,
): Promise<void> {
  const from = rank % actor.size;
  const source = actor.onRanks(from);
  const newer = `weights newer than version '${engine.policyVersion}'`;
  const weights = await messages.answer(`${actor.groupName}/${from}`, newer, source.weights(engine.weightsId).first());
  if (!weights) return;
  await using _ = await devices.lock();
  await engine.pause?.();
  try {
    await engine.loadWeights(weights);
  } catch (error) {
    engine.resume?.();
    throw error;
  }
  if (engine.weightsId !== weightsIdOf(weights)) {
    throw new TreadleError(
      "engine.weights-mismatch",
      `engine reports weights '${engine.weightsId}' of version '${engine.policyVersion}' after loading '${weightsIdOf(weights)}'`,
    );
  }
  engine.resume?.();
}
