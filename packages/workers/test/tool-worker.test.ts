import { readdirSync, readFileSync } from "node:fs";
import { afterEach, describe, expect, test, vi } from "vitest";
import { sandboxGone, type ToolResult } from "../src/tool/items.ts";
import { ToolConfig } from "../src/tool/tool-config.ts";
import { ToolWorker } from "../src/tool/tool-worker.ts";
import { contextOf } from "./support/context.ts";

let worker: ToolWorker | undefined;
afterEach(async () => {
  vi.unstubAllEnvs();
  await worker?.teardown();
  worker = undefined;
});

async function start(actions: Record<string, unknown> = {}, program = 'eval "$1"'): Promise<ToolWorker> {
  const config = ToolConfig.parse({ name: "shell", program, actions: { drivers: ["process"], ...actions } });
  worker = new ToolWorker(contextOf(config, "tool"));
  await worker.setup();
  return worker;
}

async function collectAll(tool: ToolWorker, owner: string, count: number): Promise<Map<string, ToolResult>> {
  const results = new Map<string, ToolResult>();
  while (results.size < count) for (const result of await tool.collect(owner)) results.set(result.trajectory, result);
  return results;
}

/** Live processes whose command line holds the text. */
const processesWith = (text: string): string[] =>
  readdirSync("/proc").filter((pid) => {
    try {
      return (
        /^\d+$/.test(pid) &&
        readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(text) &&
        !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"))
      );
    } catch {
      return false;
    }
  });
async function eventually(check: () => boolean): Promise<boolean> {
  for (let i = 0; i < 200 && !check(); i++) await new Promise((resolve) => setTimeout(resolve, 50));
  return check();
}

describe("calls of many trajectories at once", () => {
  test.each([
    ["action", "slot"],
    ["action", "trajectory"],
    ["trajectory", "slot"],
    ["trajectory", "trajectory"],
  ])("are each answered, scheduled by %s, with a sandbox for each %s, and reported", async (scheduling, sandboxes) => {
    const tool = await start({ scheduling, sandboxes });
    await tool.open("rollout/0");
    const names = Array.from({ length: 20 }, (_, i) => `t${i}`);
    const first = names.map((trajectory, i) => ({ trajectory, text: `echo $((${i} * 3))` }));
    await tool.submit("rollout/0", first, []);
    const results = new Map<string, ToolResult>();
    while (results.size < names.length) {
      for (const result of await tool.collect("rollout/0")) {
        results.set(result.trajectory, result);
        // By trajectory, one that waits for cores gets them when another ends.
        await tool.submit("rollout/0", [], [result.trajectory]);
      }
    }
    expect(names.map((name) => results.get(name)?.output)).toEqual(names.map((_, i) => `${i * 3}\n`));
    const report = await tool.report("rollout/0");
    expect(report).toMatchObject({ toolCalls: 20, toolFailures: 0 });
    expect(report.actSeconds).toBeCloseTo(report.queueingSeconds + report.executionSeconds + report.overheadSeconds, 6);
    expect(report.actP95Seconds).toBeGreaterThanOrEqual(report.actSeconds * 0.5);
    expect(report.coresHeld).toBeGreaterThanOrEqual(report.coresBusy);
    expect(report.coresBusy).toBeGreaterThan(0);
    expect(report.coresHeld).toBeLessThanOrEqual(1.001);
  });
});

test("a call that hangs, forks in the background, prints without end or fails is answered so, beside others that go on (TW2)", async () => {
  const tool = await start({ timeoutMs: 400, maxOutputBytes: 1000, cores: 1 });
  await tool.open("rollout/0");
  const calls = {
    hangs: "trap '' TERM; sleep 91.25 & while :; do sleep 0.05; done",
    forks: "for i in 1 2 3 4 5; do (while :; do sleep 91.25; done) & done; wait",
    prints: "while :; do echo more and more; done",
    fails: "echo bad; exit 7",
    breaks: "if then (",
    works: "echo fine",
  };
  await tool.submit(
    "rollout/0",
    Object.entries(calls).map(([trajectory, text]) => ({ trajectory, text })),
    [],
  );
  const results = await collectAll(tool, "rollout/0", 6);
  const said = (name: keyof typeof calls) => {
    const { status, exitCode } = results.get(name) as ToolResult;
    return [status, exitCode];
  };
  expect(said("hangs")).toEqual(["timeout", null]);
  expect(said("forks")).toEqual(["timeout", null]);
  expect(said("prints")).toEqual(["output-limit", null]);
  expect(results.get("prints")?.output.length).toBe(1000);
  expect(said("fails")).toEqual(["exited", 7]);
  expect(results.get("breaks")?.exitCode).not.toBe(0);
  expect(results.get("works")?.output).toBe("fine\n");
  expect(await eventually(() => processesWith("91.25").length === 0)).toBe(true);
  expect(await tool.report("rollout/0")).toMatchObject({ toolCalls: 6, toolFailures: 5 });
});

