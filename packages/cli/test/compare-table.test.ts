import type { Plan } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { wholeNumber } from "../src/commands/number-flags.ts";
import type { ComparedWorkload } from "../src/comparison/compared-workload.ts";
import type { SimulatedPlan } from "../src/comparison/judge.ts";
import {
  compareTable,
  drawnTable,
  missPromises,
  predictionTable,
  summariseComparison,
} from "../src/view/compare-table.ts";

const plan = (
  mode: Plan["mode"],
  by: SimulatedPlan["by"],
  stepSeconds: number,
  simulated: SimulatedPlan["simulated"],
): SimulatedPlan => ({
  mode,
  by,
  stepSeconds,
  standardError: stepSeconds / 100,
  predictedSeconds: by === "planned" ? 2 : undefined,
  simulated,
  devices: [],
  layout: `${mode} ${by}`,
  lateMs: by === "default" ? 3 : 0.1,
  plan: {} as Plan,
});

const workload: ComparedWorkload = {
  name: "one",
  components: 3,
  profileSeconds: 12,
  profileLateMs: 0.2,
  profile: {} as ComparedWorkload["profile"],
  plans: [
    plan("temporal", "default", 4, { seconds: 4.4 }),
    plan("spatial", "planned", 2, { failure: "step 1 comes to a standstill" }),
    plan("spatial", "auto", 2.02, { seconds: 2 }),
  ],
};

describe("a comparison of modes", () => {
  test("tells of a plan that could not be simulated in its row, and of the others as ever", () => {
    const rows = predictionTable([workload]).split("\n");
    expect(rows.find((row) => row.includes("temporal, default"))).toMatch(/4\.00 s.*± 1\.0 %.*\+10\.0 %/);
    expect(rows.find((row) => row.includes("spatial, planned"))).toMatch(
      /\+0\.0 %.*failed: step 1 comes to a standstill/,
    );
    expect(summariseComparison(workload)).toContain("not simulated: step 1 comes to a standstill");
  });

  test("names the fastest mode, its lead over the next one, and how near automatic placement came", () => {
    expect(compareTable([workload])).toMatch(/2\.02 s \(spatial\).*1\.01.*spatial, 100 ?%/);
  });
});

test("drawn workloads are counted by what keeps within its limit, and what does not is named", () => {
  const failed = { seed: 7, index: 1, configuration: "", failure: "placement.impossible: no plan is possible" };
  const results = [{ seed: 7, index: 0, configuration: "", compared: { ...workload, name: "7-0" } }, failed];
  const table = drawnTable(results);
  expect(missPromises(results)).toBe(true);
  expect(missPromises([failed]), "it did not run").toBe(true);
  expect(missPromises([])).toBe(false);
  const { plans } = workload;
  const kept = [plans[2]!, { ...plans[2]!, by: "default" as const, lateMs: 9 }];
  expect(missPromises([{ ...results[0]!, compared: { ...workload, plans: kept } }])).toBe(false);
  const lateMiss = [kept[0]!, { ...kept[1]!, simulated: { seconds: 3 } }];
  expect(missPromises([{ ...results[0]!, compared: { ...workload, plans: lateMiss } }]), "late ones count").toBe(true);
  expect(table).toContain("1 of 2 workloads ran. 1 of their 3 plans have a prediction.");
  expect(table).toMatch(/auto within 3 % of the best mode \| 95 % \| 1 of 1, 100 % \| 1 of 1, 100 % \| kept/);
  expect(table).toMatch(/auto within 6 % \| all \| 1 of 1, 100 % \| 1 of 1, 100 % \| kept/);
  expect(table).toMatch(/simulated within 3 % \| 90 % \| 1 of 3, 33 % \| 1 of 2, 50 % \| missed/);
  expect(table).toContain("- 7-0: spatial (planned) cannot be simulated: step 1 comes to a standstill");
  expect(table).toContain(
    "- 7-0: temporal (default) is simulated off by 10.0 %, allowed are 3.0 %; timers were 3.0 ms late",
  );
  expect(table).toContain("- 7-1 did not run: placement.impossible: no plan is possible");
});

test("a number of an option is refused with its option, its text and what was allowed", () => {
  expect(wholeNumber("--steps", "8", { least: 1 })).toBe(8);
  for (const text of ["", " ", "eight", "0", "1.5", "1e9", "NaN"])
    expect(() => wholeNumber("--steps", text, { least: 1, most: 10_000 })).toThrow(
      `--steps '${text}' is not allowed: an integer from 1 to 10000 is`,
    );
});
