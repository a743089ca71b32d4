/** An actor that keeps a ledger beside its weights: which prompts every optimiser step was taken on. */
import type { EpisodeGroup } from "@treadle/contracts";
import type { BatchOptions, Source } from "@treadle/runtime";
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

  override async checkpoint(): Promise<Uint8Array> {
    const { policyVersion } = this.engine;
    const ledger = Buffer.from(JSON.stringify({ trained: this.#trained, policyVersion } satisfies LearningLedger));
    const size = Buffer.alloc(4);
    size.writeUInt32LE(ledger.length);
    return Buffer.concat([size, ledger, await super.checkpoint()]);
  }

  override async restore(state: Uint8Array): Promise<void> {
    const { ledger, rest } = splitState(state);
    await super.restore(rest);
    if (this.engine.policyVersion !== ledger.policyVersion) throw new Error("the ledger is of other weights");
    this.#trained = ledger.trained;
  }
}

/** The ledger of a saved state, and the engine's own state behind it. */
export function splitState(state: Uint8Array): { ledger: LearningLedger; rest: Uint8Array } {
  const end = 4 + Buffer.from(state.buffer, state.byteOffset, 4).readUInt32LE();
  const text = new TextDecoder().decode(state.subarray(4, end));
  return { ledger: LearningLedger.parse(JSON.parse(text)), rest: state.subarray(end) };
}

/** Writes down whose episodes pass. */
function noting(groups: Source<EpisodeGroup>, ids: string[]): Source<EpisodeGroup> {
  const note = (batch: EpisodeGroup[] | undefined) => {
    ids.push(...(batch ?? []).map(({ promptId }) => promptId));
    return batch;
  };
  return {
    name: groups.name,
    take: async (options) => note(await groups.take(options)),
    items: (options) => groups.items(options),
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
