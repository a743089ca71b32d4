import { isDeepStrictEqual } from "node:util";
import { type Prompt, readMessage } from "@treadle/contracts";
import { createCharacterTokenizer, createRandom, hashString } from "@treadle/learning";
import { RolloutConfig } from "@treadle/workers";
import { z } from "zod";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "../runtime/bench-cluster.ts";
import { EpisodeGroup, Prompt as PromptSchema } from "../runtime/items.ts";
import { ComparedRollout } from "../runtime/workers/rollout-workers.ts";
import { modelInPython, PythonProcess } from "./python-process.ts";
import { medianRound, type Rates } from "./turns.ts";

const Answer = z.strictObject({ seconds: z.number(), made: z.array(z.array(z.int())) });

const alphabet = "0123456789+-*=abcdefghijklmnop";
const groupSize = 4;
const seed = 3;
const rounds = 5;

type Workload = {
  readonly name: string;
  readonly model: z.input<typeof RolloutConfig>["model"];
  readonly numPrompts: number;
  readonly promptTokens: number;
  readonly maxTokens: number;
  readonly leastRatio?: number;
};

const workloads: readonly Workload[] = [
  {
    // Of 32 about equally likely tokens one ends a completion.
    name: "4 layers of 256, 128 completions of at most 64 tokens, 32 at once",
    model: { vocabSize: 32, layers: 4, width: 256, heads: 4, contextLength: 96, slots: 32 },
    numPrompts: 32,
    promptTokens: 16,
    maxTokens: 64,
    leastRatio: 0.9,
  },
  {
    // So small that what a completion costs on its way is as much as its tokens: no engine for which others wait.
    name: "2 layers of 64, 1024 completions of at most 4 tokens, 256 at once, as reasoning-grpo/torch.yaml has them",
    model: { vocabSize: 32, layers: 2, width: 64, heads: 4, contextLength: 10 },
    numPrompts: 256,
    promptTokens: 6,
    maxTokens: 4,
  },
];

/** Prompts that go through a channel to the rollout worker, and episodes that come back, beside the generator in Python alone. */
export async function* benchTorchRollout(): AsyncIterable<BenchRow> {
  for (const workload of workloads) {
    const { name, leastRatio } = workload;
    const rates = await compare(workload);
    yield row({
      name: `rollout on PyTorch, ${name}`,
      ...medianRound(rates),
      unit: "tokens/s",
      against: "the generator driven directly in Python, with the same weights, prompts and tokens",
      ...(leastRatio === undefined ? {} : { ratioAtLeast: leastRatio }),
      notMeasured: "devices other than the processor, several ranks, tools, other engines on the same cores",
    });
  }
}

async function compare({ model, numPrompts, promptTokens, maxTokens }: Workload): Promise<Rates[]> {
  const config = RolloutConfig.parse({
    ...{ model, engine: { kind: "torch" }, alphabet, groupSize, maxTokens },
    ...{ temperature: 1, reward: { name: "arithmetic" } },
  });
  const prompts = promptsOf(numPrompts, promptTokens);
  const { slots } = config.model;
  await using direct = new PythonProcess("alone.py");
  const generation = {
    slots,
    prompts: prompts.flatMap((prompt) =>
      samples.map((sample) => [hashString(`${prompt.id}/${sample}`), [...prompt.tokens]]),
    ),
    max_tokens: maxTokens,
    stop: [createCharacterTokenizer(alphabet).stopToken],
    seed,
  };
  direct.write(JSON.stringify({ model: modelInPython(config.model), generation }));
  await using bench = await openBenchCluster({
    cluster: { devices: 1 },
    placement: { mode: "temporal" },
    batch: numPrompts,
    seed,
  });
  const { cluster } = bench;
  const rollout = cluster.launch(ComparedRollout, config, { ranks: { fixed: 1 } });
  const source = cluster.channel("prompts", PromptSchema);
  const sink = cluster.channel("groups", EpisodeGroup);
  await cluster.start();
  await direct.line();
  const rates: Rates[] = [];
  for (let round = 0; round <= rounds; round++) {
    cluster.step = round + 1;
    const groups = new Map<string, number[][]>();
    const ms = await timed(async () => {
      await source.put(...prompts);
      const call = rollout.generate(source.source, sink.sink);
      for await (const batch of sink.batches({ items: numPrompts }))
        for (const { promptId, episodes } of batch)
          groups.set(
            promptId,
            episodes.map((episode) => [...episode.tokens.subarray(episode.promptLength)]),
          );
      await call;
    });
    const made = prompts.flatMap(({ id }) => groups.get(id) ?? []);
    direct.write("generate");
    const answer = readMessage(Answer, JSON.parse(await direct.line()));
    if (!isDeepStrictEqual(answer.made, made)) throw new Error("the generator alone has drawn other tokens");
    const tokens = made.reduce((sum, each) => sum + each.length, 0);
    if (round > 0) rates.push({ value: (1000 * tokens) / ms, baseline: tokens / answer.seconds });
  }
  return rates;
}

const samples = Array.from({ length: groupSize }, (_, sample) => sample);

function promptsOf(count: number, length: number): Prompt[] {
  return Array.from({ length: count }, (_, index) => {
    const random = createRandom("torch-rollout").split(index);
    return {
      id: `prompt-${index}`,
      answer: "0",
      tokens: Int32Array.from({ length }, () => 2 + random.integer(14)),
    };
  });
}
