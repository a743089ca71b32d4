import type { LossSpec, TrainBatch } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { referenceLoss } from "../src/index.ts";

const spec = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.2,
  klCoefficient: 0,
  entropyCoefficient: 0,
} as const satisfies LossSpec;

/** One row; entry 0 is unused as in every batch. */
function row(entries: { weights: number[]; advantages?: number[]; old?: number[]; reference?: number[] }): TrainBatch {
  const array = (values: number[] | undefined) => (values === undefined ? undefined : Float32Array.of(0, ...values));
  return {
    rows: 1,
    columns: entries.weights.length + 1,
    tokens: new Int32Array(entries.weights.length + 1),
    weights: array(entries.weights)!,
    advantages: array(entries.advantages),
    oldLogprobs: array(entries.old),
    refLogprobs: array(entries.reference),
  };
}

const ln = Math.log;
const close = (values: ArrayLike<number>, expected: readonly number[]) =>
  expected.forEach((value, index) => {
    expect(values[index]).toBeCloseTo(value, 6);
  });

describe("the loss by hand", () => {
  test("cross-entropy is the weighted sum of negative log-probabilities", () => {
    // 0.5 · 1 + 2 · 3 = 6.5
    const { metrics, gradient } = referenceLoss(
      { type: "cross-entropy" },
      row({ weights: [0.5, 0, 2] }),
      [9, -1, 9, -3],
    );
    expect(metrics).toEqual({ loss: 6.5, weight: 2.5, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 });
    close(gradient, [0, -0.5, 0, -2]);
  });

  test("inside the clip range the term is the ratio times the advantage", () => {
    // ratio 1.1, advantage 2, weight 0.5: −1.1
    const batch = row({ weights: [0.5], advantages: [2], old: [0] });
    const { metrics, gradient } = referenceLoss(spec, batch, [0, ln(1.1)]);
    expect(metrics.loss).toBeCloseTo(-1.1, 9);
    close(gradient, [0, -1.1]);
  });

  test("without bounds that anything exceeds it is importance sampling alone, of whatever ratio and advantage", () => {
    const number = fc.double({ min: -8, max: 8, noNaN: true }).map(Math.fround);
    fc.assert(
      fc.property(number, number, number, (advantage, old, new_) => {
        const batch = row({ weights: [2], advantages: [advantage], old: [old] });
        const { metrics, gradient } = referenceLoss({ ...spec, clipLow: 1, clipHigh: 1e9 }, batch, [0, new_]);
        const expected = -2 * Math.exp(new_ - old) * advantage;
        expect(Math.abs(metrics.loss - expected)).toBeLessThanOrEqual(1e-9 * Math.abs(expected));
        expect(Math.abs(gradient[1]! - expected)).toBeLessThanOrEqual(1e-9 * Math.abs(expected));
        expect(metrics.clipFraction).toBe(0);
      }),
    );
  });

  test("clips above for good tokens, below for bad ones, each with its own bound", () => {
    // ratio 2 against 1.28 with A = 1; ratio 0.5 against 0.8 with A = −1; ratio 2 with A = −1 is not clipped
    const batch = row({ weights: [1, 1, 1], advantages: [1, -1, -1], old: [0, 0, 0] });
    const asymmetric = { ...spec, clipHigh: 0.28 };
    const { metrics, gradient } = referenceLoss(asymmetric, batch, [0, ln(2), ln(0.5), ln(2)]);
    expect(metrics.loss).toBeCloseTo(-1.28 + 0.8 + 2, 9);
    expect(metrics.clipFraction).toBe(2);
    close(gradient, [0, 0, 0, 2]);
  });

  test("dual clip bounds what a bad token with a large ratio costs", () => {
    // A = −1: ratio 5 costs 3 instead of 5, with no gradient; ratio 2 costs 2
    const batch = row({ weights: [1, 1], advantages: [-1, -1], old: [0, 0] });
    const { metrics, gradient } = referenceLoss({ ...spec, dualClip: 3 }, batch, [0, ln(5), ln(2)]);
    expect(metrics.loss).toBeCloseTo(3 + 2, 9);
    expect(metrics.clipFraction).toBe(1);
    close(gradient, [0, 0, 2]);
  });

  test("a sequence ratio is the geometric mean and its gradient reaches every token", () => {
    // log-ratios ln 1.21 and 0: ratio 1.1; A = 1, weights 0.5: −1.1; each gradient is −(0.5 + 0.5) · 1.1 / 2 = −0.55
    const batch = row({ weights: [0.5, 0, 0.5], advantages: [1, 9, 1], old: [0, 0, 0] });
    const { metrics, gradient } = referenceLoss({ ...spec, ratio: "sequence" }, batch, [0, ln(1.21), 9, 0]);
    expect(metrics.loss).toBeCloseTo(-1.1, 6);
    close(gradient, [0, -0.55, 0, -0.55]);
  });

  test("k3 is the reference's ratio minus one minus its logarithm", () => {
    // ref − new = ln 2: k3 = 2 − 1 − 0.693147 = 0.306853; gradient 0.1 · (1 − 2) = −0.1; A = 0
    const batch = row({ weights: [1], advantages: [0], old: [-1], reference: [ln(2) - 1] });
    const { metrics, gradient } = referenceLoss({ ...spec, klCoefficient: 0.1 }, batch, [0, -1]);
    expect(metrics.kl).toBeCloseTo(0.306853, 6);
    expect(metrics.loss).toBeCloseTo(0.0306853, 6);
    close(gradient, [0, -0.1]);
  });

  test("reports the KL of a reference that the loss does not use", () => {
    const batch = row({ weights: [1], advantages: [0], old: [-1], reference: [ln(2) - 1] });
    const { metrics } = referenceLoss(spec, batch, [0, -1]);
    expect(metrics.kl).toBeCloseTo(0.306853, 6);
    expect(metrics.loss).toBeCloseTo(0, 12);
  });

  test("entropy is rewarded", () => {
    // 2 · (−0.01 · 1.5) = −0.03
    const batch = row({ weights: [2], advantages: [0], old: [-1] });
    const { metrics, entropyGradient } = referenceLoss({ ...spec, entropyCoefficient: 0.01 }, batch, [0, -1], [0, 1.5]);
    expect(metrics.loss).toBeCloseTo(-0.03, 9);
    expect(metrics.entropy).toBeCloseTo(3, 9);
    close(entropyGradient, [0, -0.02]);
  });

  test("a value's error is half its square, and a value that moved past the clip has no slope towards its return", () => {
    // from 0 to 1 with return 0.4: ½ · 0.36 = 0.18, slope 0.6. From 0 to 0.5 with return 2 and clip 0.2: the value as
    // moved is 0.2, ½ · 1.8² = 1.62 > ½ · 1.5², slope 0. Weights 2 and 1, coefficient 0.5: 0.5 · (0.36 + 1.62) = 0.99
    const batch = {
      ...row({ weights: [2, 1], advantages: [0, 0], old: [-1, -1] }),
      returns: Float32Array.of(9, 0.4, 2),
      oldValues: new Float32Array(3),
    };
    const critic = { ...spec, value: { coefficient: 0.5, clip: 0.2 } };
    const { metrics, valueGradient } = referenceLoss(critic, batch, [0, -1, -1], undefined, [9, 1, 0.5]);
    expect(metrics.valueLoss).toBeCloseTo(1.98, 6);
    expect(metrics.loss).toBeCloseTo(0.99, 6);
    close(valueGradient, [0, 0.6, 0]);
  });

  test("without old log-probabilities the batch is on-policy", () => {
    const batch = row({ weights: [1, 1], advantages: [2, -1] });
    const { metrics, gradient } = referenceLoss(spec, batch, [0, -3, -4]);
    expect(metrics.loss).toBe(-1);
    close(gradient, [0, -2, 1]);
  });
});

