import { LearningRateConfig, learningRateAt } from "@treadle/learning";
import fc from "fast-check";
import { expect, test } from "vitest";

const steps = fc.integer({ min: 1, max: 2000 });
const rate = fc.double({ min: 1e-9, max: 1, noNaN: true });
const schedule = fc
  .record({
    peak: rate,
    share: fc.double({ min: 0, max: 1, noNaN: true }),
    decay: fc.constantFrom("linear" as const, "cosine" as const),
    warmupSteps: fc.integer({ min: 0, max: 2500 }),
  })
  .map(({ share, ...rest }) => ({ ...rest, final: rest.peak * share }));

const ratesOf = (config: LearningRateConfig, num: number): number[] =>
  Array.from({ length: num }, (_, index) => learningRateAt(config, index + 1, num));

test("it rises in each step of the warm-up, has its peak in the next, and then falls towards its final value", () => {
  fc.assert(
    fc.property(schedule, steps, (config, num) => {
      const { peak, final, warmupSteps } = LearningRateConfig.parse(config) as typeof config;
      const rates = ratesOf(config, num);
      if (warmupSteps < num) expect(rates[warmupSteps]).toBe(peak);
      for (const [index, each] of rates.entries()) {
        const before = rates[index - 1];
        if (index < warmupSteps) expect(each).toBeCloseTo((peak * (index + 1)) / (warmupSteps + 1), 12);
        else expect(each).toBeGreaterThanOrEqual(final - peak * 1e-12);
        if (before !== undefined)
          expect(index <= warmupSteps ? each - before : before - each).toBeGreaterThanOrEqual(-peak * 1e-12);
      }
    }),
  );
});

test("linear falls by the same in each step, cosine slowly at both ends, and both would reach the final value with the step after the last", () => {
  fc.assert(
    fc.property(schedule, steps, (config, num) => {
      const { peak, final, warmupSteps } = config;
      fc.pre(warmupSteps < num && final < 0.9 * peak); // else the difference is lost in rounding
      expect(learningRateAt(config, num + 1, num)).toBeCloseTo(final, 12);
      const half = (num - warmupSteps) / 2;
      if (Number.isInteger(half))
        expect(learningRateAt(config, warmupSteps + 1 + half, num)).toBeCloseTo((peak + final) / 2, 12);
      const quarter = half / 2;
      if (!Number.isInteger(quarter)) return;
      const fallen = (peak - learningRateAt(config, warmupSteps + 1 + quarter, num)) / (peak - final);
      expect(fallen).toBeCloseTo(config.decay === "linear" ? 0.25 : (1 - Math.SQRT1_2) / 2, 6);
    }),
  );
});

test("a number is the rate of each step", () => {
  fc.assert(
    fc.property(rate, steps, (each, num) => {
      expect(new Set(ratesOf(each, num))).toEqual(new Set([each]));
    }),
  );
});

test.each([
  [{ peak: 0.001, final: 0.002 }, "at most peak"],
  [{ peak: 0 }, "expected number to be >0"],
  [{ peak: 0.1, warmupSteps: -1 }, "expected number to be >=0"],
  [{ peak: 0.1, decay: "step" }, '"linear"|"cosine"'],
  [{ final: 0.1 }, "expected number"],
  [-1, "expected number to be >0"],
])("%j is refused: %s", (config, message) => {
  const { error } = LearningRateConfig.safeParse(config);
  expect(JSON.stringify(error?.issues)).toContain(JSON.stringify(message).slice(1, -1));
});
