import { type EpisodeGroup, TreadleError } from "@treadle/contracts";
import type { TrainingEngine } from "@treadle/engines";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { ActorConfig, ActorWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6, microBatchTokens: 24 };
const groups: EpisodeGroup[] = Array.from({ length: 8 }, (_, prompt) => ({
  promptId: `${prompt}`,
  episodes: [0, 1, 2].map((reward) => makeEpisode({ promptId: `${prompt}`, policyTokens: 3, reward })),
}));
const source = () =>
  ({
    async *batches() {
      yield groups;
    },
  }) as unknown as Source<EpisodeGroup>;

/** An actor of four optimiser steps a call whose `nth` one is refused so; and why it would have ended its process. */
async function actorThatFails(nth: number, error: TreadleError) {
  const config = ActorConfig.parse({ model, learningRate: 0.01, minibatches: 4, algorithm: { name: "grpo" } });
  const reasons: TreadleError[] = [];
  const failProcess = (reason: TreadleError) => reasons.push(reason);
  const worker = new ActorWorker({ ...contextOf(config, "actor"), failProcess });
  await worker.setup();
  const { engine } = worker as unknown as { engine: TrainingEngine };
  const step = engine.optimStep.bind(engine);
  let steps = 0;
  engine.optimStep = async (options) => {
    if (++steps === nth) throw error;
    return step(options);
  };
  return { worker, reasons };
}

const late = new TreadleError("service.failed", "it did not answer in time");

test("a call that fails between two optimiser steps, and will be made again, ends its process first", async () => {
  const { worker, reasons } = await actorThatFails(3, late);
  await expect(worker.train(source())).rejects.toBe(late);
  expect(reasons).toEqual([late]);
});

test("one that fails before the first step, or for good, does not", async () => {
  const before = await actorThatFails(1, late);
  await expect(before.worker.train(source())).rejects.toBe(late);
  const wrong = new TreadleError("learning.invalid-batch", "it is none");
  const forGood = await actorThatFails(3, wrong);
  await expect(forGood.worker.train(source())).rejects.toBe(wrong);
  expect([...before.reasons, ...forGood.reasons]).toEqual([]);
});
