/** A run with real sandboxes: what it learns from, what it reports, and what is left of it, however it ends. */
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { RunSummary } from "@treadle/contracts";
import { readMetrics } from "@treadle/observe";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { makeTemporary } from "../support/temporary-folder.ts";
import { traceText } from "../support/trace-text.ts";
import { startTreadle, treadle, until } from "../support/treadle.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-agent-"));
  // Where drivers keep the folders of their sandboxes.
  vi.stubEnv("TMPDIR", await makeTemporary(root));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(root, { recursive: true, force: true });
});

/** A model that compiles fast and a task of one digit, after an imitation of the form alone. */
const small = [
  ...["steps=3", "batch=4", "groupSize=4", "maxRanks=1", "checkpoints.everySteps=1"],
  ...["model.layers=1", "model.width=16", "model.heads=2", "model.contextLength=20"],
  ...["task.minOperand=0", "task.maxOperand=9", "task.heldOutFraction=0.2", "task.validationFraction=0.2"],
  ...["evaluation.problems=5", "evaluation.validationProblems=5", "evaluation.everySteps=100", "imitation.problems=15"],
  ...["imitation.rows=32", "imitation.updates=20", "imitation.untilAccuracy=0", "imitation.learningRate=0.01"],
];
const argumentsOf = (command: readonly string[], settings: readonly string[]): string[] => [
  ...command,
  ...["--runs", join(root, "runs")],
  ...settings.flatMap((setting) => ["--set", setting]),
];
const run = ["run", "workflows/tool-agent"];

/** Processes and folders of sandboxes below this test's folder. */
function leftovers(): string[] {
  const shells = readdirSync("/proc").filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readlinkSync(`/proc/${pid}/cwd`).startsWith(join(root, "tmp"));
    } catch {
      return false;
    }
  });
  const folders = readdirSync(join(root, "tmp")).filter((name) => /^treadle-(process-|\d)/.test(name));
  return [...shells.map((pid) => `process ${pid}`), ...folders];
}

/** Of all processes that the component's first rank has had. */
const pidsOf = (runId: string, component: string): number[] => {
  const trace = readFileSync(join(root, "runs", runId, "trace.jsonl"), "utf8");
  const found = [...trace.matchAll(/"worker":"([a-z]+)\/0","pid":(\d+)/g)];
  return [...new Set(found.filter(([, name]) => name === component).map(([, , pid]) => Number(pid)))];
};
/** Control groups carry the id of the process that made them. */
const groupsOf = (pids: readonly number[]): string[] =>
  execFileSync("sh", ["-c", "find /sys/fs/cgroup -maxdepth 5 -name 'treadle-*' 2>/dev/null || true"])
    .toString()
    .split("\n")
    .filter((path) => pids.some((pid) => path.includes(`treadle-${pid}-`)));

test.each([
  ["temporal", "action", "slot"],
  ["spatial", "trajectory", "slot"],
  ["hybrid", "action", "trajectory"],
])(
  "a policy calls its tool in %s mode, cores held by %s, a sandbox for each %s",
  async (mode, scheduling, sandboxes) => {
    const settings = [
      ...small,
      `placement.mode=${mode}`,
      `tool.actions.scheduling=${scheduling}`,
      `tool.actions.sandboxes=${sandboxes}`,
    ];
    const { code, stdout, stderr } = await treadle(argumentsOf([...run, "--json"], settings));
    expect(stderr).not.toContain("✗");
    expect(code).toBe(0);
    const summary = RunSummary.parse(JSON.parse(stdout));
    expect(summary).toMatchObject({ mode, steps: 3, restarts: 0 });
    const rows = readMetrics(join(root, "runs", summary.runId, "metrics.jsonl"));
    const steps = rows.filter((row) => row.toolCalls !== undefined);
    expect(steps).toHaveLength(3);
    for (const metrics of steps) {
      expect(metrics.toolUse).toBeGreaterThan(0);
      expect(metrics.toolCalls).toBeGreaterThanOrEqual(metrics.toolUse as number);
      const parts = ["queueingSeconds", "executionSeconds", "overheadSeconds"].map((name) => metrics[name] as number);
      expect(metrics.actSeconds).toBeCloseTo(
        parts.reduce((sum, part) => sum + part, 0),
        6,
      );
      expect(metrics.actP95Seconds).toBeGreaterThan(0);
      expect(metrics.coresHeld).toBeGreaterThanOrEqual(metrics.coresBusy as number);
    }
    const trace = await traceText(join(root, "runs", summary.runId, "trace.jsonl"));
    const actions = trace.match(/"name":"calculator"[^}]*"devices":\["core:\d+"\],"attributes":\{[^}]*\}/g) ?? [];
    expect(actions.length).toBeGreaterThan(0);
    const why =
      scheduling === "trajectory"
        ? /"policy":"unit-aware".*"why":"its trajectory holds them"/
        : /"policy":"unit-aware".*"why":"its cost is fixed; unit-aware started \d+ of \d+ candidates, \d+ waiting, \d+ cpu free"/;
    expect(actions.filter((action) => !why.test(action)).slice(0, 3)).toEqual([]);
    await until(() => leftovers().length === 0);
    expect(groupsOf(pidsOf(summary.runId, "tool"))).toEqual([]);
  },
  480_000,
);

