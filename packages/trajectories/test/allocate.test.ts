import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type AllocateAnswer, allocateRollout, interferenceFactor, solveAllocate, solvePlace } from "../src/index.ts";
import { queueAwareFactor } from "../src/rollout/groups.ts";
import { interference } from "./instances.ts";

const problem = fc.record({
  gpus: fc.integer({ min: 1, max: 7 }),
  tokenTime: fc
    .uniqueArray(fc.constantFrom(1, 2, 3, 4), { minLength: 1, maxLength: 3 })
    .chain((degrees) =>
      fc.tuple(...degrees.map((d) => fc.tuple(fc.constant(String(d)), fc.double({ min: 0.1, max: 2, noNaN: true })))),
    )
    .map((pairs) => Object.fromEntries(pairs)),
  F: interference,
  lengths: fc.array(fc.nat(30), { maxLength: 9 }),
  order: fc.constantFrom("sorted" as const, "any" as const),
});
type Allocate = typeof problem extends fc.Arbitrary<infer T> ? T : never;

/** Every sequence of degrees within the budget, each judged by its placement. */
function bruteForce({ gpus, tokenTime, F, lengths, order }: Allocate): number | null {
  let best: number | null = null;
  const degrees = Object.keys(tokenTime).map(Number);
  const visit = (sequence: number[], free: number): void => {
    if (sequence.length > 0) {
      const workers = sequence.map((d) => tokenTime[d]!);
      const { makespan } = solvePlace({ lengths, workers, F }, { method: "dp" });
      if (makespan !== null && (best === null || makespan < best)) best = makespan;
    }
    for (const d of degrees) {
      if (d > free || (order === "sorted" && d > (sequence.at(-1) ?? d))) continue;
      visit([...sequence, d], free - d);
    }
  };
  if (lengths.length === 0) return 0;
  visit([], gpus);
  return best;
}

function expectConsistent(input: Allocate, answer: AllocateAnswer): void {
  if (answer.makespan === null) return;
  const [degrees, sizes] = [answer.degrees!, answer.sizes!];
  expect(degrees.reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(input.gpus);
  if (input.order === "sorted") expect(degrees).toEqual([...degrees].sort((a, b) => b - a));
  const sorted = [...input.lengths].sort((a, b) => b - a);
  let [at, slowest] = [0, 0];
  for (const [j, size] of sizes.entries()) {
    if (size > 0)
      slowest = Math.max(slowest, interferenceFactor(input.F)(size) * sorted[at]! * input.tokenTime[degrees[j]!]!);
    at += size;
  }
  expect(at).toBe(sorted.length);
  expect(slowest).toBe(answer.makespan);
}

describe("allocate", () => {
  test("exact and dp equal the best of every multiset of degrees", () => {
    fc.assert(
      fc.property(problem, (input) => {
        const exact = solveAllocate(input);
        const dp = solveAllocate(input, { method: "dp" });
        expect(exact.makespan).toBe(bruteForce(input));
        expect(dp.makespan).toBe(exact.makespan);
        expectConsistent(input, exact);
        expectConsistent(input, dp);
      }),
      { numRuns: 150 },
    );
  });

  test("annealing is never below the exact makespan, and repeats with its seed", () => {
    fc.assert(
      fc.property(problem, fc.nat(1000), (drawn, seed) => {
        const input = { ...drawn, order: "sorted" as const };
        const answer = solveAllocate(input, { method: "anneal", seed });
        const again = solveAllocate(input, { method: "anneal", seed });
        expect(again).toEqual(answer);
        expectConsistent(input, answer);
        const exact = solveAllocate(input).makespan;
        if (answer.makespan !== null) expect(answer.makespan).toBeGreaterThanOrEqual(exact!);
      }),
      { numRuns: 30 },
    );
  });

  test("the order can be given as a flag", () => {
    const input = { gpus: 3, tokenTime: { 1: 1, 2: 1.5 }, F: { type: "affine", slope: 1 }, lengths: [9, 1, 1, 1] };
    const any = solveAllocate(input, { flags: { order: "any" } });
    expect(any.makespan).toBeLessThanOrEqual(solveAllocate(input).makespan!);
    expect(any).toEqual(solveAllocate({ ...input, order: "any" }));
  });

  test.each([
    [{ tokenTime: { 0: 1 } }, "tokenTime.0: "],
    [{ tokenTime: {} }, "expected at least one degree"],
    [{ gpus: 1.5 }, "gpus: '1.5' is not allowed"],
    [{ order: "up" }, "order: 'up' is not allowed"],
  ])("refuses %j: %s", (wrong, message) => {
    const good = { gpus: 2, tokenTime: { 1: 1 }, F: { type: "affine", slope: 1 }, lengths: [1] };
    try {
      solveAllocate({ ...good, ...wrong });
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      expect(error.message).toContain(message);
    }
  });
});

test("the fewer run beside the longest of a group, the less its interference counts, and none where there is none", () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 5000 }), { minLength: 1, maxLength: 40 });
  const shares = fc.double({ min: 0.02, max: 1, noNaN: true });
  const tokenTime = { 1: 0.018, 2: 0.0115, 4: 0.008 };
  const input = { gpus: 8, tokenTime, maxBatch: 100, robust: 0.2 };
  fc.assert(
    fc.property(lengths, shares, fc.double({ min: 0, max: 0.2, noNaN: true }), (predictions, company, slope) => {
      const F = { type: "affine" as const, slope };
      const degrees = allocateRollout({ ...input, F, predictions, company });
      expect(degrees?.reduce((sum, degree) => sum + degree, 0)).toBeLessThanOrEqual(8);
      const flat = { type: "affine" as const, slope: 0 };
      expect(allocateRollout({ ...input, F: flat, predictions, company })).toEqual(
        allocateRollout({ ...input, F: flat, predictions }),
      );
      const factor = queueAwareFactor(interferenceFactor(F), 100, 0.2, company);
      const whole = queueAwareFactor(interferenceFactor(F), 100, 0.2);
      for (const k of [1, 2, 7, 60, 150, 400]) {
        expect(factor(k)).toBeLessThanOrEqual(whole(k));
        expect(factor(k + 1)).toBeGreaterThanOrEqual(factor(k));
      }
    }),
  );
});
