import { readMessage, SharedWeights, TreadleError, WeightLink, type Weights, WeightTicket } from "@treadle/contracts";
import { type Engine, type GenerationEngine, type Trainable, weightsIdOf } from "@treadle/engines";
import type { Worker, WorkerGroup } from "@treadle/runtime";
import type { TrainerWorker, WeightForm } from "./engine-worker.ts";

/** What brings weights to others, such as an `ActorWorker`. One that knows no tickets answers with bytes. */
type Publisher = {
  weights(known: string | undefined, by: WeightForm): Promise<Weights | WeightTicket | SharedWeights | undefined>;
};
/** One whose tickets say that its engine sends them, too. */
type Sender = Publisher & Pick<TrainerWorker<unknown, Trainable>, "offerWeights">;

/** One that generates nothing beside its calls need not pause. */
type Receiver = Pick<
  Engine,
  | "loadWeights"
  | "opens"
  | "loadTicket"
  | "linkTo"
  | "join"
  | "policyVersion"
  | "weightsId"
  | "trainerRank"
  | "takeShared"
> &
  Partial<Pick<GenerationEngine, "pause" | "resume">>;

/** of tickets that were replaced while they were read, or a link for them was asked for */
const maxReplaced = 3;

/**
 * Brings a worker's engine to the actor's newest weights, and does nothing when it has them, and not others of their version (W3:
 * paused, transferred, verified, resumed). Ranks pull from different ranks of the actor, which all hold the same weights. The
 * devices are locked once the weights are here: an actor that is starting again may need them to load. Where there is room for the
 * weights of both, neither leaves for it: the lock brings back no cache that they would not fit beside.
 *
 * An engine that computes with its trainer's module takes what the module has, which moves nothing: these weights or newer ones, as the
 * versions of its completions say. So it does not pause, and needs no device.
 *
 * They come by a ticket, where both engines know tickets: on a device whose memory this engine maps, over a process group of the two, where
 * both are configured to, or in files that it can open; else as bytes. A ticket that newer weights replace while it is read is asked for
 * again, and one whose device is needed meanwhile, in files.
 *
 * Throws `worker.late`, with who holds it up, when no weights have come after `supervision.peerTimeoutMs`, or newer ones are published
 * again and again before a link for them is there; and
 * `engine.weights-mismatch` when the engine says that it has others than it was given: it stays paused then. A load that fails
 * leaves the weights before, or an engine that generates nothing (`engine.poisoned`), so it may be resumed.
 */
export async function pullWeights(
  engine: Receiver,
  actor: WorkerGroup<Publisher>,
  { rank, devices, messages, log }: Pick<Worker, "rank" | "devices" | "messages" | "log">,
): Promise<void> {
  const from = engine.trainerRank ?? rank % actor.size;
  const source = actor.onRanks(from);
  const ask = (by: WeightForm) => {
    const newer = `weights newer than version '${engine.policyVersion}'`;
    return messages.answer(`${actor.groupName}/${from}`, newer, source.weights(engine.weightsId, by).first());
  };
  if (engine.takeShared) {
    await engine.takeShared(readMessage(SharedWeights, await ask("shared")));
    return;
  }
  let first: WeightForm = engine.loadTicket ? "device" : "bytes";
  const find = async (by: WeightForm): Promise<Weights | WeightTicket | undefined> => {
    const found = (await ask(by)) as Weights | WeightTicket | undefined;
    if (!found || !("tensors" in found)) return found;
    const ticket = readMessage(WeightTicket, found);
    if (engine.linkTo?.(ticket) !== undefined || (await engine.opens?.(ticket))) return ticket;
    return find(ticket.device && by === "device" ? "ticket" : "bytes");
  };
  // Before the devices are locked: a trainer that starts again may need them.
  const meet = async (ticket: WeightTicket, known: string): Promise<WeightLink | undefined> => {
    const sender = source as WorkerGroup<Sender>;
    const asked = sender.offerWeights(weightsIdOf(ticket), known).first();
    const offered = await messages.answer(`${actor.groupName}/${from}`, "a link for its weights", asked);
    if (offered === undefined) return undefined;
    const link = readMessage(WeightLink, offered);
    await engine.join?.(ticket, link);
    return link;
  };
  let refused: { readonly place: string; readonly error: unknown } | undefined;
  for (let replaced = 0; ; replaced++) {
    const weights = await find(first);
    if (!weights) return;
    const id = weightsIdOf(weights);
    // Another process may publish the same.
    const place = "tensors" in weights ? `${id} ${weights.nonce}` : id;
    if (refused && (refused.place === place || replaced > maxReplaced)) throw refused.error;
    const known = "tensors" in weights ? engine.linkTo?.(weights) : undefined;
    const link = known === undefined ? undefined : await meet(weights as WeightTicket, known);
    if (known !== undefined && link === undefined) {
      if (replaced < maxReplaced) continue; // newer ones were published
      const { policyVersion } = weights;
      const what = `'${actor.groupName}/${from}' published newer weights '${replaced + 1}' times while a link for them was asked for, the last time after version '${policyVersion}', where at most ${maxReplaced} are followed`;
      throw new TreadleError(
        "worker.late",
        `${what}; publish less often than weights are pulled, or set engine.collective to 'off'`,
      );
    }
    await using _ = await devices.lock({ tags: ["weights"] });
    await engine.pause?.();
    try {
      if ("tensors" in weights) await engine.loadTicket?.(weights, link);
      else await engine.loadWeights(weights);
    } catch (error) {
      engine.resume?.();
      if (!("tensors" in weights)) throw error;
      if (weights.device && first === "device") {
        log.warn(
          `weights of version '${weights.policyVersion}' do not come from the device: ${(error as Error).message}`,
        );
        first = "ticket";
      } else refused = { place, error };
      continue;
    }
    if (engine.weightsId !== id) {
      throw new TreadleError(
        "engine.weights-mismatch",
        `engine reports weights '${engine.weightsId}' of version '${engine.policyVersion}' after loading '${id}'`,
      );
    }
    engine.resume?.();
    return;
  }
}