test("reward models are services of a run: evicted for one another, on the lanes of their chunk, and gone with it", async () => {
  const examples = join(import.meta.dirname, "../../packages/actions/examples");
  const model = join(root, "reward.onnx");
  await writeFile(model, execFileSync(process.execPath, [join(examples, "reward-model.mjs"), "1"]));
  const command = [process.execPath, join(examples, "onnx-service.mjs"), model, "{port}"];
  // Each alone fills the device.
  const models = { helpful: { command, memoryMiB: 600 }, brief: { command, memoryMiB: 600, weight: 0.5 } };
  const judge = JSON.stringify({ models, memoryMiBPerDevice: 1000 });
  const { code, stdout, stderr } = await treadle(
    argumentsOf([...run, "--json"], [...small, "steps=1", "imitation.updates=2", `judge=${judge}`]),
  );
  expect(code, stderr).toBe(0);
  const { runId } = RunSummary.parse(JSON.parse(stdout));
  const [metrics] = readMetrics(join(root, "runs", runId, "metrics.jsonl")).filter(
    (row) => row.judgements !== undefined,
  );
  // Four groups, each judged by two models; every score is between 0 and 1.
  expect(metrics!.judgements).toBe(8);
  // Each once for every batch, however many those are.
  expect(metrics!.restores).toBeGreaterThanOrEqual(2);
  expect(metrics!.restores).toBeLessThanOrEqual(8);
  expect(metrics!.modelReward).toBeGreaterThan(0);
  expect(metrics!.modelReward).toBeLessThan(1.5);
  const trace = await traceText(join(root, "runs", runId, "trace.jsonl"));
  for (const name of ["restore helpful", "restore brief", "score by helpful", "score by brief"])
    expect(trace).toMatch(
      new RegExp(`"name":"${name}"[^}]*"devices":\\["gpu:0/0"\\],"attributes":\\{[^}]*"chunk":"0/0-0"`),
    );
  expect(trace).toMatch(/"name":"evict (helpful|brief)"/);
  const isServed = (pid: string): boolean => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(model);
    } catch {
      return false;
    }
  };
  await until(() => !readdirSync("/proc").some(isServed));
}, 480_000);

const stepsOf = (runId: string): number[] =>
  readFileSync(join(root, "runs", runId, "journal.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line.slice(17)) as { type: string; step: number })
    .filter(({ type }) => type === "step")
    .map(({ step }) => step);

/** Starts a run that goes on until it is told otherwise, and waits for its first step. */
async function startLong(): Promise<{ started: ReturnType<typeof startTreadle>; runId: string }> {
  const started = startTreadle(argumentsOf([...run, "--plain"], [...small, "steps=100000"]));
  await until(() => /step +1\//.test(started.output()) || started.child.exitCode !== null);
  expect(started.child.exitCode, started.output()).toBe(null);
  const [runId] = readdirSync(join(root, "runs")) as [string];
  await until(() => ["tool", "rollout"].every((component) => pidsOf(runId, component).length > 0));
  return { started, runId };
}

test("a runner that is killed leaves no sandbox, and the run goes on after its last step", async () => {
  const { started, runId } = await startLong();
  const pids = pidsOf(runId, "tool");
  expect(leftovers()).not.toEqual([]);
  started.child.kill("SIGKILL");
  await started.finished;
  await until(() => leftovers().length === 0 && groupsOf(pids).length === 0);
  const total = stepsOf(runId).length + 2;
  const resumed = await treadle(argumentsOf(["resume", runId, "--json"], [`steps=${total}`]));
  expect(resumed.code, resumed.stderr).toBe(0);
  expect(RunSummary.parse(JSON.parse(resumed.stdout)).steps).toBe(total);
  expect(stepsOf(runId)).toEqual(Array.from({ length: total }, (_, index) => index + 1));
  await until(() => leftovers().length === 0);
}, 480_000);

test.each(["tool", "rollout"])(
  "a %s worker that is killed is replaced, no sandbox is left of it, and every step is made",
  async (component) => {
    const { started, runId } = await startLong();
    const [pid] = pidsOf(runId, component) as [number];
    process.kill(pid, "SIGKILL");
    const before = stepsOf(runId).length;
    await until(() => stepsOf(runId).length >= before + 2 || started.child.exitCode !== null);
    expect(started.child.exitCode, started.output()).toBe(null);
    expect(groupsOf([pid])).toEqual([]);
    await until(() => pidsOf(runId, component).length === 2);
    started.child.kill("SIGINT");
    expect((await started.finished).code).toBe(130);
    expect(stepsOf(runId)).toEqual(stepsOf(runId).map((_, index) => index + 1));
    await until(() => leftovers().length === 0);
    expect(groupsOf(pidsOf(runId, "tool"))).toEqual([]);
  },
  480_000,
);

test("a driver that this machine lacks is refused with what it lacks and what to do, and leaves nothing", async () => {
  vi.stubEnv("PATH", join(root, "nothing"));
  const refused = await treadle(argumentsOf(run, [...small, "tool.actions.drivers=[cgroup]"]));
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain("add 'process' to the list");
  expect(refused.stderr).not.toMatch(/\n\s+at /);
  expect(leftovers()).toEqual([]);
}, 240_000);
