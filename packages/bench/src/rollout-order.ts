import { deepStrictEqual } from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import { type Completion, median, type Prompt } from "@treadle/contracts";
import { TransformerEngine } from "@treadle/engines";
import { createRandom, hashString } from "@treadle/learning";
import { EpisodeOrder, type Scheduler } from "@treadle/trajectories";
import { CallOrder } from "@treadle/workers";
import { type BenchRow, row, timed } from "./row.ts";

const shape = { vocabSize: 16, layers: 2, width: 128, heads: 4, contextLength: 384, slots: 16 };
const numPrompts = 48;
const groupSize = 4;
const maxTurns = 24;
/** of 16 about equally likely tokens two end a turn */
const stopTokens = [0, 1];
const schedulers = ["fcfs", "rr", "pps", "time"] as const satisfies readonly Scheduler[];

/** One sample of a prompt: how often it calls its tool is the script's; what it says, the model's. */
type Episode = { readonly prompt: Prompt; readonly sample: number; readonly turns: number; readonly toolMs: number };

/** Numbers of turns with a heavy tail over prompts, and samples of a prompt alike but not equal. */
function episodesOf(round: number): Episode[] {
  return Array.from({ length: numPrompts }, (_, index) => {
    const fixed = createRandom("rollout-order").split(index);
    const turns = (1 - fixed.float()) ** (-1 / 1.1);
    const toolMs = 4 / (1 - 0.9 * fixed.float());
    const tokens = Int32Array.from({ length: 8 }, () => fixed.integer(shape.vocabSize));
    const prompt: Prompt = { id: `prompt-${index}`, tokens };
    return Array.from({ length: groupSize }, (_, sample): Episode => {
      const noise = Math.exp(
        0.6 * (createRandom("rollout-order").split(index).split(`${round}/${sample}`).float() - 0.5),
      );
      return { prompt, sample, turns: Math.max(1, Math.min(maxTurns, Math.round(turns * noise))), toolMs };
    });
  }).flat();
}

/** One rollout of a rank, as a rollout worker asks for it: with `fcfs` nobody orders, and each keeps its place. */
async function rollOut(engine: TransformerEngine, episodes: readonly Episode[], seed: number, order?: EpisodeOrder) {
  const prompts = episodes.map(({ prompt }) => prompt);
  const call = order && new CallOrder(order, prompts, { places: shape.slots, step: seed });
  const numTurns = episodes.map(() => 1);
  return engine.generate(
    prompts.map(({ tokens }) => tokens),
    { maxTokens: 320, temperature: 1, stopTokens, seed },
    {
      keys: episodes.map(({ prompt, sample }) => hashString(`${prompt.id}/${sample}`)),
      order: call?.options,
      extend: async (index, completion) => {
        const { turns, toolMs } = episodes[index] as Episode;
        call?.turnEnded(index, completion);
        if (numTurns[index] === turns) return undefined;
        numTurns[index] = (numTurns[index] as number) + 1;
        const seconds = (await timed(() => delay(toolMs))) / 1000;
        call?.toolEnded(index, { toolSeconds: seconds, hasToolFailed: false, observedTokens: 2 });
        return Int32Array.of(3, 4);
      },
      onCompletion: (index, completion) => call?.ended(index, completion),
    },
  );
}

/**
 * A rollout step of 192 episodes of heavy-tailed length on 16 places of the embedded engine, ordered in each way in turn. All
 * of them have the same tokens, or the measurement fails.
 */
export async function* benchRolloutOrder(rounds = 7): AsyncIterable<BenchRow> {
  const learnRounds = 3;
  const engine = await TransformerEngine.create(shape);
  const orders = new Map<Scheduler, EpisodeOrder>();
  for (const scheduler of schedulers.slice(1))
    orders.set(scheduler, new EpisodeOrder({ scheduler, predictor: "learned" }));
  const taken = new Map<Scheduler, number[]>(schedulers.map((scheduler) => [scheduler, []]));
  for (let round = 0; round < learnRounds + rounds; round++) {
    const episodes = episodesOf(round);
    let expected: Completion[] | undefined;
    for (const scheduler of schedulers) {
      const order = orders.get(scheduler);
      let completions: Completion[] = [];
      const ms = await timed(async () => {
        completions = await rollOut(engine, episodes, round, order);
        order?.learn();
      });
      const tokens = completions.reduce((sum, completion) => sum + completion.tokens.length, 0);
      if (order) order.tokenSeconds = (ms / 1000) * (shape.slots / tokens);
      if (round >= learnRounds) taken.get(scheduler)?.push(ms);
      expected ??= completions;
      deepStrictEqual(completions, expected, `'${scheduler}' has other tokens than 'fcfs'`);
    }
  }
  await engine.close();
  const names = {
    rr: "lending a place while a tool works, alone",
    pps: "and the longest first, by tokens",
    time: "and the longest first, by time",
  };
  const baseline = median(taken.get("fcfs") ?? []);
  for (const [scheduler, name] of Object.entries(names) as [keyof typeof names, string][]) {
    yield row({
      name: `long-tailed rollout, ${scheduler}: ${name}`,
      value: median(taken.get(scheduler) ?? []),
      unit: "ms",
      baseline,
      against: "fcfs, where each episode keeps its place",
      notMeasured: "other ranks, training, and policies whose lengths change while they learn",
    });
  }
}
