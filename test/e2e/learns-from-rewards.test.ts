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

const train = async (name: string, overrides: readonly string[]) => {
  const workflow = fileURLToPath(new URL(`../../workflows/${name}`, import.meta.url));
  const all = [...overrides, "evaluation.everySteps=60", "trace=false"];
  const { summary } = await runWorkflow({ workflow, projectRoot, runsRoot, overrides: all, onEvent: () => {} });
  return summary;
};

test.each([
  // Of 300 steps: most is learnt by then, and the rest takes this test's time.
  ["reasoning-grpo", ["steps=120"]],
  ["tool-agent", []],
])(
  "after imitation %s solves at most 35 %% of held-out problems, and rewards teach most of the others",
  async (name, overrides) => {
    const { evalBefore, evalAtStart, evalAfter } = await train(name, overrides);
    expect(evalBefore).toBeLessThanOrEqual(0.05);
    expect(evalAtStart).toBeLessThanOrEqual(0.35);
    expect(evalAfter).toBeGreaterThanOrEqual(0.6);
  },
  900_000,
);
