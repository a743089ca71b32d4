/** A reward that scales: test suites are granted more than one core, and what they say is learned from. */
import { mkdtemp, rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { RunSummary } from "@treadle/contracts";
import { readMetrics } from "@treadle/observe";
import { expect, onTestFinished, test } from "vitest";
import { traceText } from "../support/trace-text.ts";
import { treadle } from "../support/treadle.ts";

const run = async (settings: readonly string[]) => {
  const root = await mkdtemp(join(tmpdir(), "treadle-suites-"));
  onTestFinished(() => rm(root, { recursive: true, force: true }));
  const short = ["steps=3", "batch=4", "thinkSeconds=0", "attempts=1", "tool.actions.drivers=[process]"];
  const flags = [...short, ...settings].flatMap((setting) => ["--set", setting]);
  const { code, stdout } = await treadle(["run", "workflows/tested-programs", "--json", "--runs", root, ...flags]);
  expect(code).toBe(0);
  const { runId } = RunSummary.parse(JSON.parse(stdout));
  const steps = readMetrics(join(root, runId, "metrics.jsonl")).filter((row) => row["reward"] !== undefined);
  expect(steps).toHaveLength(3);
  return { steps, trace: await traceText(join(root, runId, "trace.jsonl")) };
};

test.skipIf(availableParallelism() < 2)(
  "suites are granted more than a core where one is free, and the policy follows what they say",
  async () => {
    const { steps, trace } = await run([]);
    expect(Math.max(...steps.map((row) => row["coresGranted"] as number))).toBeGreaterThan(1);
    expect(trace).toMatch(/"name":"suite"[^}]*"devices":\["core:\d+","core:\d+"/);
    // Of twelve programs, all alike at first.
    expect(steps.at(-1)!["surest"]).toBeGreaterThan(1 / 12 + 0.001);
    expect(Math.max(...steps.map((row) => row["reward"] as number))).toBeGreaterThan(0);
  },
  480_000,
);

test("a reservation holds one core for an episode, whatever its suite would gain", async () => {
  const { steps, trace } = await run(["tool.actions.scheduling=trajectory", "steps=3"]);
  expect(steps.map((row) => row["coresGranted"])).toEqual([1, 1, 1]);
  expect(trace).toContain('"why":"its trajectory holds them"');
}, 480_000);
