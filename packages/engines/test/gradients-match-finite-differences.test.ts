import type { LossSpec, TrainBatch, Weights } from "@treadle/contracts";
import { sealWeights, type TransformerEngine } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { referenceLoss, referenceValues } from "./reference-transformer.ts";
import { randomBatch, sequence, smallConfig, smallTransformer } from "./small-transformer.ts";

const policy = (changes: object): LossSpec => ({
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.2,
  klCoefficient: 0,
  entropyCoefficient: 0,
  ...changes,
});

const { refLogprobs: _, temperatures: ____, ...withoutReference } = randomBatch(5, 5, 11);
const { oldLogprobs: __, ...onPolicy } = withoutReference;
const complete = randomBatch(5, 5, 12);
const { returns: ___, ...withoutReturns } = complete;

const cases: [name: string, loss: LossSpec, batch: TrainBatch][] = [
  ["cross-entropy", { type: "cross-entropy" }, onPolicy],
  ["token ratios without old log-probabilities", policy({}), onPolicy],
  ["token ratios, clipped on both sides", policy({}), withoutReference],
  ["token ratios, clipped asymmetrically", policy({ clipLow: 0.1, clipHigh: 0.5 }), withoutReference],
  ["sequence ratios", policy({ ratio: "sequence", clipLow: 0.3, clipHigh: 0.4 }), withoutReference],
  [
    "products of a sequence's ratios",
    policy({ ratio: "sequence-product", clipLow: 0.8, clipHigh: 2 }),
    withoutReference,
  ],
  ["clipped ratios held constant", policy({ surrogate: "cispo", clipLow: 0.1, clipHigh: 0.3 }), withoutReference],
  ["half the square of the log-ratio to the reference", policy({ klCoefficient: 0.3, klEstimator: "k2" }), complete],
  ["cross-entropy at several temperatures", { type: "cross-entropy" }, complete],
  ["dual clip", policy({ clipHigh: 3, dualClip: 1.2 }), withoutReference],
  ["a penalty on divergence from the reference", policy({ klCoefficient: 0.3 }), complete],
  ["an entropy bonus", policy({ entropyCoefficient: 0.2 }), withoutReference],
  [
    "everything at once",
    policy({ ratio: "sequence", clipLow: 0.1, dualClip: 1.3, klCoefficient: 0.1, entropyCoefficient: 0.05 }),
    complete,
  ],
  ["a critic", policy({ value: { coefficient: 0.5, clip: 10 } }), complete],
  ["a critic with clipped values", policy({ value: { coefficient: 0.7, clip: 0.1 } }), complete],
];

function doubles(weights: Weights): Record<string, Float64Array> {
  return Object.fromEntries(weights.parameters.map(({ name, data }) => [name, Float64Array.from(data)]));
}

describe("the gradient of", () => {
  let engine: TransformerEngine;
  beforeAll(async () => {
    engine = await smallTransformer({ valueHead: true });
    // Values start at zero, where a clip to old values would be the only thing to see.
    const { parameters, ...weights } = engine.exportWeights();
    const random = sequence(9);
    const drawn = parameters.map(({ name, shape, data }) => ({
      name,
      shape,
      data: name === "value.projection" ? data.map(() => random() - 0.5) : data,
    }));
    await engine.loadWeights(sealWeights({ ...weights, parameters: drawn }));
  });
  afterAll(() => engine.close());

  test.each(cases)("%s equals finite differences in float64", async (_name, loss, batch) => {
    const weights = engine.exportWeights();
    const reference = doubles(weights);
    engine.setGradients(new Float32Array(engine.numParameters));
    const metrics = await engine.forwardBackward(batch, loss);
    const expected = referenceLoss(smallConfig, reference, batch, loss, reference);
    for (const name of ["loss", "weight", "kl", "entropy", "clipFraction", "valueLoss"] as const) {
      expect(metrics[name], name).toBeCloseTo(expected[name], 3);
    }

    const gradients = engine.gradients();
    const random = sequence(3);
    const step = 1e-5;
    let offset = 0;
    for (const { name, data } of weights.parameters) {
      for (let draw = 0; draw < 2; draw++) {
        const at = Math.floor(random() * data.length);
        const lossAt = (change: number) => {
          const moved = { ...reference, [name]: reference[name]!.slice() };
          moved[name]![at]! += change;
          return referenceLoss(smallConfig, moved, batch, loss, reference).loss;
        };
        const slope = (lossAt(step) - lossAt(-step)) / (2 * step);
        const tolerance = 2e-4 + 2e-3 * Math.abs(slope);
        expect(Math.abs(gradients[offset + at]! - slope), `${name}[${at}] = ${slope}`).toBeLessThan(tolerance);
      }
      offset += data.length;
    }
  });

  test("values are those of the tokens before each token", async () => {
    const reference = doubles(engine.exportWeights());
    const values = await engine.values({ ...complete, weights: undefined });
    const { rows, columns, tokens } = complete;
    for (let row = 0; row < rows; row++) {
      const own = [...tokens.subarray(row * columns, (row + 1) * columns)];
      const expected = [0, ...referenceValues(smallConfig, reference, own).slice(0, -1)];
      expected.forEach((value, t) => {
        expect(values[row * columns + t], `row ${row}, token ${t}`).toBeCloseTo(value, 4);
      });
    }
  });

  test("a model without a value head says so, whatever asks it for values", async () => {
    const bare = await smallTransformer();
    const noHead = { code: "engine.invalid-request", message: expect.stringContaining("valueHead") };
    await expect(bare.values(complete)).rejects.toMatchObject(noHead);
    const critic = policy({ value: { coefficient: 1, clip: 1 } });
    await expect(bare.forwardBackward(complete, critic)).rejects.toMatchObject(noHead);
    await expect(engine.forwardBackward(withoutReturns, critic)).rejects.toMatchObject({
      message: expect.stringContaining("'returns'"),
    });
    await bare.close();
  });

  test("clipping and dual clipping take part in these cases", () => {
    const reference = doubles(engine.exportWeights());
    for (const [name, loss, batch] of cases.filter(([, loss]) => loss.type === "policy-gradient")) {
      const { clipFraction } = referenceLoss(smallConfig, reference, batch, loss, reference);
      if (batch.oldLogprobs) expect(clipFraction, name).toBeGreaterThan(0);
      else expect(clipFraction, name).toBe(0);
    }
  });
});
