/** What the main jobs promise, with the configurations that ship; how few problems are shown is a test of `learning`. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

let runsRoot: string;
beforeEach(async () => {
  runsRoot = await mkdtemp(join(tmpdir(), "treadle-promise-"));
});
afterEach(() => rm(runsRoot, { recursive: true, force: true }));

const train = async (name: string) => {
  const workflow = fileURLToPath(new URL(`../../workflows/${name}`, import.meta.url));
  const overrides = ["evaluation.everySteps=1000", "checkpoints.everySteps=1000", "trace=false"]; // only at the end
  const { summary } = await runWorkflow({ workflow, projectRoot, runsRoot, overrides, onEvent: () => {} });
  return summary;
};

test.each([
  ["reasoning-grpo", 90],
  ["tool-agent", 80], // of seeds that ended at 90 to 100
])(
  "after imitation %s solves at most 35 in a hundred held-out problems, and rewards teach it the others to %i in a hundred",
  async (name, percent) => {
    const { evalBefore, evalAtStart, evalAfter } = await train(name);
    expect(evalBefore).toBeLessThanOrEqual(0.05);
    expect(evalAtStart).toBeLessThanOrEqual(0.35);
    expect(evalAfter).toBeGreaterThanOrEqual(percent / 100);
  },
  900_000,
);
