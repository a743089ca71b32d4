import { RunSummary } from "@treadle/contracts";
import { syntheticRun } from "@treadle/dashboard/testing";
import { fold, initialState } from "@treadle/dashboard/view";
import pc from "picocolors";
import { expect, it } from "vitest";
import { renderRun } from "../src/commands/runs.ts";
import { renderSummary } from "../src/view/summary.ts";

const state = syntheticRun({ steps: 60, killedInStep: 30 }).reduce(fold, initialState);

it("has exactly the keys that scripts rely on", () => {
  const summary = RunSummary.parse(state.summary);
  expect(Object.keys(summary)).toEqual([
    "runId",
    "mode",
    "steps",
    "seconds",
    "rewardFirst",
    "rewardLast",
    "evalBefore",
    "evalAtStart",
    "evalAfter",
    "tokensPerSecond",
    "stepSeconds",
    "policyVersion",
    "restarts",
  ]);
  expect(Object.keys(summary.stepSeconds)).toEqual(["mean", "p50", "p95"]);
  expect(RunSummary.safeParse({ ...summary, extra: 1 }).success).toBe(false);
});

it("tells a person what was gained, how fast, and what to type next", () => {
  const text = renderSummary(state, { colour: false });
  expect(text).toMatch(/accuracy +33\.0 % → 81\.0 %/);
  expect(text).toMatch(/reward +0\.31 → 0\.87/);
  expect(text).toMatch(/restarts +1/);
  expect(text).toContain("files       runs/reasoning-grpo-0042");
  expect(text).toMatch(/next\n(.*\n)* {2}treadle dashboard {2,}\S/);
  expect(text).toMatch(/next\n(.*\n)* {2}treadle report reasoning-grpo-0042 {2,}\S/);
  expect(renderSummary(state, { colour: false, runs: "/data/runs" })).toContain("treadle dashboard --runs /data/runs ");
  expect(text).toContain("treadle trace reasoning-grpo-0042  ");
  expect(renderSummary(state, { colour: false, runs: "/data/runs" })).toContain(
    "treadle trace reasoning-grpo-0042 --runs /data/runs ",
  );
});

it("names the export of a model that other tools load, once there is a checkpoint", () => {
  const export_ = "treadle export reasoning-grpo-0042 --to model  ";
  const kept = { ...state, checkpoint: { step: 60, path: "runs/reasoning-grpo-0042/checkpoints/step-000060" } };
  expect(renderSummary(kept, { colour: false, isExportable: true })).toContain(export_);
  expect(renderSummary(kept, { colour: false })).not.toContain("export");
  expect(renderSummary({ ...state, checkpoint: undefined }, { colour: false, isExportable: true })).not.toContain(
    "export",
  );
});

it("tells what was known before training, what came before the first step, and what the steps taught", () => {
  const summary = { ...state.summary!, evalBefore: 0, evalAtStart: 0.206, evalAfter: 0.919 };
  const text = renderSummary({ ...state, summary }, { colour: false });
  expect(text).toMatch(/accuracy +untrained 0\.0 %; before the first step and at the end 20\.6 % → 91\.9 %/);
});

it("lists a run with what was known untrained, before the first step and at the end", () => {
  const summary = { ...state.summary!, mode: "spatial", steps: 60, seconds: 90, evalBefore: 0, evalAtStart: 0.206 };
  const plain = pc.createColors(false);
  expect(renderRun({ runId: "a", summary: { ...summary, evalAfter: 0.919 } }, plain)).toBe(
    "a  spatial, 60 steps, 90 s, accuracy untrained 0.0 %; before the first step and at the end 20.6 % → 91.9 %",
  );
  expect(renderRun({ runId: "a", summary: { ...summary, evalAfter: null } }, plain)).toContain("accuracy not measured");
  expect(renderRun({ runId: "b" }, plain)).toContain("treadle resume b");
});

it("offers to go on with a run that was stopped, and leaves out what was never measured", () => {
  const summary = { ...state.summary!, steps: 20, rewardFirst: null, evalBefore: null };
  const text = renderSummary({ ...state, summary }, { colour: false });
  expect(text).toContain("stopped after step 20 of 60");
  expect(text).toContain("treadle resume reasoning-grpo-0042");
  expect(text).not.toMatch(/accuracy|reward /);
  expect(renderSummary(initialState, { colour: false })).toContain("did not come to an end");
});
