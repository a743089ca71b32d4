import type { Plan } from "@treadle/contracts";
import { expect, test } from "vitest";
import { isClearlyMissed, isMissed, judge, type SimulatedPlan } from "../src/comparison/judge.ts";

const measured = (standardError: number, predictedSeconds: number): SimulatedPlan => ({
  ...{ mode: "temporal", by: "planned", plan: {} as Plan, devices: [], layout: "one", lateMs: 0 },
  ...{ stepSeconds: 1, standardError, predictedSeconds, simulated: { seconds: 1 } },
});
const judgedOf = (plan: SimulatedPlan) => judge([plan]).filter(({ of }) => of === "predicted");

test("what is made smaller misses a limit by more than the measurement is uncertain", () => {
  // 2 % are allowed of temporal plans.
  const [near] = judgedOf(measured(0.01, 1.04));
  const [far] = judgedOf(measured(0.01, 1.06));
  const [sure] = judgedOf(measured(0.001, 1.04));
  expect([near, far, sure].map((one) => isMissed(one!))).toEqual([true, true, true]);
  expect([near, far, sure].map((one) => isClearlyMissed(one!))).toEqual([false, true, true]);
});

test("what cannot be simulated is missed, however well it is measured", () => {
  const plan = { ...measured(0.5, 1), simulated: { failure: "it stands still" } };
  const [, simulated] = judge([plan]);
  expect(isClearlyMissed(simulated!)).toBe(true);
});
