import { type EngineFacts, type Episode, type EpisodeGroup, TreadleError, type Weights } from "@treadle/contracts";
import type { GenerationEngine, TrainingEngine } from "@treadle/engines";
import { type PackedBatch, packForScoring, unpackEntries } from "@treadle/learning";
import type { Sink, Source, StateReader, StateWriter, StreamItem, WorkerGroup } from "@treadle/runtime";
import { z } from "zod";
import type { ActorWorker } from "../actor/actor-worker.ts";
import { createEngine, EngineConfig, trainerFacts } from "../engine.ts";
import { EngineWorker, engineFile } from "../engine-worker.ts";
import { pullWeights } from "../weights.ts";

export const InferenceConfig = EngineConfig.extend({
  paddingToken: z.int().nonnegative().default(0),
});
export type InferenceConfig = z.infer<typeof InferenceConfig>;

/**
 * Scores existing tokens: the log-probabilities that the training step compares with, those of a frozen reference policy
 * once there is one, and a critic's values where the model has a value head.
 *
 * The reference is a second set of weights for the same engine, swapped in for its pass over a batch, so its memory is
 * needed on the host alone (as RLinf and veRL do).
 */
export class InferenceWorker extends EngineWorker<InferenceConfig, GenerationEngine & TrainingEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly modelWork = "scoring";
  static override readonly replays = ["pullWeights"];
  static override readonly resizes = true;
  static override readonly saves = ["keepReference"];

  static override engineFacts(config: InferenceConfig): EngineFacts {
    return trainerFacts(config);
  }

  /** `state` is what restores it; made with the weights, since a later call may find the engine released */
  #reference: { readonly weights: Weights; readonly state: readonly Uint8Array[] } | undefined;

  /** What scores; a subclass may bring an engine of its own. */
  protected createEngine(): Promise<GenerationEngine & TrainingEngine> {
    return createEngine(this, this.seed + this.rank, { trains: false });
  }

  override async setup(): Promise<void> {
    this.engine = await this.createEngine();
  }

  async pullWeights(actor: WorkerGroup<ActorWorker>): Promise<void> {
    await pullWeights(this.engine, actor, this);
  }

  /** From now on the actor's present weights are the reference policy. */
  async keepReference(actor: WorkerGroup<ActorWorker>): Promise<void> {
    if (this.engine.trainerRank !== undefined)
      throw new TreadleError(
        "config.invalid",
        `'${this.component}' shares its trainer's module (engine.process is 'shared'), and a reference needs a second set of weights; set engine.process of '${this.component}' to 'own'`,
      );
    await pullWeights(this.engine, actor, this);
    await this.#keep(await piecesIn(this.engine.save()));
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    if (this.#reference) state.write(engineFile, this.#reference.state);
  }

  override async restore(saved: StateReader): Promise<void> {
    const state = await piecesIn(saved.stream(engineFile));
    await this.engine.load(state);
    await this.#keep(state);
  }

  async #keep(state: readonly Uint8Array[]): Promise<void> {
    this.#reference = { weights: await this.engine.exportWeights(), state };
  }

  /** Fills in `oldLogprobs` of every episode that was not aborted, and, as there are, `values` and `refLogprobs`. */
  async score(groups: Source<EpisodeGroup>, scored: Sink<EpisodeGroup>): Promise<{ tokens: number }> {
    await using _ = await this.devices.lock({ tags: ["weights"] });
    let tokens = 0;
    for await (const batch of groups.itemBatches()) {
      // References are swapped in once for all of it.
      const parts = this.#reference ? [batch] : partsOf(batch, this.config.model.microBatchTokens);
      let scoring = this.#scored(valuesOf(parts[0]));
      try {
        for (const [at, part] of parts.entries()) {
          const filled = await scoring;
          // What is scored leaves while the engine computes the next, and whoever takes it may have it then.
          const next = parts[at + 1];
          if (next) scoring = this.#scored(valuesOf(next));
          scoring.catch(() => {}); // which is awaited after the commit
          for (const { episodes } of filled)
            for (const each of episodes) if (isScored(each)) tokens += each.tokens.length;
          await Promise.all(part.map((item, index) => item.commit(scored, filled[index] as EpisodeGroup)));
        }
      } finally {
        await scoring.catch(() => {}); // of a failed commit: the devices are this call's until the engine is done
      }
    }
    return { tokens };
  }

  async #scored(groups: readonly EpisodeGroup[]): Promise<EpisodeGroup[]> {
    const episodes = groups.flatMap((group) => group.episodes.filter(isScored));
    const packed = packForScoring(episodes, { ...this.config.model, paddingToken: this.config.paddingToken });
    const pass = (output: "logprobs" | "values") => this.#forward(output, packed, episodes.length);
    const oldLogprobs = await pass("logprobs");
    const values = this.config.model.valueHead ? await pass("values") : undefined;
    const refLogprobs = this.#reference && (await this.#under(this.#reference.weights, () => pass("logprobs")));
    let next = 0;
    return groups.map(({ promptId, episodes: own }) => ({
      promptId,
      episodes: own.map((episode) => {
        if (!isScored(episode)) return episode;
        const at = next++;
        return { ...episode, oldLogprobs: oldLogprobs[at], values: values?.[at], refLogprobs: refLogprobs?.[at] };
      }),
    }));
  }

  /** One number for each token of each episode. */
  async #forward(
    output: "logprobs" | "values",
    packed: readonly PackedBatch[],
    episodes: number,
  ): Promise<Float32Array[]> {
    using _ = this.timer("forward");
    const rectangles: Float32Array[] = [];
    for (const { batch } of packed) rectangles.push(await this.engine[output](batch));
    return unpackEntries(packed, rectangles, episodes);
  }

  /** Does something under other weights. */
  async #under<T>(weights: Weights, act: () => Promise<T>): Promise<T> {
    const present = await this.engine.exportWeights();
    await this.engine.loadWeights(weights);
    try {
      return await act();
    } finally {
      await this.engine.loadWeights(present);
    }
  }
}

/** Nothing is learnt from aborted ones, so whatever numbers they have are of no account. */
const isScored = ({ finishReason }: Episode): boolean => finishReason !== "abort";

/** As many groups in turn as are one micro-batch of the engine, at least one. */
function partsOf(groups: readonly StreamItem<EpisodeGroup>[], microBatchTokens: number): StreamItem<EpisodeGroup>[][] {
  const parts: StreamItem<EpisodeGroup>[][] = [];
  let room = 0;
  for (const group of groups) {
    const size = group.value.episodes.reduce((sum, each) => sum + (isScored(each) ? each.tokens.length : 0), 0);
    if (size > room || parts.length === 0) {
      parts.push([]);
      room = microBatchTokens;
    }
    parts.at(-1)?.push(group);
    room -= size;
  }
  return parts;
}

const valuesOf = (items: readonly StreamItem<EpisodeGroup>[] = []): EpisodeGroup[] => items.map(({ value }) => value);

async function piecesIn(pieces: AsyncIterable<Uint8Array>): Promise<Uint8Array[]> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(piece);
  return all;
}
