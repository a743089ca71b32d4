import type { Plan } from "@treadle/contracts";
import { expect, test } from "vitest";
import { isClearlyMissed, isMissed, judge, type SimulatedPlan, tally } from "../src/comparison/judge.ts";

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

test("each promise has its limit: automatic placement 3 % nearly always and 6 % always, predictions 2 and 5 %, simulations 3 %", () => {
  const at = (mode: Plan["mode"], by: SimulatedPlan["by"], seconds: number, off = 0): SimulatedPlan => ({
    ...measured(0, seconds * (1 + off)),
    ...{ mode, by, stepSeconds: seconds, simulated: { seconds: seconds * (1 + off) } },
  });
  /** within, for `off` of what was measured above the best mode, or of what was said of it */
  const withinOf = (off: number): Record<string, number> => {
    const judged = judge([
      at("temporal", "planned", 1, off),
      at("hybrid", "planned", 2, off),
      at("temporal", "auto", 1 + off),
    ]);
    return Object.fromEntries(tally(judged).map(({ what, within }) => [what, within]));
  };
  const [auto, always, temporal, others, simulated] = [
    "auto within 3 % of the best mode",
    "auto within 6 %",
    "temporal predicted within 2 %",
    "others predicted within 5 %",
    "simulated within 3 %",
  ];
  for (const [off, expected] of [
    [0.019, { [auto!]: 1, [always!]: 1, [temporal!]: 2, [others!]: 1, [simulated!]: 3 }],
    [0.021, { [auto!]: 1, [always!]: 1, [temporal!]: 1, [others!]: 1, [simulated!]: 3 }],
    [0.031, { [auto!]: 0, [always!]: 1, [temporal!]: 1, [others!]: 1, [simulated!]: 1 }],
    [0.051, { [auto!]: 0, [always!]: 1, [temporal!]: 1, [others!]: 0, [simulated!]: 1 }],
    [0.061, { [auto!]: 0, [always!]: 0, [temporal!]: 1, [others!]: 0, [simulated!]: 1 }],
  ] as const)
    expect(withinOf(off)).toEqual(expected);
});
