/** An observed call of a rollout tells the lengths of all that it has sampled, by which estimates are held against measurements. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SglangDouble, tinyWeights, writeTinyModel } from "@treadle/engines/testing";
import { createCharacterTokenizer } from "@treadle/learning";
import { RolloutConfig, RolloutWorker } from "@treadle/workers";
import { expect, onTestFinished, test } from "vitest";
import { runInCall } from "../../packages/runtime/src/author/call/call-context.ts";
import { CallMeter } from "../../packages/runtime/src/author/call/call-meter.ts";
import { contextOf } from "../../packages/workers/test/support/context.ts";
import { streamOf } from "../../packages/workers/test/support/stream.ts";

test("prompts and responses of every episode are summed up", async () => {
  const alphabet = "12+=";
  const tokenizer = createCharacterTokenizer(alphabet);
  const sizes = { vocabSize: tokenizer.vocabularySize, contextLength: 12 };
  const folder = await mkdtemp(join(tmpdir(), "treadle-lengths-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const path = join(folder, "tiny");
  await writeTinyModel(path, sizes, tinyWeights(sizes, 1));
  const double = await new SglangDouble({ model: path }).start();
  onTestFinished(() => double.kill());
  const config = RolloutConfig.parse({
    model: { ...sizes, layers: 1, width: 8, heads: 1 },
    engine: { kind: "sglang", url: double.url, model: path, weightsFolder: folder },
    ...{ alphabet, groupSize: 4, maxTokens: 6, reward: { name: "arithmetic" } },
  });
  const worker = new RolloutWorker(contextOf(config, "rollout"));
  await worker.setup();
  await worker.load();

  const meter = new CallMeter({ idle: () => worker.idle() });
  const texts = ["1+1=", "2+1=1=", "1="];
  const { source, sink, groups } = streamOf([texts.map((id) => ({ id, tokens: tokenizer.encode(id), answer: "2" }))]);
  const { signal } = new AbortController();
  const call = { call: "c", method: "generate", step: 1, signal, timers: {}, meter };
  await runInCall(call, () => worker.generate(source, sink));
  const { sequences } = meter.finish({ onloadMs: 0, offloadMs: 0, memoryBytes: 0 });
  const responses = groups.flatMap(({ episodes }) => episodes.map((each) => each.tokens.length - each.promptLength));
  const logs = responses.map(Math.log);
  expect(responses).toHaveLength(4 * texts.length);
  expect(sequences).toEqual({
    count: responses.length,
    promptTokens: 4 * texts.join("").length,
    logResponse: [1, 2].map((power) =>
      expect.closeTo(
        logs.reduce((sum, log) => sum + log ** power, 0),
        9,
      ),
    ),
    longestResponse: Math.max(...responses),
  });
  await worker.offload();
});
