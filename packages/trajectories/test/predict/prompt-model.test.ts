import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { hazard, upperTail } from "../../src/normal.ts";
import { emptyPromptModel, logLeft, PromptModel } from "../../src/predict/prompt-model.ts";
import { emptyRegression, Regression } from "../../src/predict/regression.ts";
import { normalFrom, seededRandom } from "../../src/random.ts";

const seed = fc.nat(1e9);
const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Several steps of prompts whose means are given, in the logarithm. */
function learned(means: Readonly<Record<string, number>>, sd: number, steps: number, drawn: number): PromptModel {
  const normal = normalFrom(seededRandom(drawn));
  const model = new PromptModel(emptyPromptModel);
  for (let step = 0; step < steps; step++) {
    const sample = (center: number) => Array.from({ length: 8 }, () => Math.expm1(center + sd * normal()));
    model.learn(new Map(Object.entries(means).map(([prompt, center]) => [prompt, sample(center)])));
  }
  return model;
}

const means = { a: 4, b: 5, c: 6, d: 7, e: 8, f: 6, g: 7, h: 5 };

describe("lengths of a prompt's samples", () => {
  test("are learned, between prompts and within one", () => {
    fc.assert(
      fc.property(seed, (drawn) => {
        const model = learned(means, 0.4, 6, drawn);
        for (const [prompt, center] of Object.entries(means)) {
          expect(Math.abs(model.total(prompt).logMean - center)).toBeLessThan(0.5);
        }
        const { withinVariance, betweenVariance } = model.state;
        expect(Math.sqrt(withinVariance)).toBeGreaterThan(0.3);
        expect(Math.sqrt(withinVariance)).toBeLessThan(0.5);
        expect(Math.sqrt(betweenVariance)).toBeGreaterThan(0.7);
        expect(Math.sqrt(betweenVariance)).toBeLessThan(2);
        // One that was never seen may be like any.
        expect(model.total("new").logSd).toBeGreaterThan(2 * model.total("a").logSd);
      }),
      { numRuns: 50 },
    );
  });

  test("follow the policy: when all answers grow, prompts that were not seen since do, too", () => {
    const model = learned(means, 0.2, 6, 1);
    const before = model.total("a").logMean;
    for (let step = 0; step < 10; step++) {
      const grown = Object.entries(means).filter(([prompt]) => prompt !== "a");
      model.learn(new Map(grown.map(([prompt, center]) => [prompt, [Math.expm1(center + 1), Math.expm1(center + 1)]])));
    }
    expect(model.total("a").logMean - before).toBeGreaterThan(0.8);
  });

  test("PG3: siblings that run raise the prediction once they are long, and those that finished tell where it is", () => {
    const model = learned({ a: 6, b: 6.5, c: 5.5 }, 0.5, 6, 2);
    const of = (finished: number[], running: number[]) =>
      model.total("a", { finished: finished.map(Math.log1p), running: running.map(Math.log1p) }).logMean;
    const alone = model.total("a").logMean;
    expect(of([], [1, 1, 1])).toBeCloseTo(alone, 3);
    expect(of([], [2000, 2000, 2000])).toBeGreaterThan(alone + 0.05);
    expect(of([5000, 5000], [])).toBeGreaterThan(alone + 0.05);
    expect(of([30, 30], [])).toBeLessThan(alone - 0.05);
  });

  test("PG3: the short ones finish first, which is not taken for all of them being short", () => {
    const model = learned({ a: 6, b: 6.3, c: 5.7 }, 0.5, 6, 3);
    fc.assert(
      fc.property(seed, (drawn) => {
        const normal = normalFrom(seededRandom(drawn));
        // A quarter of a large group has finished, far from the history of its prompt.
        const totals = Array.from({ length: 400 }, () => Math.expm1(7 + 0.5 * normal())).sort((x, y) => x - y);
        const finished = totals.slice(0, 100);
        const running = totals.slice(100).map(() => finished.at(-1)!);
        const logs = { finished: finished.map(Math.log1p), running: running.map(Math.log1p) };
        const said = model.total("a", logs).logMean;
        expect(Math.abs(said - 7)).toBeLessThan(0.35);
        expect(mean(finished.map(Math.log1p))).toBeLessThan(6.6);
      }),
      { numRuns: 50 },
    );
  });
});

describe("what is left of a length", () => {
  test("is what samples that are longer have on average", () => {
    const normal = normalFrom(seededRandom(4));
    const totals = Array.from({ length: 200_000 }, () => Math.expm1(6 + 0.7 * normal()));
    for (const spent of [0, 100, 400, 1500]) {
      const rests = totals.filter((total) => total > spent).map((total) => Math.log1p(total - spent));
      // Eight quantiles stand for all.
      expect(Math.abs(logLeft({ logMean: 6, logSd: 0.7 }, spent) - mean(rests))).toBeLessThan(0.1);
    }
  });

  test("is finite and positive however far the length is beyond what was expected", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: 12, noNaN: true }),
        fc.double({ min: 0.01, max: 3, noNaN: true }),
        fc.double({ min: 0, max: 1e9, noNaN: true }),
        (logMean, logSd, spent) => {
          const left = logLeft({ logMean, logSd }, spent);
          expect(left).toBeGreaterThanOrEqual(0);
          expect(left).toBeLessThan(60);
        },
      ),
    );
  });
});

test("tails of the normal distribution are accurate where they are small", () => {
  expect(upperTail(0)).toBeCloseTo(0.5, 7);
  for (const [z, tail] of [
    [-1, 0.8413447460685429],
    [1.2815515655446004, 0.1],
    [3, 1.3498980316300933e-3],
    [8, 6.220960574271785e-16],
  ] as const) {
    expect(Math.abs(upperTail(z) / tail - 1)).toBeLessThan(1e-6);
  }
  expect(hazard(0)).toBeCloseTo(Math.sqrt(2 / Math.PI), 6);
  expect(Math.abs(hazard(25) / hazard(25.001) - 1)).toBeLessThan(1e-3);
});

test("a regression finds the weights behind its samples, and one sample that is far off moves it little", () => {
  fc.assert(
    fc.property(seed, (drawn) => {
      const uniform = seededRandom(drawn);
      const normal = normalFrom(uniform);
      const regression = new Regression(emptyRegression(3));
      const sample = (): [number[], number] => {
        const [x, y] = [uniform(), uniform()];
        return [[1, x, y], 0.5 - x + 2 * y + 0.1 * normal()];
      };
      for (let i = 0; i < 3000; i++) regression.learn(...sample(), 1);
      const at = (x: number, y: number) => Math.abs(regression.value([1, x, y]) - (0.5 - x + 2 * y));
      for (const [x, y] of [
        [0, 0],
        [1, 0],
        [0, 1],
        [1, 1],
      ] as const)
        expect(at(x, y)).toBeLessThan(0.25);
      const before = regression.value([1, 0.5, 0.5]);
      regression.learn([1, 0.5, 0.5], 1e9, 1);
      expect(Math.abs(regression.value([1, 0.5, 0.5]) - before)).toBeLessThan(0.01);
    }),
    { numRuns: 20 },
  );
});
