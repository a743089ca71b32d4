/**
 * Any flow of stages on emulated engines: they take the time and memory of their profiles and compute nothing. For asking
 * how a workload behaves in each mode, on more devices than there are here. No device, no mode is named.
 * Every step has the same items, each with a length of its own, so that plans differ by what they do and not by luck.
 */

import {
  type Channel,
  type ReleasableTag,
  type Sink,
  type Source,
  type StreamItem,
  type TagMemory,
  Worker,
  workflow,
} from "treadle";
import { EmulatedEngine, EmulatedProfile } from "treadle/engines";
import { z } from "zod";

/** `tokens`: as many as its response has, once it has been generated. */
export const Item = z.object({
  id: z.string(),
  tokens: z.custom<Int32Array>((value) => value instanceof Int32Array).optional(),
});
type Item = z.infer<typeof Item>;

export const Stage = z.strictObject({
  /**
   * `generate`: responses of the profile's lengths; `score` and `train`: a cost an item, the latter with an optimiser step
   * at the end; `simulate` and `act`: two stages in a cycle, each with a `score` of all items a turn, or of each pipeline stage of
   * them.
   */
  work: z.enum(["generate", "score", "train", "simulate", "act"]),
  /** channels; the workflow itself puts into `prompts` */
  takes: z.array(z.string()).default([]),
  puts: z.array(z.string()).default([]),
  engine: EmulatedProfile.omit({ devices: true }),
  devicesPerRank: z.int().positive().default(1),
  ranks: z.strictObject({ max: z.int().positive().optional(), fixed: z.int().positive().optional() }).optional(),
  /** its ranks get their devices together, take in rounds, and start again together, as those of a data-parallel trainer */
  gang: z.boolean().optional(),
});
type Stage = z.infer<typeof Stage>;

export const Config = z.strictObject({
  stages: z.record(z.string(), Stage),
  /** of stages in a cycle */
  turns: z.int().positive().default(1),
  /** of a cycle: parts of the batch that go round by themselves, so that its two stages work at the same time */
  pipelineStages: z.int().positive().default(1),
});

type Whole = { readonly turns: number; readonly pipelineStages: number; readonly batch: number };

export class StageWorker extends Worker<Stage & Whole> {
  static override readonly resizes: boolean = true;

  #engine!: EmulatedEngine;

  override async setup(): Promise<void> {
    const devices = this.devices.ids.length;
    this.#engine = EmulatedEngine.create({ ...this.config.engine, devices }, { seed: this.seed });
  }
  override idle(): Promise<void> | undefined {
    return this.#engine.idle();
  }
  override memoryBytes(): number {
    return this.#engine.memory().loadedBytes;
  }
  override memoryTags(): readonly TagMemory[] {
    return this.#engine.memory().tags ?? [];
  }
  override residualBytes(): number {
    return this.#engine.memory().residentBytes;
  }
  override async onload(tags?: readonly ReleasableTag[]): Promise<void> {
    await this.#engine.restore(tags);
  }
  override async offload(tags?: readonly ReleasableTag[]): Promise<void> {
    await this.#engine.release(tags);
  }

  /** Passes everything from the first source on to every sink; of further sources about as many items are used up. */
  async flow(sources: readonly Source<Item>[], sinks: readonly Sink<Item>[]): Promise<void> {
    await using _ = await this.devices.lock();
    const [main, ...others] = sources as [Source<Item>, ...Source<Item>[]];
    const [sink] = sinks;
    if (this.config.work === "generate" && others.length === 0 && sink !== undefined && sinks.length === 1)
      return await this.#stream(main, sink);
    const { gang } = this.config;
    for await (const batch of main.batches({ gang })) {
      // In rounds, too, by all ranks: one that went on alone would keep the devices of those that wait.
      for (const other of others) await other.take({ items: Math.max(1, batch.length), gang });
      if (batch.length === 0) continue; // its fellow ranks have what is left
      const done = await this.#work(batch);
      for (const sink of sinks) await sink.put(...done);
    }
    if (this.config.work === "train") await this.#engine.optimStep({ learningRate: 0, scale: 1 });
  }

  /** Each response goes on as soon as it has ended, and the next item takes its place. */
  async #stream(source: Source<Item>, sink: Sink<Item>): Promise<void> {
    const running: Promise<void>[] = [];
    const work = async ({ value, commit }: StreamItem<Item>) => commit(sink, await this.#generate(value));
    for await (const item of source.items()) running.push(work(item));
    await Promise.all(running);
  }

