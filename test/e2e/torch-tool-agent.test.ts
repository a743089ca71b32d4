/** The tool agent on PyTorch, by configuration alone; skipped where there is no PyTorch. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readMetrics } from "@treadle/observe";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { lacksTorch } from "../support/torch.ts";

test("tool-agent imitates, calls its tool and trains on PyTorch, from the workflow's own file", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-torch-agent-"));
  try {
    const workflow = join(projectRoot, "workflows/tool-agent");
    const source = await readFile(join(workflow, "run.ts"), "utf8");
    expect(source).not.toMatch(/torch/i); // nothing in it knows of the engine
    const configFile = join(workflow, "torch.yaml");
    const overrides = [
      "steps=3",
      "batch=4",
      "trace=false",
      "evaluation.problems=10",
      "evaluation.validationProblems=20",
    ];
    const { summary } = await runWorkflow({
      workflow,
      configFile,
      projectRoot,
      runsRoot,
      overrides,
      onEvent: () => {},
    });
    expect(summary).toMatchObject({ steps: 3, restarts: 0 });
    // By imitation it has learnt the form of a call, which an untrained policy does not know.
    const steps = readMetrics(join(runsRoot, summary.runId, "metrics.jsonl")).filter(
      (row) => row.toolCalls !== undefined,
    );
    expect(steps).toHaveLength(3);
    for (const { toolUse, toolCalls } of steps) {
      expect(toolUse).toBeGreaterThan(0.5);
      expect(toolCalls).toBeGreaterThanOrEqual(toolUse as number);
    }
    expect(summary.policyVersion).toBeGreaterThanOrEqual(3);
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
}, 900_000);
