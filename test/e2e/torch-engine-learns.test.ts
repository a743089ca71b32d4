/** The shipped workflow on another engine, by configuration alone; skipped where there is no PyTorch. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { lacksTorch } from "../support/torch.ts";

test("reasoning-grpo imitates and learns on PyTorch, generator, scorer and trainer in processes of their own", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-torch-run-"));
  try {
    const workflow = join(projectRoot, "workflows/reasoning-grpo");
    const sizes = ["steps=4", "batch=32", "maxRanks=1", "evaluation.problems=160"];
    // Of few problems this model learns the answers by heart.
    const lessons = ["imitation.problems=3000", "imitation.maxRounds=12", "weightDecay=0.1"];
    const overrides = ["engine.kind=torch", ...sizes, ...lessons, "trace=false"];
    const { summary } = await runWorkflow({ workflow, projectRoot, runsRoot, overrides, onEvent: () => {} });
    expect(summary.evalBefore).toBeLessThanOrEqual(0.05);
    // What the trainer has learnt has reached the generator.
    expect(summary.evalAtStart).toBeGreaterThan(0.1);
    expect(summary.steps).toBe(4);
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
}, 900_000);
