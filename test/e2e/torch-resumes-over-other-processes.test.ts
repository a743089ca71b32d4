/** A run goes on with another number of trainer processes, and of ranks, than it began with; skipped where there is no PyTorch. */
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readMetrics } from "@treadle/observe";
import { resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { expect, onTestFinished, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { lacksTorch } from "../support/torch.ts";
import { temporaryRuns, treadle } from "../support/treadle.ts";

test("reasoning-grpo over two processes goes on over three, then in one on two ranks, and each checkpoint is exported", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  await using runs = await temporaryRuns();
  const own = await mkdtemp(join(tmpdir(), "treadle-exported-"));
  onTestFinished(() => rm(own, { recursive: true }));
  const workflow = join(projectRoot, "workflows/reasoning-grpo");
  const common = { projectRoot, runsRoot: runs.path, onEvent: () => {} };
  const small = ["batch=16", "imitation.maxRounds=1", "imitation.updates=2", "imitation.problems=64", "minibatches=1"];
  const seldom = ["evaluation.problems=10", "evaluation.validationProblems=10", "checkpoints.everySteps=1"];
  const first = await runWorkflow({
    ...common,
    workflow,
    configFile: join(workflow, "torch.yaml"),
    overrides: [...small, ...seldom, "trace=false", "steps=1", "engine.shards=2"],
  });
  const { runId, policyVersion = 0 } = first.summary;
  const folder = join(runs.path, runId);
  const filesOf = async (step: number) =>
    (await readdir(join(folder, `checkpoints/step-00000${step}/actor/rank-0`))).sort();
  const goOn = async (...overrides: string[]) => {
    const { summary } = await resumeRun({ ...common, runId, overrides });
    return summary.policyVersion;
  };
  expect(await goOn("steps=2", "engine.shards=3")).toBe(policyVersion + 1);
  expect(await goOn("steps=3", "engine.shards=1", "maxRanks=2")).toBe(policyVersion + 2);
  const parts = (count: number) =>
    Array.from({ length: count }, (_, at) => `engine-0000${at + 1}-of-0000${count}.safetensors`);
  expect(await Promise.all([1, 2, 3].map(filesOf))).toEqual([parts(2), parts(3), ["engine"]]);
  const steps = readMetrics(join(folder, "metrics.jsonl")).map(({ step }) => step);
  expect(steps).toEqual([1, 2, 3]);
  for (const step of ["1", "2", "3"]) {
    const to = ["--runs", runs.path, "--checkpoint", step, "--to", join(own, step)];
    const { code, stdout, stderr } = await treadle(["export", runId, ...to]);
    expect(code, stderr).toBe(0);
    expect(stdout).toContain("config.json, model.safetensors");
  }
}, 600_000);
