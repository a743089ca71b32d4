import type { LossSpec, TrainBatch } from "@treadle/contracts";
import type { TransformerEngine } from "@treadle/engines";
import { afterAll, beforeAll, expect, test } from "vitest";
import { wholeOf } from "../src/testing/whole-of.ts";
import { randomBatch, smallTransformer } from "./small-transformer.ts";

const loss: LossSpec = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.3,
  klCoefficient: 0.1,
  entropyCoefficient: 0.01,
  value: { coefficient: 0.5, clip: 0.2 },
};

function part(batch: Required<TrainBatch>, from: number, to: number): Required<TrainBatch> {
  const cut = <T extends Int32Array | Float32Array>(array: T): T =>
    array.slice(from * batch.columns, to * batch.columns) as T;
  return {
    rows: to - from,
    columns: batch.columns,
    tokens: cut(batch.tokens),
    temperatures: (batch.temperatures as Float32Array).slice(from, to),
    weights: cut(batch.weights as Float32Array),
    advantages: cut(batch.advantages as Float32Array),
    oldLogprobs: cut(batch.oldLogprobs as Float32Array),
    refLogprobs: cut(batch.refLogprobs as Float32Array),
    returns: cut(batch.returns as Float32Array),
    oldValues: cut(batch.oldValues as Float32Array),
  };
}

function expectClose(actual: Float32Array, expected: Float32Array) {
  const largest = Math.max(...expected.map(Math.abs));
  const difference = Math.max(...actual.map((value, i) => Math.abs(value - expected[i]!)));
  expect(difference).toBeLessThan(1e-5 * largest);
}

let engine: TransformerEngine;
beforeAll(async () => {
  engine = await smallTransformer({ valueHead: true });
});
afterAll(() => engine.close());

test("splitting a batch over calls leaves the accumulated gradient and the metrics as they are", async () => {
  const batch = randomBatch(11, 6, 21);
  const whole = await engine.forwardBackward(batch, loss);
  const expected = engine.gradients();
  engine.setGradients(new Float32Array(engine.numParameters));
  let total = 0;
  for (const [from, to] of [
    [0, 1],
    [1, 6],
    [6, 11],
  ] as const) {
    total += (await engine.forwardBackward(part(batch, from, to), loss)).loss;
  }
  expect(total).toBeCloseTo(whole.loss, 4);
  expectClose(engine.gradients(), expected);
});

test("two data-parallel ranks that sum their gradients take the same step as one", async () => {
  const batch = randomBatch(8, 6, 22);
  const start = () => smallTransformer({ valueHead: true });
  const one = await start();
  const ranks = [await start(), await start()];
  await one.forwardBackward(batch, loss);
  await ranks[0]!.forwardBackward(part(batch, 0, 3), loss);
  await ranks[1]!.forwardBackward(part(batch, 3, 8), loss);
  const [first, second] = ranks.map((rank) => rank.gradients());
  const reduced = first!.map((value, i) => value + second![i]!);
  const step = { learningRate: 0.01, scale: 0.1, maxGradNorm: 0.5, weightDecay: 0.1 };
  for (const rank of ranks) {
    rank.setGradients(reduced);
    await rank.optimStep(step);
  }
  await one.optimStep(step);
  expect(ranks[0]!.exportWeights()).toEqual(ranks[1]!.exportWeights());
  one.exportWeights().parameters.forEach(({ data }, index) => {
    expectClose(ranks[0]!.exportWeights().parameters[index]!.data, data);
  });
  await Promise.all([one, ...ranks].map((each) => each.close()));
});

test("entries of weight 0 contribute nothing, whatever they hold", async () => {
  const batch = randomBatch(3, 6, 23);
  engine.setGradients(new Float32Array(engine.numParameters));
  await engine.forwardBackward(batch, loss);
  const expected = engine.gradients();
  const extreme = (values: Float32Array, value: number) =>
    values.map((old, i) => (batch.weights[i] === 0 ? value : old));
  engine.setGradients(new Float32Array(engine.numParameters));
  await engine.forwardBackward(
    {
      ...batch,
      oldLogprobs: extreme(batch.oldLogprobs as Float32Array, -1e4),
      refLogprobs: extreme(batch.refLogprobs as Float32Array, 1e4),
      advantages: extreme(batch.advantages as Float32Array, 1e6),
    },
    loss,
  );
  expect(engine.gradients()).toEqual(expected);
});

