/** Log-ratios however far apart have finite losses and gradients, and nothing that is not finite goes unnoticed. */
import type { LossSpec, TrainBatch } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { referenceLoss } from "../src/index.ts";

const spec: Extract<LossSpec, { type: "policy-gradient" }> = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.2,
  klCoefficient: 0.1,
  entropyCoefficient: 0,
};
const specs = (["token", "sequence", "sequence-product"] as const).flatMap((ratio) =>
  (["clipped", "cispo"] as const).flatMap((surrogate) =>
    (["k2", "k3"] as const).map((klEstimator) => ({ ...spec, ratio, surrogate, klEstimator })),
  ),
);

/** Three tokens of which the second counts for nothing; `new` is 0 everywhere, so a log-ratio is minus the old one. */
const batchOf = (nats: number, advantage: number): TrainBatch => ({
  rows: 1,
  columns: 4,
  tokens: new Int32Array(4),
  weights: Float32Array.of(0, 1, 0, 1),
  advantages: Float32Array.of(0, advantage, Number.NaN, advantage),
  oldLogprobs: Float32Array.of(0, -nats, Number.NaN, -nats),
  refLogprobs: Float32Array.of(0, -nats, Number.POSITIVE_INFINITY, -nats),
});
const now = [Number.NaN, 0, Number.NEGATIVE_INFINITY, 0];

describe.each([20, 100, 800])("%s nats", (nats) => {
  test.each(specs)("finite for $ratio ratios, $surrogate, $klEstimator", (of) => {
    for (const away of [nats, -nats]) {
      for (const advantage of [1, -1]) {
        const { metrics, gradient } = referenceLoss(of, batchOf(away, advantage), now);
        expect(Object.values(metrics).every(Number.isFinite)).toBe(true);
        expect(gradient.every(Number.isFinite)).toBe(true);
      }
    }
  });

  test("count as 20, and move nothing beyond", () => {
    const ratioOnly = { ...spec, klCoefficient: 0 };
    const { metrics, gradient } = referenceLoss(ratioOnly, batchOf(nats, -1), now);
    expect(metrics.loss).toBeCloseTo(2 * Math.exp(20), 3);
    const expected = nats > 20 ? 0 : Math.exp(20);
    expect([...gradient]).toEqual([0, expected, 0, expected]);
    // What is bounded stays bounded: a good token's surrogate, and a bad one's with a dual clip.
    expect(referenceLoss(ratioOnly, batchOf(nats, 1), now).metrics.loss).toBeCloseTo(-2.4, 6);
    expect(referenceLoss({ ...ratioOnly, dualClip: 3 }, batchOf(nats, -1), now).metrics.loss).toBeCloseTo(6, 6);
  });
});

test("a number that counts and is not finite is refused, whichever array has it", () => {
  const names = ["advantages", "oldLogprobs", "refLogprobs", "newLogprobs", "entropies", "weights"] as const;
  fc.assert(
    fc.property(
      fc.constantFrom(...names),
      fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY),
      fc.constantFrom(1, 3),
      (name, value, at) => {
        const spoil = (from: ArrayLike<number>, own: string) =>
          Float32Array.from(from, (kept, entry) => (own === name && entry === at ? value : kept));
        const { advantages, oldLogprobs, refLogprobs, weights, ...rest } = batchOf(1, 1);
        const batch = {
          ...rest,
          weights: spoil(weights, "weights"),
          advantages: spoil(advantages!, "advantages"),
          oldLogprobs: spoil(oldLogprobs!, "oldLogprobs"),
          refLogprobs: spoil(refLogprobs!, "refLogprobs"),
        };
        const score = () => referenceLoss(spec, batch, spoil(now, "newLogprobs"), spoil([0, 1, 1, 1], "entropies"));
        expect(score).toThrow(name === "weights" ? "weight" : `${name} has '${value}' at '${at}'`);
      },
    ),
  );
});