  /** Begins the cycle: puts all environments' observations, then answers actions for so many turns, one pipeline stage at a time. */
  async simulate(actions: Source<Item>, observations: Sink<Item>): Promise<void> {
    await using _ = await this.devices.lock();
    const { turns, batch } = this.config;
    await observations.put(...Array.from({ length: batch }, (_unused, id) => ({ id: `${id}` })));
    for (let turn = 1; turn <= turns; turn++) {
      for (const items of this.#parts()) {
        const acted = (await actions.take({ items })) ?? [];
        await this.#work(acted);
        await observations.put(...acted);
      }
    }
  }

  /** Answers observations with actions for so many turns, and puts what came of them. */
  async act(observations: Source<Item>, actions: Sink<Item>, episodes: readonly Sink<Item>[]): Promise<void> {
    await using _ = await this.devices.lock();
    for (let turn = 1; turn <= this.config.turns; turn++) {
      for (const items of this.#parts()) {
        const seen = (await observations.take({ items })) ?? [];
        await this.#work(seen);
        await actions.put(...seen);
      }
    }
    for (const items of this.#parts()) {
      const last = (await observations.take({ items })) ?? [];
      for (const sink of episodes) await sink.put(...last);
    }
  }

  /** Items of each pipeline stage, none of which is empty. */
  #parts(): number[] {
    const { batch } = this.config;
    const count = Math.min(batch, this.config.pipelineStages);
    const until = (part: number) => Math.floor((part * batch) / count);
    return Array.from({ length: count }, (_, part) => until(part + 1) - until(part));
  }

  async #work(items: readonly Item[]): Promise<readonly Item[]> {
    const rows = items.length;
    if (this.config.work === "generate") return Promise.all(items.map((item) => this.#generate(item)));
    const rectangle = { rows, columns: 1, tokens: new Int32Array(rows) };
    if (this.config.work !== "train") await this.#engine.logprobs(rectangle);
    else {
      const weights = new Float32Array(rows).fill(1);
      await this.#engine.forwardBackward({ ...rectangle, weights }, { type: "cross-entropy" });
    }
    return items;
  }

  /** The engine decodes all that are asked for at a time together. An item has its length, whoever generates it. */
  async #generate({ id }: Item): Promise<Item> {
    const seed = Number.parseInt(id.split("-").at(-1) ?? "0", 10) % this.config.batch;
    const sampling = { maxTokens: 100_000, temperature: 1, stopTokens: [0], seed };
    const [completion] = await this.#engine.generate([Int32Array.of(1)], sampling);
    return { id, tokens: completion?.tokens };
  }
}

export class GangStageWorker extends StageWorker {
  static override readonly restart = "group";
  static override readonly resizes = false;
}

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { stages, turns, pipelineStages, batch } = config;
  const names = new Set(Object.values(stages).flatMap(({ takes, puts }) => [...takes, ...puts]));
  const channels = new Map([...names].map((name) => [name, cluster.channel(name, Item)]));
  const channel = (name: string) => channels.get(name) as Channel<Item>;
  const groups = await Promise.all(
    Object.entries(stages).map(async ([name, stage]) => {
      const { ranks, devicesPerRank, engine } = stage;
      const { residentBytes, cacheBytes, optimiserBytes, residualBytes } = engine;
      const bytes = residentBytes + cacheBytes + optimiserBytes + residualBytes;
      const memoryPerDeviceMiB = bytes > 0 ? bytes / 2 ** 20 : undefined;
      const options = { name, devicesPerRank, memoryPerDeviceMiB, ...(ranks ? { ranks: defined(ranks) } : {}) };
      const workerClass = stage.gang ? GangStageWorker : StageWorker;
      return { stage, group: cluster.launch(workerClass, { ...stage, turns, pipelineStages, batch }, options) };
    }),
  );
  const prompts = channels.get("prompts");
  const dataset = (step: number) => Array.from({ length: batch }, (_, i) => ({ id: `${step}-${step * batch + i}` }));
  for await (const { batch: items } of steps(dataset)) {
    if (prompts) await prompts.put(...items);
    for (const { stage, group } of groups) {
      const sources = stage.takes.map((name) => channel(name).source);
      const sinks = stage.puts.map((name) => channel(name).sink);
      const [source, sink] = [sources[0] as Source<Item>, sinks[0] as Sink<Item>];
      if (stage.work === "simulate") group.simulate(source, sink);
      else if (stage.work === "act") group.act(source, sink, sinks.slice(1));
      else group.flow(sources, sinks);
    }
    report({ items: items.length });
  }
});

const defined = (ranks: NonNullable<Stage["ranks"]>) =>
  Object.fromEntries(Object.entries(ranks).filter(([, value]) => value !== undefined)) as {
    max?: number;
    fixed?: number;
  };
