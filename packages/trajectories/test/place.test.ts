import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { descendingOrder, type Interference, interferenceFactor, solvePlace } from "../src/index.ts";
import { interference } from "./instances.ts";

const lengths = (maxLength: number) =>
  fc.array(fc.oneof(fc.nat(20), fc.double({ min: 0, max: 50, noNaN: true })), { maxLength });
const workers = fc.oneof(
  fc.integer({ min: 1, max: 4 }),
  fc.array(fc.double({ min: 0.1, max: 3, noNaN: true }), { minLength: 1, maxLength: 4 }),
);

/** Every assignment of every trajectory to every worker, contiguous or not; null when none is allowed. */
function bruteForce(values: readonly number[], tokenTimes: readonly number[], F: (k: number) => number): number | null {
  let best: number | null = null;
  const groups = tokenTimes.map(() => ({ size: 0, longest: 0 }));
  const assign = (i: number): void => {
    if (i < values.length) {
      for (const group of groups) {
        const { size, longest } = group;
        group.size++;
        group.longest = Math.max(longest, values[i]!);
        assign(i + 1);
        group.size = size;
        group.longest = longest;
      }
      return;
    }
    let makespan = 0;
    for (const [j, { size, longest }] of groups.entries()) {
      if (size === 0) continue;
      const factor = F(size);
      if (factor === Number.POSITIVE_INFINITY) return;
      makespan = Math.max(makespan, factor * longest * tokenTimes[j]!);
    }
    if (best === null || makespan < best) best = makespan;
  };
  assign(0);
  return best;
}

const timesOf = (value: number | readonly number[]): number[] =>
  typeof value === "number" ? new Array<number>(value).fill(1) : [...value];

describe("place", () => {
  test("on equal workers the contiguous optimum is the optimum over all assignments", () => {
    fc.assert(
      fc.property(lengths(6), fc.integer({ min: 1, max: 3 }), interference, (values, count, F) => {
        expect(solvePlace({ lengths: values, workers: count, F }).makespan).toBe(
          bruteForce(values, timesOf(count), interferenceFactor(F)),
        );
      }),
      { numRuns: 200 },
    );
  });

  test("exact equals Formula 3 to the last bit, and its sizes give its makespan", () => {
    fc.assert(
      fc.property(lengths(24), workers, interference, (values, of, F) => {
        const exact = solvePlace({ lengths: values, workers: of, F });
        const dp = solvePlace({ lengths: values, workers: of, F }, { method: "dp" });
        expect([exact.feasible, exact.makespan]).toEqual([dp.feasible, dp.makespan]);
        for (const { sizes, makespan } of [exact, dp]) {
          if (sizes === null) continue;
          const sorted = Float64Array.from(values).sort().reverse();
          const factor = interferenceFactor(F);
          let [at, slowest] = [0, 0];
          for (const [j, size] of sizes.entries()) {
            if (size > 0) slowest = Math.max(slowest, factor(size) * sorted[at]! * timesOf(of)[j]!);
            at += size;
          }
          expect(at).toBe(values.length);
          expect(slowest).toBe(makespan);
        }
      }),
      { numRuns: 400 },
    );
  });

  test("a factor that falls somewhere goes to the dynamic program, which is right for it", () => {
    const F = { type: "table", values: [3, 1], extend: "none" };
    const answer = solvePlace({ lengths: [5, 5], workers: 2, F });
    expect([answer.makespan, answer.stats.method]).toEqual([5, "dp"]);
  });

  test("says infeasible when no worker may hold more", () => {
    const answer = solvePlace({ lengths: [3, 2, 1], workers: 2, F: { type: "affine", slope: 0, max: 1 } });
    expect(answer).toMatchObject({ feasible: false, makespan: null, sizes: null });
  });

  test("an empty batch takes no time", () => {
    expect(solvePlace({ lengths: [], workers: 2, F: { type: "affine", slope: 1 } })).toMatchObject({
      makespan: 0,
      sizes: [0, 0],
    });
  });

  test.each([
    [{ lengths: [1, -2] }, "lengths[1]: '-2' is not allowed: expected a finite number of at least 0"],
    [{ lengths: "x" }, "lengths: 'x' is not allowed: expected an array of lengths"],
    [{ workers: 0 }, "workers: '0' is not allowed"],
    [{ workers: [1, 0] }, "workers[1]: '0' is not allowed"],
    [{ F: { type: "affine", slope: -1 } }, "F.slope: '-1' is not allowed"],
    [{ F: { type: "affine", slop: 1 } }, "F.slop: the key is not known"],
    [{ F: { type: "cubic" } }, "F.type: 'cubic' is not allowed"],
  ])("refuses %j: %s", (wrong, message) => {
    const good = { lengths: [1], workers: 1, F: { type: "affine", slope: 1 } };
    try {
      solvePlace({ ...good, ...wrong });
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      expect(error.code).toBe("problem.invalid");
      expect(error.message).toContain(message);
    }
  });
});

test("the order is by descending length, ties by index, for whole and broken lengths", () => {
  fc.assert(
    fc.property(fc.oneof(fc.array(fc.nat(9)), lengths(30)), (values) => {
      const expected = values.map((_, i) => i).sort((a, b) => values[b]! - values[a]! || a - b);
      expect([...descendingOrder(values)]).toEqual(expected);
    }),
  );
});

test("factors follow their definitions", () => {
  const at = (F: Interference, ...ks: number[]) => ks.map(interferenceFactor(F));
  expect(at({ type: "affine", slope: 0.5 }, 1, 3)).toEqual([1, 2]);
  expect(at({ type: "power", slope: 0.5, exponent: 2 }, 1, 3)).toEqual([1, 3]);
  expect(at({ type: "roofline", knee: 3, low: 0.1, high: 1 }, 1, 3, 5)).toEqual([1, 1.2, 3.2]);
  const table = { type: "table" as const, values: [1, 1.5, 2.5] };
  expect(at({ ...table, extend: "linear" }, 1, 3, 5)).toEqual([1, 2.5, 4.5]);
  expect(at({ ...table, extend: "clamp" }, 5)).toEqual([2.5]);
  expect(at({ ...table, extend: "none" }, 5)).toEqual([Number.POSITIVE_INFINITY]);
  expect(at({ type: "affine", slope: 0.5, max: 2 }, 2, 3)).toEqual([1.5, Number.POSITIVE_INFINITY]);
});
