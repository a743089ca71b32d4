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
