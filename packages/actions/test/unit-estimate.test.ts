import fc from "fast-check";
import { expect, test } from "vitest";
import { toChoices } from "../src/arrange/choices.ts";
import { type Elastic, elasticOf } from "../src/decide/queued-action.ts";
import { UnitEstimate } from "../src/decide/unit-estimate.ts";

const action = fc
  .tuple(
    fc.uniqueArray(fc.integer({ min: 1, max: 8 }), { minLength: 1, maxLength: 4 }),
    fc.uniqueArray(fc.integer({ min: 1, max: 99 }), { minLength: 4, maxLength: 4 }),
  )
  .map(([units, seconds]): Elastic => {
    const descending = [...seconds].sort((a, b) => b - a);
    return elasticOf(
      "cpu",
      toChoices(
        "a",
        [...units].sort((a, b) => a - b),
        descending.slice(0, units.length),
      ),
    );
  });
const running = fc.array(fc.record({ ends: fc.integer({ min: 1, max: 50 }), units: fc.integer({ min: 1, max: 4 }) }), {
  minLength: 1,
  maxLength: 5,
});

/**
 * Starts each in order as soon as its units are free, and the first running one has ended; every action takes the most units up to
 * the limit.
 */
function listSchedule(
  actions: readonly Elastic[],
  busy: readonly { ends: number; units: number }[],
  idle: number,
  limit: number,
): number {
  const events = [...busy];
  let free = idle;
  let now = Math.min(...busy.map(({ ends }) => ends));
  let sum = 0;
  const capacity = idle + busy.reduce((total, b) => total + b.units, 0);
  for (const { choices } of actions) {
    const allowed = choices.units.filter((u) => u <= limit);
    const at = Math.max(0, allowed.length - 1);
    const units = Math.min(choices.units[at]!, capacity);
    while (free < units && events.length > 0) {
      events.sort((a, b) => a.ends - b.ends);
      const next = events.shift()!;
      now = Math.max(now, next.ends);
      free += next.units;
    }
    const ends = now + choices.seconds[at]!;
    sum += ends;
    free -= units;
    events.push({ ends, units });
  }
  return sum;
}

test("short queues are played exactly, under the common limit that is best for all", () => {
  fc.assert(
    fc.property(
      fc.array(action, { minLength: 1, maxLength: 12 }),
      running,
      fc.integer({ min: 0, max: 6 }),
      (actions, busy, idle) => {
        const capacity = idle + busy.reduce((total, b) => total + b.units, 0);
        const estimate = new UnitEstimate(actions, 0, capacity);
        const times = Float64Array.from(busy, (b) => b.ends);
        const units = Float64Array.from(busy, (b) => b.units);
        const literal = [1, 2, 4, 8].map((limit) => listSchedule(actions, busy, idle, limit));
        const value = estimate.sum(0, times, units, idle, Number.POSITIVE_INFINITY);
        // Limits above the capacity are not tried: nothing could start under them.
        const tried = [1, 2, 4, 8].filter((limit) => limit < 2 * capacity);
        expect(value).toBeGreaterThanOrEqual(Math.min(...literal) - 1e-9);
        expect(value).toBeLessThanOrEqual(Math.min(...literal.slice(0, tried.length)) + 1e-9);
      },
    ),
    { numRuns: 300 },
  );
});

test("the part that is not played keeps within a tenth of playing it, on long queues of like actions", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 200, max: 3000 }),
      fc.integer({ min: 4, max: 64 }),
      fc.integer({ min: 5, max: 50 }),
      (n, capacity, seconds) => {
        const one = elasticOf("cpu", toChoices("a", [1, 2, 4], [seconds, seconds * 0.6, seconds * 0.4]));
        const actions = Array.from({ length: n }, () => one);
        const busy = Array.from({ length: capacity }, (_, i) => ({ ends: ((i + 1) * seconds) / capacity, units: 1 }));
        const estimate = new UnitEstimate(actions, 0, capacity);
        const value = estimate.sum(
          0,
          Float64Array.from(busy, (b) => b.ends),
          Float64Array.from(busy, (b) => b.units),
          0,
          Number.POSITIVE_INFINITY,
        );
        const literal = Math.min(...[1, 2, 4].map((limit) => listSchedule(actions, busy, 0, limit)));
        expect(value / literal).toBeGreaterThan(0.9);
        expect(value / literal).toBeLessThan(1.1);
      },
    ),
    { numRuns: 12 },
  );
});
