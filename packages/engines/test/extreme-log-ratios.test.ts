/** However far two policies are apart, and whatever stands where nothing counts, gradients stay finite. */
import { type LossSpec, minTemperature, type TrainBatch } from "@treadle/contracts";
import type { TransformerEngine } from "@treadle/engines";
import { afterAll, beforeAll, expect, test } from "vitest";
import { referenceLoss } from "./reference-transformer.ts";
import { randomBatch, smallConfig, smallTransformer } from "./small-transformer.ts";

let engine: TransformerEngine;
beforeAll(async () => {
  engine = await smallTransformer();
});
afterAll(() => engine.close());

const specs = (["token", "sequence", "sequence-product"] as const).flatMap((ratio) =>
  (["clipped", "dual clip", "cispo"] as const).map((kind): [string, LossSpec] => [
    `${ratio} ratios, ${kind}`,
    {
      type: "policy-gradient",
      ratio,
      surrogate: kind === "cispo" ? "cispo" : "clipped",
      clipLow: 0.2,
      clipHigh: 0.2,
      ...(kind === "dual clip" && { dualClip: 3 }),
      klCoefficient: 0.01,
      entropyCoefficient: 0,
    },
  ]),
);

test.each(specs)("%s, 20, 100 and 800 nats away: the reference's loss, and finite gradients", async (_, spec) => {
  const parameters = engine.exportWeights().parameters;
  const weights = Object.fromEntries(parameters.map(({ name, data }) => [name, Float64Array.from(data)]));
  for (const nats of [-800, -100, -20, 20, 100, 800]) {
    for (const sign of [-1, 1]) {
      const random = randomBatch(4, 5, 21);
      const masked = (array: Float32Array) => array.map((value, i) => (random.weights[i] === 0 ? Number.NaN : value));
      const batch: TrainBatch = {
        ...random,
        advantages: masked((random.advantages as Float32Array).map((advantage) => sign * Math.abs(advantage))),
        oldLogprobs: masked((random.oldLogprobs as Float32Array).map((logprob) => logprob - nats)),
        refLogprobs: masked((random.refLogprobs as Float32Array).map((logprob) => logprob - nats)),
      };
      engine.setGradients(new Float32Array(engine.numParameters));
      const { loss } = await engine.forwardBackward(batch, spec);
      const expected = referenceLoss(smallConfig, weights, batch, spec, weights);
      expect(Math.abs(loss - expected.loss)).toBeLessThan(1e-4 * Math.max(1, Math.abs(expected.loss)));
      expect(engine.gradients().every(Number.isFinite), `${nats} nats, advantages of sign ${sign}`).toBe(true);
    }
  }
});

test.each(["advantages", "oldLogprobs", "refLogprobs", "weights"] as const)(
  "a number of %s that counts and is not finite is refused, and no gradient changes",
  async (name) => {
    engine.setGradients(new Float32Array(engine.numParameters));
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
      const batch = randomBatch(2, 5, 3);
      const at = batch.weights.findIndex((weight) => weight > 0);
      const bad = { ...batch, [name]: (batch[name] as Float32Array).with(at, value) };
      await expect(engine.forwardBackward(bad, specs[0]![1])).rejects.toMatchObject({
        code: "engine.invalid-request",
        message: expect.stringMatching(new RegExp(`'${name}' has '${value}' in row '\\d', column '\\d'`)),
      });
    }
    expect(engine.gradients().every((gradient) => gradient === 0)).toBe(true);
  },
);

test.each([0, -1, 1e-4, 1e-40, Number.NaN, Number.POSITIVE_INFINITY])(
  "temperature %s is refused",
  async (temperature) => {
    const rows = { rows: 1, columns: 2, tokens: Int32Array.of(1, 2), temperatures: Float32Array.of(temperature) };
    await expect(engine.logprobs(rows)).rejects.toMatchObject({ code: "engine.invalid-request" });
  },
);

test("at the smallest temperature, samples and scores are finite and agree", async () => {
  const temperature = minTemperature;
  const sampling = { maxTokens: 3, temperature, stopTokens: [], seed: 1 };
  const [completion] = await engine.generate([Int32Array.of(1, 2)], sampling);
  const tokens = Int32Array.of(1, 2, ...completion!.tokens);
  const rows = { rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) };
  const scored = (await engine.logprobs(rows)).subarray(2);
  completion!.logprobs.forEach((sampled, at) => {
    expect(Number.isFinite(sampled)).toBe(true);
    // A logit's rounding counts a thousandfold.
    expect(Math.abs(scored[at]! - sampled)).toBeLessThan(0.01);
  });
  const colder = { ...sampling, temperature: minTemperature / 10 };
  await expect(engine.generate([Int32Array.of(1, 2)], colder)).rejects.toThrow("temperature");
});
