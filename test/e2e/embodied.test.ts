import { RunSummary } from "@treadle/contracts";
import { expect, test } from "vitest";
import { temporaryRuns, treadle } from "../support/treadle.ts";

test("a policy learns to balance a pole in a cycle of simulator and policy", async () => {
  await using runs = await temporaryRuns();
  const settings = ["placement.mode=spatial", "steps=9"].flatMap((set) => ["--set", set]);
  const run = await treadle(["run", "workflows/embodied-ppo", "--json", "--runs", runs.path, ...settings]);
  expect(run.code, run.stderr).toBe(0);
  const { rewardFirst, rewardLast, restarts } = RunSummary.parse(JSON.parse(run.stdout));
  expect(restarts).toBe(0);
  expect(rewardLast).toBeGreaterThan(4 * (rewardFirst as number));
}, 120_000);
