/**
 * A rollout of long-tailed lengths: prompts that join their rank's engine as others end, beside chunks that are drained, and
 * beside the engines driven directly. All three have the same tokens to compute.
 */
import { median, type Prompt } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { RolloutConfig } from "@treadle/workers";
import type { z } from "zod";
import { type BenchRow, row, timed } from "./row.ts";
import { openBenchCluster } from "./runtime/bench-cluster.ts";
import { EpisodeGroup, Prompt as PromptSchema } from "./runtime/items.ts";
import { ComparedRollout } from "./runtime/workers/rollout-workers.ts";

type Workload = {
  readonly name: string;
  readonly ranks: number;
  readonly promptsPerRank: number;
  /** under way on a rank at once */
  readonly inFlight: number;
  readonly rollout: z.input<typeof RolloutConfig>;
  /** of chunks that are drained, at least so many times the tokens */
  readonly leastOverDrained?: number;
  readonly rounds: number;
  readonly notMeasured: string;
};

const common = {
  alphabet: "0123456789+-*=abcdefghijklmnop",
  reward: { name: "arithmetic" },
  scheduler: "fcfs",
} as const;

const workloads: readonly Workload[] = [
  {
    // One that is not cut takes as long as 15 of the median, whatever the others do.
    name: "64 emulated engines, 16 places each, lengths of log-sd 0.8, cut at 5 times the median",
    ranks: 64,
    promptsPerRank: 20,
    inFlight: 4,
    leastOverDrained: 2,
    rounds: 1,
    rollout: {
      ...common,
      model: { vocabSize: 32, layers: 1, width: 16, heads: 1, contextLength: 4096 },
      groupSize: 4,
      maxTokens: 120,
      emulated: { slots: 16, decode: { baseSeconds: 0.2 }, response: { medianTokens: 24, spread: 0.8 } },
    },
    notMeasured: "tokens that computing others slows down, caches that run out, engines on other hosts",
  },
  {
    // Of 32 about equally likely tokens one ends a completion.
    name: "2 embedded engines, 16 places each, lengths of log-sd 1.1",
    ranks: 2,
    promptsPerRank: 32,
    inFlight: 4,
    rounds: 3,
    rollout: {
      ...common,
      model: { vocabSize: 32, layers: 4, width: 256, heads: 4, contextLength: 384, slots: 16 },
      groupSize: 4,
      maxTokens: 320,
    },
    notMeasured: "training beside it, policies whose lengths change while they learn",
  },
];

export async function* benchRolloutStream(): AsyncIterable<BenchRow> {
  for (const workload of workloads) yield* compare(workload);
}

async function* compare(workload: Workload) {
  const { name, ranks, promptsPerRank, inFlight, rollout, leastOverDrained, rounds, notMeasured } = workload;
  const numPrompts = ranks * promptsPerRank;
  await using bench = await openBenchCluster({
    cluster: { devices: ranks },
    placement: { mode: "spatial" },
    batch: numPrompts,
    flow: { granularity: inFlight, capacity: numPrompts },
  });
  const { cluster } = bench;
  const group = cluster.launch(ComparedRollout, RolloutConfig.parse(rollout), { ranks: { fixed: ranks } });
  const prompts = cluster.channel("prompts", PromptSchema);
  const groups = cluster.channel("groups", EpisodeGroup);
  await cluster.start();
  const rates: Record<"streamed" | "drained" | "direct", number[]> = { streamed: [], drained: [], direct: [] };
  let step = 0;
  for (let round = 0; round < rounds; round++) {
    const all = promptsOf(round, numPrompts);
    const fed = async (method: "drain" | "generate"): Promise<number> => {
      await prompts.put(...all);
      const made = method === "drain" ? group.drain(prompts.source, groups.sink) : undefined;
      const streamed = method === "generate" ? group.generate(prompts.source, groups.sink) : undefined;
      let numGroups = 0;
      for await (const batch of groups.batches({ items: 16 })) numGroups += batch.length;
      if (numGroups !== numPrompts) throw new Error(`${numGroups} groups came of ${numPrompts} prompts`);
      const tokens = (await made) ?? (await streamed)?.map((metrics) => metrics.tokens) ?? [];
      return tokens.reduce((sum, count) => sum + count, 0);
    };
    const ways = {
      direct: async () => (await group.direct(all)).reduce((sum, count) => sum + count, 0),
      drained: () => fed("drain"),
      streamed: () => fed("generate"),
    };
    let expected: number | undefined;
    for (const way of ["direct", "drained", "streamed"] as const) {
      cluster.step = ++step;
      let tokens = 0;
      const ms = await timed(async () => {
        tokens = await ways[way]();
      });
      expected ??= tokens;
      if (tokens !== expected) throw new Error(`'${way}' has ${tokens} tokens, 'direct' has ${expected}`);
      rates[way].push((1000 * tokens) / ms);
    }
  }
  const value = median(rates.streamed);
  const against = {
    drained: { text: "chunks of as many prompts that are drained", least: leastOverDrained },
    direct: { text: "the engines driven directly, each with an even share", least: 0.95 },
  };
  for (const [way, { text, least }] of Object.entries(against))
    yield row({
      name: `rollout that streams, ${name}`,
      value,
      unit: "tokens/s",
      baseline: median(rates[way as keyof typeof against]),
      against: text,
      ...(least === undefined ? {} : { ratioAtLeast: least }),
      notMeasured,
    });
}

function promptsOf(round: number, count: number): Prompt[] {
  return Array.from({ length: count }, (_, index) => {
    const random = createRandom("rollout-stream").split(round).split(index);
    return {
      id: `prompt-${round}-${index}`,
      answer: "0",
      tokens: Int32Array.from({ length: 4 }, () => 2 + random.integer(14)),
    };
  });
}