test("the optimiser's step bounds the scaled gradient's norm and zeroes what was accumulated", async () => {
  const rank = await smallTransformer();
  rank.setGradients(new Float32Array(rank.numParameters).fill(3));
  const { gradNorm } = await rank.optimStep({ learningRate: 0, scale: 0.5, maxGradNorm: 1 });
  expect(gradNorm).toBeCloseTo(1.5 * Math.sqrt(rank.numParameters), 4);
  expect(rank.gradients().every((value) => value === 0)).toBe(true);
  expect(rank.policyVersion).toBe(1);
  await rank.close();
});

test("a gradient that is not a number is refused and leaves the parameters as they are", async () => {
  const rank = await smallTransformer();
  const before = rank.exportWeights();
  rank.setGradients(new Float32Array(rank.numParameters).fill(Number.NaN));
  await expect(rank.optimStep({ learningRate: 0.1 })).rejects.toMatchObject({ code: "engine.diverged" });
  expect(rank.exportWeights()).toEqual(before);
  await rank.close();
});

test("a gradient whose square Adam cannot keep is refused, and one that is bounded trains", async () => {
  const rank = await smallTransformer();
  const before = rank.exportWeights();
  const huge = () => rank.setGradients(new Float32Array(rank.numParameters).fill(1e25));
  huge();
  await expect(rank.optimStep({ learningRate: 0.1 })).rejects.toMatchObject({
    code: "engine.diverged",
    message: expect.stringContaining("maxGradNorm"),
  });
  expect(rank.exportWeights()).toEqual(before);
  huge();
  await rank.optimStep({ learningRate: 0.1, maxGradNorm: 1 });
  rank.setGradients(new Float32Array(rank.numParameters).fill(1));
  const bounded = rank.exportWeights();
  await rank.optimStep({ learningRate: 0.1 });
  const after = rank.exportWeights().parameters;
  expect(after.every(({ data }) => data.every(Number.isFinite))).toBe(true);
  expect(after).not.toEqual(bounded.parameters);
  await rank.close();
});

test.each([
  { options: { learningRate: 1e39, weightDecay: 3 }, code: "engine.invalid-request" },
  { options: { learningRate: 0.1, weightDecay: 1e39 }, code: "engine.invalid-request" },
  { options: { learningRate: 1e30, weightDecay: 1e30 }, code: "engine.diverged" },
])(
  "a step of $options, whose weights float32 cannot hold, is refused and writes nothing",
  async ({ options, code }) => {
    const [rank, fresh] = [await smallTransformer(), await smallTransformer()];
    const before = await wholeOf(rank.save());
    const gradients = new Float32Array(rank.numParameters).fill(1);
    rank.setGradients(gradients);
    await expect(rank.optimStep(options)).rejects.toMatchObject({ code });
    expect(await wholeOf(rank.save())).toEqual(before);
    rank.setGradients(gradients);
    fresh.setGradients(gradients);
    await Promise.all([rank.optimStep({ learningRate: 0.1 }), fresh.optimStep({ learningRate: 0.1 })]);
    expect(rank.exportWeights()).toEqual(fresh.exportWeights());
    await Promise.all([rank.close(), fresh.close()]);
  },
);

test("AdamW moves each parameter by the learning rate on its first step, and matrices decay", async () => {
  const rank = await smallTransformer();
  const before = rank.exportWeights();
  rank.setGradients(Float32Array.from({ length: rank.numParameters }, (_, i) => (i % 2 === 0 ? 0.3 : -0.3)));
  await rank.optimStep({ learningRate: 0.01, weightDecay: 0.5 });
  let offset = 0;
  rank.exportWeights().parameters.forEach(({ data, shape }, index) => {
    data.forEach((value, i) => {
      const old = before.parameters[index]!.data[i]!;
      const decay = shape.length > 1 ? 0.01 * 0.5 * old : 0;
      const direction = (offset + i) % 2 === 0 ? -1 : 1;
      expect(Math.abs(value - (old + direction * 0.01 - decay))).toBeLessThan(1e-5);
    });
    offset += data.length;
  });
  await rank.close();
});
