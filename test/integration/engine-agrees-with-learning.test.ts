/** The engine's loss and the formulas of `learning`, which may not import one another, are the same function. */
import type { LossSpec, TrainBatch } from "@treadle/contracts";
import { TransformerEngine } from "@treadle/engines";
import { createAlgorithm, createRandom, referenceLoss } from "@treadle/learning";
import { afterAll, beforeAll, expect, test } from "vitest";

const rows = 4;
const columns = 8;
let engine: TransformerEngine;

beforeAll(async () => {
  engine = await TransformerEngine.create({
    vocabSize: 7,
    layers: 1,
    width: 8,
    heads: 2,
    valueHead: true,
    contextLength: columns,
  });
});
afterAll(() => engine.close());

async function randomBatch(seed: number): Promise<{
  batch: TrainBatch;
  newLogprobs: Float32Array;
  newValues: Float32Array;
}> {
  const random = createRandom(seed);
  const size = rows * columns;
  const tokens = Int32Array.from({ length: size }, () => random.integer(7));
  const newLogprobs = await engine.logprobs({ rows, columns, tokens });
  const newValues = await engine.values({ rows, columns, tokens });
  const near = () => newLogprobs.map((logprob) => logprob + (random.float() - 0.5));
  const weights = Float32Array.from({ length: size }, (_, at) =>
    at % columns === 0 || random.float() < 0.3 ? 0 : random.float(),
  );
  const advantages = Float32Array.from({ length: size }, () => random.float() * 4 - 2);
  return {
    batch: {
      rows,
      columns,
      tokens,
      weights,
      advantages,
      oldLogprobs: near(),
      refLogprobs: near(),
      returns: advantages.map((advantage) => advantage / 2),
      oldValues: newValues.map((value) => value + (random.float() - 0.5)),
    },
    newLogprobs,
    newValues,
  };
}

const specs: [string, LossSpec][] = [
  ["grpo", createAlgorithm({ name: "grpo", kl: { placement: "loss", coefficient: 0.1 } }).loss],
  ["dapo", createAlgorithm({ name: "dapo" }).loss],
  ["gspo", createAlgorithm({ name: "gspo", clipLow: 0.1, clipHigh: 0.2 }).loss],
  ["ppo with a dual clip", createAlgorithm({ name: "ppo", dualClip: 2 }).loss],
];

test.each(specs)("the loss of %s is the same number in both", async (_, spec) => {
  for (let seed = 0; seed < 5; seed++) {
    const { batch, newLogprobs, newValues } = await randomBatch(seed);
    const ofEngine = await engine.forwardBackward(batch, spec);
    const { metrics } = referenceLoss(spec, batch, newLogprobs, undefined, newValues);
    for (const name of ["loss", "weight", "kl", "clipFraction", "valueLoss"] as const) {
      expect(ofEngine[name], `${name} of seed ${seed}`).toBeCloseTo(metrics[name], 3);
    }
  }
});
