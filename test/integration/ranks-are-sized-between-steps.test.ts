import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { expectCleanEnd, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";
import { groupSize, tokensOfStep } from "../support/workflows/sized-ranks/run.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const workflow = join(projectRoot, "test/support/workflows/sized-ranks");
const batch = 48;

async function run(overrides: readonly string[] = []) {
  const events: RunEvent[] = [];
  const onEvent = (event: RunEvent) => void events.push(event);
  const { summary } = await runWorkflow({ ...ledgerOptions(root, onEvent, overrides), workflow });
  const plans = events.flatMap((event) => (event.type === "plan" ? [event] : []));
  const steps = events.flatMap((event) => (event.type === "step-finished" ? [event] : []));
  const lines = events.flatMap((event) => (event.type === "log" && event.worker === "runner" ? [event.line] : []));
  return { summary, events, plans, steps, lines };
}

test("with long tails, 'degrees: auto' goes over to unequal ranks, says why, and no episode is lost or done twice", async () => {
  // What lengths prompts have is known by the first step.
  await run(["steps=2", "rollout.degrees=[4]"]);
  const { summary, events, plans, steps, lines } = await run();
  expect(steps.map(({ step }) => step)).toEqual([1, 2, 3, 4, 5, 6]);
  for (const { metrics } of steps)
    expect(metrics).toMatchObject({
      ...{ groups: batch, prompts: batch, episodes: groupSize * batch, different: groupSize * batch },
      made: tokensOfStep(batch),
    });
  expect(plans, lines.join("\n")).toHaveLength(2);
  const [why] = plans[1]!.explanation;
  const said =
    /^'rollout': rollout\.degrees changes: .* s on \[1, 1, 1, 1, 1, 1, 1, 1\] on average, and .* s on \[(.*?)\], .* as the best equal ranks; a change costs 1\.0 s, less than/;
  expect(why).toMatch(said);
  const degrees = said.exec(why!)![1]!.split(", ").map(Number);
  expect(new Set(degrees).size).toBeGreaterThan(1);
  expect(degrees.reduce((sum, each) => sum + each, 0)).toBeLessThanOrEqual(8);
  // The ranks that there are have as many devices as was decided.
  const at = events.indexOf(plans[1]!);
  const started = events.slice(at).flatMap((event) => (event.type === "worker-started" ? [event.worker] : []));
  expect(started).toContain("rollout/0");
  for (const worker of started) expect(Number(worker.split("/")[1])).toBeLessThan(degrees.length);
  await expectCleanEnd(summary.runId, join(root, summary.runId), pidsOf(events));
}, 240_000);
