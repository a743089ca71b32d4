import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { RunSummary } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { startTreadle, temporaryRuns, treadle, until } from "../support/treadle.ts";

const steps = (runs: string, runId: string): { step: number; items: string[] }[] =>
  readFileSync(join(runs, runId, "journal.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line.slice(17)))
    .filter((record) => record.type === "step");

describe("treadle run", () => {
  test.each([
    ["temporal", 0],
    ["spatial", 0],
    ["hybrid", 0],
    ["spatial", 2],
  ])("learns in %s mode with a staleness of at most %i, the same source for all", async (mode, maxStaleness) => {
    await using runs = await temporaryRuns();
    const settings = [`placement.mode=${mode}`, `flow.maxStaleness=${maxStaleness}`].flatMap((set) => ["--set", set]);
    const { code, stdout, stderr } = await treadle([
      "run",
      "workflows/bandit",
      "--json",
      "--runs",
      runs.path,
      ...settings,
    ]);
    expect(stderr).not.toContain("✗");
    expect(code).toBe(0);
    const summary = RunSummary.parse(JSON.parse(stdout));
    expect(summary).toMatchObject({ mode, steps: 40, restarts: 0 });
    expect(summary.rewardLast).toBeGreaterThan((summary.rewardFirst as number) + 0.2);
    const files = readdirSync(join(runs.path, summary.runId));
    for (const file of [
      "config.json",
      "plan.json",
      "journal.jsonl",
      "metrics.jsonl",
      "trace.jsonl",
      "logs",
      "checkpoints",
    ]) {
      expect(files).toContain(file);
    }
  });

  test("refuses unknown keys and impossible placements at once, without a stack trace", async () => {
    const unknown = await treadle(["run", "workflows/bandit", "--set", "placement.mod=spatial"]);
    expect(unknown.code).toBe(2);
    expect(unknown.stderr).toContain("did you mean 'placement.mode'?");
    const impossible = await treadle([
      "validate",
      "workflows/reasoning-grpo",
      "--set",
      "placement.mode=spatial",
      "--set",
      "cluster.devices=2",
    ]);
    expect(impossible.code).toBe(2);
    expect(impossible.stderr).toContain("nearest possible");
    for (const { stderr } of [unknown, impossible]) expect(stderr).not.toMatch(/\n\s+at /);
  });

  test("stops after the step under way on one Ctrl-C, and resumes without losing or repeating an item", async () => {
    await using runs = await temporaryRuns();
    const started = startTreadle(["run", "workflows/bandit", "--plain", "--runs", runs.path, "--set", "steps=100000"]);
    await until(() => /step +\d+\/100000/.test(started.output()));
    started.child.kill("SIGINT");
    const stopped = await started.finished;
    expect(stopped.code).toBe(130);
    const [runId] = readdirSync(runs.path) as [string];
    expect(readdirSync(join(runs.path, runId, "checkpoints"))).not.toEqual([]);
    const before = steps(runs.path, runId).length;
    const total = before + 5;
    const resumed = await treadle(["resume", runId, "--json", "--runs", runs.path, "--set", `steps=${total}`]);
    expect(resumed.code).toBe(0);
    expect(RunSummary.parse(JSON.parse(resumed.stdout)).steps).toBe(total);
    const all = steps(runs.path, runId);
    expect(all.map(({ step }) => step)).toEqual(Array.from({ length: total }, (_, index) => index + 1));
    expect(new Set(all.flatMap(({ items }) => items)).size).toBe(total * 64);
  });
});

test("treadle run reasoning-grpo learns from rewards what demonstrations did not", { timeout: 600_000 }, async () => {
  await using runs = await temporaryRuns();
  const { code, stdout, stderr } = await treadle([
    ...["run", "workflows/reasoning-grpo", "--json", "--runs", runs.path],
    ...["--set", "steps=60", "--set", "evaluation.everySteps=60"],
  ]);
  expect(stderr).not.toContain("✗");
  expect(code).toBe(0);
  const { evalBefore, evalAtStart, evalAfter, rewardFirst, rewardLast } = RunSummary.parse(JSON.parse(stdout));
  expect(evalBefore as number).toBeLessThan(0.05);
  expect(evalAtStart as number).toBeLessThan(0.35);
  // Beyond what the few demonstrations taught.
  expect(evalAfter as number).toBeGreaterThan((evalAtStart as number) + 0.1);
  expect(rewardLast as number).toBeGreaterThan((rewardFirst as number) + 0.1);
});

describe("treadle solve", () => {
  test("answers a problem on standard input", async () => {
    const input = { lengths: [4000, 900, 30], workers: [0.0065, 0.02], F: { type: "affine", slope: 0.04 } };
    const { code, stdout } = await treadle(["solve", "place"], JSON.stringify(input));
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({ feasible: true, sizes: [1, 2], makespan: 26 });
  });

  test("exits with 2 and one line that names the path for bad input", async () => {
    const { code, stdout, stderr } = await treadle(
      ["solve", "place"],
      '{"lengths": [1, -2], "workers": 1, "F": {"type": "affine", "slope": 0}}',
    );
    expect(code).toBe(2);
    expect(stdout).toBe("");
    expect(stderr.trim().split("\n")).toHaveLength(1);
    expect(stderr).toContain("lengths[1]");
  });
});

test("a command whose reader has gone, as 'head' does, ends without a word", async () => {
  const started = startTreadle(["schema", "workflows/reasoning-grpo"]);
  started.child.stdout?.destroy(); // long before it has written anything
  const { code, stderr } = await started.finished;
  expect(stderr).toBe("");
  expect(code).toBe(0);
});
