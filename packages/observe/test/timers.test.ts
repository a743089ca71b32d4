import fc from "fast-check";
import { expect, it } from "vitest";
import { acrossWorkers, quantile, reduce, stepSeconds, Timers } from "../src/index.ts";

it("reduces durations to their figures", () => {
  expect(reduce([3, 1, 2, 4])).toEqual({
    count: 4,
    total: 10,
    mean: 2.5,
    min: 1,
    max: 4,
    p50: 2.5,
    p95: 3.8499999999999996,
  });
  expect(reduce([]).mean).toBe(0);
  expect(stepSeconds([2])).toEqual({ mean: 2, p50: 2, p95: 2 });
});

it("keeps quantiles between the extremes and in order", () => {
  const seconds = fc.array(fc.double({ min: 0, max: 1e6, noNaN: true }), { minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(
      seconds,
      fc.double({ min: 0, max: 1, noNaN: true }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (values, p, q) => {
        const ascending = [...values].sort((a, b) => a - b);
        const [low, high] = p < q ? [p, q] : [q, p];
        expect(quantile(ascending, 0)).toBe(ascending[0]);
        expect(quantile(ascending, 1)).toBe(ascending.at(-1));
        expect(quantile(ascending, low)).toBeLessThanOrEqual(quantile(ascending, high) + 1e-9);
      },
    ),
    { numRuns: 200 },
  );
});

it("keeps totals exact while quantiles forget what is long past", () => {
  const timers = new Timers("actor/0", { windowSize: 4 });
  for (const seconds of [100, 1, 1, 1, 1]) timers.record("train", seconds);
  expect(timers.report().timers.train).toMatchObject({ count: 5, total: 104, max: 100, p95: 1 });
});

it("times a call that throws, and leaves out what is no duration", async () => {
  let ms = 0;
  const timers = new Timers("actor/0", { now: () => ms });
  const failing = timers.time("train", () => {
    ms += 1500;
    throw new Error("no");
  });
  await expect(failing).rejects.toThrow("no");
  timers.record("train", Number.NaN);
  expect(timers.drain()).toMatchObject({ worker: "actor/0", timers: { train: { count: 1, total: 1.5 } } });
  expect(timers.report().timers).toEqual({});
});

it("stops a stopwatch once", () => {
  let ms = 0;
  const timers = new Timers("actor/0", { now: () => ms });
  const stopwatch = timers.start("x");
  ms = 2000;
  expect(stopwatch.stop()).toBe(2);
  ms = 9000;
  expect(stopwatch.stop()).toBe(2);
  expect(timers.report().timers.x?.count).toBe(1);
});

it("tells what a barrier over ranks waits for", () => {
  const reports = [1, 4].map((seconds, rank) => {
    const timers = new Timers(`actor/${rank}`);
    timers.record("train", seconds);
    timers.record("train", seconds);
    return timers.report();
  });
  expect(acrossWorkers(reports, "max")).toEqual({ train: 8 });
  expect(acrossWorkers(reports, "mean")).toEqual({ train: 5 });
});