test("the text of a call is data to a program that does not evaluate it", async () => {
  const tool = await start({}, 'echo "$(($1))"');
  await tool.open("rollout/0");
  const texts = ["12*34", "1/0", "1; echo no", "$(echo 5)", "'", ""];
  await tool.submit(
    "rollout/0",
    texts.map((text, i) => ({ trajectory: `t${i}`, text })),
    [],
  );
  const results = await collectAll(tool, "rollout/0", texts.length);
  expect(results.get("t0")).toMatchObject({ exitCode: 0, output: "408\n" });
  for (const i of [1, 2, 4]) expect(results.get(`t${i}`)?.exitCode, texts[i]).not.toBe(0);
  expect([...results.values()].some(({ output }) => /^no$/m.test(output))).toBe(false);
});

describe("a rank's session", () => {
  test("that is opened again ends what the one before had left (TW1)", async () => {
    const tool = await start({ timeoutMs: 60_000, cores: 1 });
    await tool.open("rollout/0");
    await tool.submit("rollout/0", [{ trajectory: "left", text: "sleep 92.25" }], []);
    const abandoned = tool.collect("rollout/0");
    expect(await eventually(() => processesWith("92.25").length > 0)).toBe(true);
    await tool.open("rollout/0");
    expect(await abandoned).toEqual([]);
    expect(await eventually(() => processesWith("92.25").length === 0)).toBe(true);
    await tool.submit("rollout/0", [{ trajectory: "left", text: "echo again" }], []);
    expect((await collectAll(tool, "rollout/0", 1)).get("left")?.output).toBe("again\n");
  });

  test("does not exist in a new process, which says so with a retryable error (TW3)", async () => {
    const tool = await start();
    const error = await tool.submit("rollout/0", [], []).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "sandbox.failed", disposition: "retryable" });
  });

  test.each([
    ["trajectory", { status: sandboxGone, exitCode: null }],
    ["slot", { status: "exited", exitCode: 0, output: "fine\n" }],
  ] as const)(
    "TW4: is told where the sandbox that a call goes on in has ended with the rank before; a sandbox a %s",
    async (sandboxes, expected) => {
      const tool = await start({ sandboxes });
      for (const owner of ["rollout/0", "rollout/1"]) await tool.open(owner);
      await tool.submit("rollout/1", [{ trajectory: "moved", text: "echo fine" }], []);
      await collectAll(tool, "rollout/1", 1);
      await tool.open("rollout/1");
      await tool.submit("rollout/0", [{ trajectory: "moved", text: "echo fine", goesOn: true }], []);
      expect((await collectAll(tool, "rollout/0", 1)).get("moved")).toMatchObject(expected);
      await tool.submit("rollout/0", [{ trajectory: "new", text: "echo fine", goesOn: false }], []);
      expect((await collectAll(tool, "rollout/0", 1)).get("new")?.output).toBe("fine\n");
    },
  );

  test("of one rank does not see another's", async () => {
    const tool = await start();
    for (const owner of ["rollout/0", "rollout/1"]) {
      await tool.open(owner);
      await tool.submit(owner, [{ trajectory: `of ${owner}`, text: `echo ${owner}` }], []);
    }
    for (const owner of ["rollout/0", "rollout/1"]) {
      expect([...(await collectAll(tool, owner, 1)).values()]).toMatchObject([{ output: `${owner}\n` }]);
    }
  });
});

test("more cores than the machine has are refused", async () => {
  await expect(start({ cores: 4096 })).rejects.toMatchObject({ code: "config.invalid" });
  worker = undefined;
});
