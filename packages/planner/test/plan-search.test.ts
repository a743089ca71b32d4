import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compileModel, evaluateSchedule, modeOf, PlanProblem, type Schedule, solvePlan } from "../src/index.ts";
import { solveFast } from "../src/plan/fast.ts";
import { solveNaive } from "../src/plan/naive.ts";
import { bruteForce } from "./plan-brute-force.ts";
import { type PlanInput, planInputs } from "./plan-instances.ts";

const tolerance = 1e-9;

function expectSameTime(actual: number | null, expected: number | null): void {
  if (actual === null || expected === null || !Number.isFinite(expected)) expect(actual).toBe(expected);
  else expect(Math.abs(actual - expected)).toBeLessThanOrEqual(tolerance * Math.max(1e-12, Math.abs(expected)));
}

/** The answer's schedule is legal, costs what the answer says, and so does every alternative in its mode. */
function expectConsistent(input: PlanInput, answer: ReturnType<typeof solvePlan>): void {
  const model = compileModel(PlanProblem.parse(input));
  const check = (schedule: Schedule, time: number): void => {
    const costed = evaluateSchedule(model, schedule);
    expect(costed.illegal).toBeNull();
    expectSameTime(costed.time, time);
  };
  expect(answer.feasible).toBe(answer.schedule !== null);
  expect(answer.explanation.length).toBeGreaterThan(0);
  if (answer.schedule === null) return;
  check(answer.schedule, answer.time!);
  for (const { mode, schedule, time } of answer.alternatives) {
    expect(modeOf(schedule)).toBe(mode);
    check(schedule, time);
    expect(time).toBeGreaterThanOrEqual(answer.time! * (1 - tolerance));
  }
}

describe("exactness", () => {
  test("naive equals brute force over all schedules", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 3, maxDevices: 4, batches: [1, 2, 4, 6] }), (input) => {
        const answer = solvePlan(input, { method: "naive" });
        const model = compileModel(PlanProblem.parse(input));
        const best = bruteForce(model);
        expectSameTime(answer.time, best.get("any") ?? null);
        for (const mode of ["temporal", "spatial"] as const) {
          const found = answer.alternatives.find((a) => a.mode === mode);
          if (found) expectSameTime(found.time, best.get(mode) ?? null);
          else expect(best.has(mode)).toBe(false);
        }
        expectConsistent(input, answer);
      }),
      { numRuns: 150 },
    );
  });

  test("fast equals naive on larger graphs", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 6, maxDevices: 16, batches: [6, 8, 12] }), (input) => {
        const fast = solvePlan(input);
        expectSameTime(fast.time, solvePlan(input, { method: "naive" }).time);
        expect(fast.stats.exact).toBe(true);
        expectConsistent(input, fast);
      }),
      { numRuns: 60 },
    );
  });

  test("fast equals naive whatever its grid, so that bounds of ranges of splits are put to the test", () => {
    const grids = fc.record({ dense: fc.integer({ min: 1, max: 4 }), ratio: fc.constantFrom(1.3, 2, 100) });
    fc.assert(
      fc.property(planInputs({ maxNodes: 5, maxDevices: 16, batches: [6, 8, 12] }), grids, (input, grid) => {
        const model = compileModel(PlanProblem.parse(input));
        const all = { temporal: true, spatial: true };
        const { time } = solveFast(model, all, () => {}, grid);
        expectSameTime(time, solveNaive(model, all).time);
      }),
      { numRuns: 150 },
    );
  });

  test("fast equals naive on many devices, where bounds cover ranges of splits", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 4, maxDevices: 120, batches: [8, 16] }), (input) => {
        const { pipeline: _, ...binary } = input;
        expectSameTime(solvePlan(binary).time, solvePlan(binary, { method: "naive" }).time);
      }),
      { numRuns: 20 },
    );
  });
});
