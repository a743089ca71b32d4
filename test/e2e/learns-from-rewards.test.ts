/** What the main job promises, with the configuration that ships; how few problems are shown is a test of `learning`. */
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

const workflow = fileURLToPath(new URL("../../workflows/reasoning-grpo", import.meta.url));

test("after imitation at most 35 % of held-out problems are solved, and rewards teach most of the others", async () => {
  const { summary } = await runWorkflow({
    workflow,
    projectRoot,
    runsRoot,
    // Of 300 steps: most is learnt by then, and the rest takes this test's time.
    overrides: ["steps=120", "evaluation.everySteps=60", "trace=false"],
    onEvent: () => {},
  });
  const { evalBefore, evalAtStart, evalAfter } = summary;
  expect(evalBefore).toBeLessThanOrEqual(0.05);
  expect(evalAtStart).toBeLessThanOrEqual(0.35);
  expect(evalAfter).toBeGreaterThanOrEqual(0.6);
}, 900_000);