describe("the loss", () => {
  const values = (min: number, max: number, length: number) =>
    fc.array(fc.double({ min, max, noNaN: true }), { minLength: length, maxLength: length });
  const rows = 2;
  const columns = 4;
  const arbitrary = fc.record({
    ratio: fc.constantFrom("token" as const, "sequence" as const),
    dualClip: fc.constantFrom(undefined, 1.5),
    weights: fc.array(fc.constantFrom(0, 0.25, 1, 1.5), { minLength: rows * columns, maxLength: rows * columns }),
    advantages: values(-2, 2, rows * columns),
    old: values(-3, -0.1, rows * columns),
    reference: values(-3, -0.1, rows * columns),
    new: values(-3, -0.1, rows * columns),
    entropies: values(0, 2, rows * columns),
    returns: values(-1, 1, rows * columns),
    oldValues: values(-1, 1, rows * columns),
    values: values(-1, 1, rows * columns),
  });

  test("has the gradient that central differences see", () => {
    let compared = 0;
    fc.assert(
      fc.property(arbitrary, (given) => {
        const full: LossSpec = {
          ...spec,
          ratio: given.ratio,
          clipHigh: 0.28,
          dualClip: given.dualClip,
          klCoefficient: 0.3,
          entropyCoefficient: 0.05,
          value: { coefficient: 0.7, clip: 0.3 },
        };
        const batch: TrainBatch = {
          rows,
          columns,
          tokens: new Int32Array(rows * columns),
          weights: Float32Array.from(given.weights),
          advantages: Float32Array.from(given.advantages),
          oldLogprobs: Float32Array.from(given.old),
          refLogprobs: Float32Array.from(given.reference),
          returns: Float32Array.from(given.returns),
          oldValues: Float32Array.from(given.oldValues),
        };
        const lossAt = (logprobs: number[], entropies: number[], critic = given.values) =>
          referenceLoss(full, batch, logprobs, entropies, critic);
        const { gradient, entropyGradient, valueGradient } = lossAt(given.new, given.entropies);
        const h = 1e-5;
        const nudge = (array: number[], at: number, by: number) => array.with(at, array[at]! + by);
        for (let entry = 0; entry < rows * columns; entry++) {
          const above = lossAt(nudge(given.new, entry, h), given.entropies);
          const below = lossAt(nudge(given.new, entry, -h), given.entropies);
          // A difference across the kink of a clip is the slope of neither side.
          if (above.metrics.clipFraction === below.metrics.clipFraction) {
            expect(gradient[entry]).toBeCloseTo((above.metrics.loss - below.metrics.loss) / (2 * h), 4);
            compared += 1;
          }
          const more = lossAt(given.new, nudge(given.entropies, entry, h)).metrics.loss;
          const less = lossAt(given.new, nudge(given.entropies, entry, -h)).metrics.loss;
          expect(entropyGradient[entry]).toBeCloseTo((more - less) / (2 * h), 5);
          const higher = lossAt(given.new, given.entropies, nudge(given.values, entry, h));
          const lower = lossAt(given.new, given.entropies, nudge(given.values, entry, -h));
          const slopes = [higher.valueGradient[entry]!, lower.valueGradient[entry]!];
          if (Math.abs(slopes[0]! - slopes[1]!) > 1e-3) continue; // the kink of the clip
          expect(valueGradient[entry]).toBeCloseTo((higher.metrics.loss - lower.metrics.loss) / (2 * h), 4);
        }
      }),
    );
    expect(compared).toBeGreaterThan(500);
  });

  test("is additive over batches, so partial batches accumulate exactly", () => {
    fc.assert(
      fc.property(arbitrary, (given) => {
        const part = (from: number, to: number) => {
          const cut = (array: number[]) => Float32Array.from(array.slice(from * columns, to * columns));
          const batch: TrainBatch = {
            rows: to - from,
            columns,
            tokens: new Int32Array((to - from) * columns),
            weights: cut(given.weights),
            advantages: cut(given.advantages),
            oldLogprobs: cut(given.old),
          };
          return referenceLoss({ ...spec, ratio: given.ratio }, batch, given.new.slice(from * columns, to * columns));
        };
        const whole = part(0, 2);
        const halves = [part(0, 1), part(1, 2)] as const;
        expect(halves[0].metrics.loss + halves[1].metrics.loss).toBeCloseTo(whole.metrics.loss, 9);
        expect([...halves[0].gradient, ...halves[1].gradient]).toEqual([...whole.gradient]);
      }),
    );
  });

  test("never reads entries without weight", () => {
    const batch = row({
      weights: [0, 1],
      advantages: [Number.NaN, 1],
      old: [Number.NaN, -1],
      reference: [Number.NaN, -1],
    });
    const full = { ...spec, ratio: "sequence", klCoefficient: 1, entropyCoefficient: 1 } as const;
    const { metrics, gradient } = referenceLoss(full, batch, [Number.NaN, Number.NaN, -1], [Number.NaN, Number.NaN, 1]);
    expect(metrics).toEqual({ loss: -2, weight: 1, kl: 0, entropy: 1, clipFraction: 0, valueLoss: 0 });
    close(gradient, [0, 0, -1]);
  });

  test("names what a spec needs and a batch lacks", () => {
    const bare = row({ weights: [1] });
    const full = row({ weights: [1], advantages: [1] });
    expect(() => referenceLoss(spec, bare, [0, -1])).toThrow(/no advantages/);
    expect(() => referenceLoss({ ...spec, klCoefficient: 0.1 }, full, [0, -1])).toThrow(/no refLogprobs.*'0.1'/);
    expect(() => referenceLoss({ ...spec, entropyCoefficient: 0.1 }, full, [0, -1])).toThrow(/no entropies/);
    const critic = { ...spec, value: { coefficient: 1, clip: 1 } };
    expect(() => referenceLoss(critic, full, [0, -1], undefined, [0, 0])).toThrow(/no returns/);
    expect(() => referenceLoss(spec, full, [-1])).toThrow(/newLogprobs has '1' entries: allowed is 1 × 2/);
    expect(() => referenceLoss(spec, row({ weights: [-1], advantages: [1] }), [0, -1])).toThrow(/weight '-1'/);
  });
});
