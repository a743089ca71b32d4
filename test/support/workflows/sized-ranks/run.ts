/** A rollout whose ranks are sized between steps: one prompt in 48 has long episodes, and always the same. */
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { EmulatedEngine } from "@treadle/engines";
import { hashString } from "@treadle/learning";
import { workflow } from "@treadle/runtime";
import { RolloutConfig, RolloutOrderConfig, RolloutWorker } from "@treadle/workers";
import { z } from "zod";

export const groupSize = 2;
const lengths = { long: 300, short: 8 };

/** By its number, a prompt of every step: the first is the long one. */
const tokensOf = (number: number) => Int32Array.of(number % 10, Math.floor(number / 10));
const idOf = (step: number, number: number) => `${step}.${number}`;
export const promptsOf = (step: number, num: number): Prompt[] =>
  Array.from({ length: num }, (_, number) => ({ id: idOf(step, number), tokens: tokensOf(number), answer: "1" }));
export const tokensOfStep = (batch: number): number => groupSize * (lengths.long + (batch - 1) * lengths.short);

/** One episode at a time, so that nothing which is measured decides. */
const emulated = { slots: 1, tokenTime: { 1: 0.006, 2: 0.0042, 4: 0.0027 } };

export class SizedRolloutWorker extends RolloutWorker {
  static override readonly module: string = import.meta.url;

  /** Of lengths that the prompt has. */
  protected override async createEngine(): Promise<EmulatedEngine> {
    const { vocabSize, contextLength } = this.config.model;
    const keys = Array.from({ length: 1000 }, (_, step) =>
      Array.from({ length: groupSize }, (_, sample) => hashString(`${idOf(step, 0)}/${sample}`)),
    );
    const long = new Set(keys.flat());
    return EmulatedEngine.create(
      { ...emulated, devices: this.devices.ids.length, vocabSize, contextLength },
      {
        ...{ seed: this.seed, rank: this.rank, loaded: false },
        turnTokens: (key) => (long.has(key) ? lengths.long : lengths.short),
      },
    );
  }
}

export default workflow(z.strictObject({ rollout: RolloutOrderConfig }), async ({ cluster, config, steps, report }) => {
  const rollout = cluster.launch(
    SizedRolloutWorker,
    RolloutConfig.parse({
      ...{ model: { vocabSize: 12, layers: 1, width: 8, heads: 1, contextLength: 512 }, alphabet: "0123456789" },
      ...{ groupSize, maxTokens: 500, reward: { name: "arithmetic" }, emulated, ...config.rollout },
    }),
    { name: "rollout" },
  );
  const prompts = cluster.channel("prompts", Prompt);
  const groups = cluster.channel("groups", EpisodeGroup);
  for await (const { index, batch } of steps((step) => promptsOf(step, config.batch))) {
    await prompts.put(...batch);
    report(rollout.generate(prompts.source, groups.sink));
    const made: EpisodeGroup[] = [];
    for await (const some of groups.batches()) made.push(...some);
    const episodes = made.flatMap((group) => group.episodes);
    report({
      groups: made.length,
      // That were asked for in this step, each once.
      prompts: new Set(made.map(({ promptId }) => promptId).filter((id) => id.startsWith(`${index}.`))).size,
      episodes: episodes.length,
      // What two episodes of a prompt share is their prompt alone.
      different: new Set(episodes.map(({ promptId, tokens }) => `${promptId}: ${tokens.join(" ")}`)).size,
      made: episodes.reduce((sum, { tokens, promptLength }) => sum + tokens.length - promptLength, 0),
    });
  }
});
