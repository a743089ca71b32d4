import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { EpisodeRecording, RunSummary } from "@treadle/contracts";
import { expect, test } from "vitest";
import { temporaryRuns, treadle } from "../support/treadle.ts";

test("a policy learns to balance a pole in a cycle of simulator and policy, and leaves pictures of it", async () => {
  await using runs = await temporaryRuns();
  const settings = ["placement.mode=spatial", "steps=9", "recordEvery=9"].flatMap((set) => ["--set", set]);
  const run = await treadle(["run", "workflows/embodied-ppo", "--json", "--runs", runs.path, ...settings]);
  expect(run.code, run.stderr).toBe(0);
  const { runId, rewardFirst, rewardLast, restarts } = RunSummary.parse(JSON.parse(run.stdout));
  expect(restarts).toBe(0);
  expect(rewardLast).toBeGreaterThan(4 * (rewardFirst as number));

  const recorded = async (step: string) => {
    const text = await readFile(join(runs.path, runId, "artifacts/episodes", `step-${step}.json`), "utf8");
    return EpisodeRecording.parse(JSON.parse(text));
  };
  const [untrained, trained] = [await recorded("000000"), await recorded("000009")];
  expect(untrained.frames).toHaveLength(untrained.numActions);
  expect(trained.return).toBeGreaterThan(untrained.return);
  expect(trained.policyVersion).toBe(9 * 10 * 8);

  const report = await treadle(["report", runId, "--runs", runs.path]);
  expect(report.code, report.stderr).toBe(0);
}, 600_000);
