/** An actor that keeps a ledger beside its weights: which prompts every optimiser step was taken on. */
import type { EpisodeGroup } from "@treadle/contracts";
import type { BatchOptions, Source, StateReader, StateWriter } from "@treadle/runtime";
import { ActorWorker, InferenceWorker, RolloutWorker } from "@treadle/workers";
import { z } from "zod";

export const LearningLedger = z.object({
  /** prompts that were trained, in order of steps, of one step in alphabetical order */
  trained: z.array(z.string()),
  /** of the engine */
  policyVersion: z.int(),
});
export type LearningLedger = z.infer<typeof LearningLedger>;

/** Nodes run only modules of their project, and packages may be installed elsewhere. */
export class ProjectRolloutWorker extends RolloutWorker {
  static override readonly module: string = import.meta.url;
}
export class ProjectInferenceWorker extends InferenceWorker {
  static override readonly module: string = import.meta.url;
}

/** What is trained is what `ActorWorker` is given: real episodes, real gradients, summed over ranks. */
export class LedgerActorWorker extends ActorWorker {
  static override readonly module: string = import.meta.url;
  #trained: string[] = [];

  override async train(groups: Source<EpisodeGroup>): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    const mine: string[] = [];
    const metrics = await super.train(noting(groups, mine));
    const all = await this.messages.broadcast((await this.messages.gather(mine))?.flat());
    this.#trained = [...this.#trained, ...(all as string[]).toSorted()];
    return metrics;
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    const { policyVersion } = this.engine;
    state.write("ledger", JSON.stringify({ trained: this.#trained, policyVersion } satisfies LearningLedger));
    await super.checkpoint(state);
  }

  override async restore(state: StateReader): Promise<void> {
    const ledger = LearningLedger.parse(JSON.parse(await state.text("ledger")));
    await super.restore(state);
    if (this.engine.policyVersion !== ledger.policyVersion) throw new Error("the ledger is of other weights");
    this.#trained = ledger.trained;
  }
}

/** Writes down whose episodes pass. */
function noting(groups: Source<EpisodeGroup>, ids: string[]): Source<EpisodeGroup> {
  const note = (batch: EpisodeGroup[] | undefined) => {
    ids.push(...(batch ?? []).map(({ promptId }) => promptId));
    return batch;
  };
  return {
    name: groups.name,
    granularity: groups.granularity,
    take: async (options) => note(await groups.take(options)),
    items: (options) => groups.items(options),
    itemBatches: (options) => groups.itemBatches(options),
    async *batches(options?: BatchOptions) {
      for await (const batch of groups.batches(options)) yield note(batch) as EpisodeGroup[];
    },
    async *[Symbol.asyncIterator]() {
      for await (const group of groups) {
        note([group]);
        yield group;
      }
    },
  };
}
