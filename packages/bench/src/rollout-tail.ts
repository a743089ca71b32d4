/**
 * Steps of long-tailed lengths on emulated engines: what a step gains that ends its longest episodes early, or plays them in steps
 * of their own, beside one that waits for them. Each way has the same prompts; with `batch` and `carry` all of them are played to
 * their end, those which wait after the last step in one more.
 */
import type { EpisodeGroup as Group, Prompt } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { leavesPrompts, promptsOfStep, RolloutConfig } from "@treadle/workers";
import type { z } from "zod";
import { type BenchRow, row, timed } from "./row.ts";
import { openBenchCluster } from "./runtime/bench-cluster.ts";
import { EpisodeGroup, Prompt as PromptSchema } from "./runtime/items.ts";
import { ComparedRollout } from "./runtime/workers/rollout-workers.ts";

const ranks = 8;
const numWanted = 8 * ranks;
const numSteps = 8;

type Tail = Pick<z.input<typeof RolloutConfig>, "tail" | "oversample">;

const usual = {
  alphabet: "0123456789+-*=abcdefghijklmnop",
  reward: { name: "arithmetic" },
  scheduler: "fcfs",
  model: { vocabSize: 32, layers: 1, width: 16, heads: 1, contextLength: 4096 },
  groupSize: 4,
  maxTokens: 400,
  // A place for everything that begins; each of them slows the others down.
  emulated: {
    slots: 64,
    decode: { baseSeconds: 0.004, unitSeconds: 0.00004 },
    response: { medianTokens: 30, spread: 0.8 },
  },
} as const;

type Played = { readonly groupsPerSecond: number; readonly meanLength: number; readonly numLateSteps: number };

export async function* benchRolloutTail(): AsyncIterable<BenchRow> {
  const wait = await play({});
  const ways = [
    ["cut, 1.25 samples for one", { tail: "cut", oversample: { samples: 1.25 } }],
    ["batched, 1.25 prompts for one", { tail: "batch", oversample: { prompts: 1.25 } }],
    ["carried, 1.25 prompts for one", { tail: "carry", oversample: { prompts: 1.25 } }],
  ] as const;
  for (const [text, tail] of ways) {
    const { groupsPerSecond, meanLength, numLateSteps } = await play(tail);
    const name = `rollout of ${numSteps} steps on ${ranks} emulated engines, lengths of log-sd 0.8, tail ${text}`;
    const common = { baseline: wait.groupsPerSecond, against: "the same, which waits for its longest episodes" };
    const steps = numLateSteps > 0 ? `; '${numLateSteps}' steps had late prompts` : "";
    yield row({
      ...common,
      name,
      value: groupsPerSecond,
      unit: "groups/s",
      ratioAtLeast: 1,
      notMeasured: `what is learnt of them, training beside it, weights that change while prompts wait${steps}`,
    });
    yield row({
      ...common,
      name: `${name}: mean length of what is trained`,
      value: meanLength,
      unit: "tokens",
      baseline: wait.meanLength,
      notMeasured: "lengths that depend on the prompt, or change while a policy learns",
    });
  }
}

/** All steps, on ranks of their own. */
async function play(tail: Tail): Promise<Played> {
  await using bench = await openBenchCluster({
    cluster: { devices: ranks },
    placement: { mode: "spatial" },
    batch: numWanted,
    // All that a rank may take at once.
    flow: { granularity: Math.ceil((1.25 * numWanted) / ranks), capacity: 2 * numWanted },
  });
  const { cluster } = bench;
  const config = RolloutConfig.parse({ ...usual, ...tail });
  const group = cluster.launch(ComparedRollout, config, { ranks: { fixed: ranks } });
  const prompts = cluster.channel("prompts", PromptSchema);
  const groups = cluster.channel("groups", EpisodeGroup);
  const late = leavesPrompts(config) ? cluster.channel("late", PromptSchema) : undefined;
  await cluster.start();
  let waiting: Prompt[] = [];
  const made: Group[] = [];
  const playStep = async (batch: readonly Prompt[]) => {
    await prompts.put(...batch);
    const generated = group.generate(prompts.source, groups.sink, late?.sink);
    const deferred = (async () => {
      for await (const some of late?.batches() ?? []) waiting.push(...some.filter(({ cut }) => !cut));
    })();
    for await (const some of groups.batches()) made.push(...some);
    await Promise.all([generated, deferred]);
  };
  let numLateSteps = 0;
  const given = new Set<string>();
  let ms = 0;
  for (let step = 1; step <= numSteps || waiting.length > 0; step++) {
    const carried = { items: waiting, numSteps: numLateSteps, numGiven: given.size };
    const batch = step <= numSteps ? await promptsOfStep(config, numWanted, { step, carried }, promptsOf) : waiting;
    if (batch[0]?.isLate) numLateSteps++;
    for (const { id } of batch) given.add(id);
    waiting = waiting.filter((prompt) => !batch.includes(prompt));
    cluster.step = step;
    ms += await timed(() => playStep(batch));
  }
  const lengths = made.flatMap(({ episodes }) =>
    episodes.map(({ tokens, promptLength }) => tokens.length - promptLength),
  );
  const meanLength = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  return { groupsPerSecond: (1000 * made.length) / ms, meanLength, numLateSteps };
}

function promptsOf(round: number, count: number): Prompt[] {
  return Array.from({ length: count }, (_, index) => {
    const random = createRandom("rollout-tail").split(round).split(index);
    return {
      id: `prompt-${round}-${index}`,
      answer: "0",
      tokens: Int32Array.from({ length: 4 }, () => 2 + random.integer(14)),
    };
  });
}
