/** The shipped workflow on another engine, by configuration alone; skipped where there is no PyTorch. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { childrenOf } from "../support/cluster.ts";
import { projectRoot } from "../support/project.ts";
import { lacksTorch } from "../support/torch.ts";

test("reasoning-grpo imitates and learns on PyTorch, generator, scorer and trainer in processes of their own", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-torch-run-"));
  try {
    const workflow = join(projectRoot, "workflows/reasoning-grpo");
    const configFile = join(workflow, "torch.yaml");
    const overrides = ["steps=20", "trace=false"];
    const { summary } = await runWorkflow({
      workflow,
      configFile,
      projectRoot,
      runsRoot,
      overrides,
      onEvent: () => {},
    });
    const { evalBefore, evalAtStart, evalAfter } = summary;
    expect(evalBefore).toBeLessThanOrEqual(0.05);
    // What the trainer has learnt has reached the generator: by imitation, and then from rewards.
    expect(evalAtStart).toBeGreaterThan(0.1);
    expect(evalAfter).toBeGreaterThan(evalAtStart! + 0.04);
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
}, 900_000);

/** Python processes of engines, however deep below; what they start in turn, and what has not become another program yet, is none. */
function enginesBelow(pid: number): number[] {
  try {
    const engines = childrenOf(pid, "treadle_torch");
    return [
      ...engines,
      ...childrenOf(pid, "").flatMap((child) => (engines.includes(child) ? [] : enginesBelow(child))),
    ];
  } catch {
    return []; // it has ended
  }
}

test("reasoning-grpo in one Python process, by configuration alone, has the results of processes of their own", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const workflow = join(projectRoot, "workflows/reasoning-grpo");
  const run = async (...changed: string[]) => {
    const runsRoot = await mkdtemp(join(tmpdir(), "treadle-torch-run-"));
    const few = ["steps=2", "batch=64", "imitation.maxRounds=1", "imitation.updates=5", "evaluation.everySteps=2"];
    const overrides = [...few, "trace=false", ...changed];
    let numProcesses = 0;
    const count = setInterval(() => {
      numProcesses = Math.max(numProcesses, enginesBelow(process.pid).length);
    }, 100);
    try {
      const settings = { workflow, configFile: join(workflow, "torch.yaml"), projectRoot, runsRoot, overrides };
      const { summary } = await runWorkflow({ ...settings, onEvent: () => {} });
      return { summary, numProcesses };
    } finally {
      clearInterval(count);
      await rm(runsRoot, { recursive: true, force: true });
    }
  };
  const own = await run();
  expect(own.numProcesses).toBe(3);
  for (const mode of ["temporal", "spatial"]) {
    const { summary, numProcesses } = await run("engine.process=shared", `placement.mode=${mode}`);
    expect(numProcesses).toBe(1); // one copy of the weights
    const { policyVersion, evalBefore, evalAtStart, rewardFirst } = own.summary;
    expect(summary).toMatchObject({ policyVersion, evalBefore, restarts: 0 });
    // Up to rounding, which moves a token now and then.
    expect(Math.abs(summary.evalAtStart! - evalAtStart!)).toBeLessThan(0.02);
    expect(Math.abs(summary.rewardFirst! - rewardFirst!)).toBeLessThan(0.02);
  }
}, 900_000);
