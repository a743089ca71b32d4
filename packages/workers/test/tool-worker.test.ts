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
      await tool.submit("rollout/0", [{ trajectory: "moved", text: "echo fine", numAnswered: 1 }], []);
      expect((await collectAll(tool, "rollout/0", 1)).get("moved")).toMatchObject(expected);
      await tool.submit("rollout/0", [{ trajectory: "new", text: "echo fine" }], []);
      expect((await collectAll(tool, "rollout/0", 1)).get("new")?.output).toBe("fine\n");
    },
  );

  test("TW4: is told where the sandbox has run calls that it knows nothing of, as of a rank that died behind them", async () => {
    const tool = await start({ sandboxes: "trajectory" });
    for (const owner of ["rollout/0", "rollout/1"]) await tool.open(owner);
    const said = async (owner: string, numAnswered: number) => {
      await tool.submit(owner, [{ trajectory: "moved", text: "echo >> n; wc -l < n", numAnswered }], []);
      const { status, output } = (await collectAll(tool, owner, 1)).get("moved") as ToolResult;
      return status === "exited" ? output.trim() : status;
    };
    expect([await said("rollout/0", 0), await said("rollout/0", 1)]).toEqual(["1", "2"]);
    expect(await said("rollout/1", 1)).toBe(sandboxGone);
    expect(await said("rollout/1", 2)).toBe("3");
  });

  test("TW5: keeps a trajectory with its sandbox for a session of another rank, and no cores meanwhile", async () => {
    const tool = await start({ scheduling: "trajectory", sandboxes: "trajectory", cores: 1 });
    const say = async (owner: string, trajectory: string, numAnswered = 0) => {
      await tool.submit(owner, [{ trajectory, text: "echo >> n; wc -l < n", numAnswered }], []);
      return (await collectAll(tool, owner, 1)).get(trajectory)?.output;
    };
    await tool.open("rollout/0");
    expect(await say("rollout/0", "carried")).toBe("1\n");
    await tool.submit("rollout/0", [], [], ["carried", "never opened"]);
    expect(await say("rollout/0", "other")).toBe("1\n"); // on the only core
    await tool.close("rollout/0");
    await tool.open("rollout/0"); // as for an evaluation
    await tool.close("rollout/0");
    await tool.open("rollout/1");
    expect(await say("rollout/1", "carried", 1)).toBe("2\n");
    await tool.submit("rollout/1", [], ["carried"]);
    expect(await say("rollout/1", "other", 0)).toBe("1\n"); // it ended with its session
  });

  test("TW5: ends what it kept with a rank that died before it had said so, and with a step that was undone", async () => {
    let step = 1;
    worker = new ToolWorker({
      ...contextOf(
        ToolConfig.parse({ program: "echo", actions: { drivers: ["process"], sandboxes: "trajectory" } }),
        "t",
      ),
      step: () => step,
    });
    const tool = worker;
    await tool.setup();
    const keep = async (trajectory: string) => {
      await tool.submit("rollout/0", [{ trajectory, text: "" }], []);
      await collectAll(tool, "rollout/0", 1);
      await tool.submit("rollout/0", [], [], [trajectory]);
    };
    const statusOf = async (trajectory: string) => {
      await tool.submit("rollout/1", [{ trajectory, text: "", numAnswered: 1 }], []);
      return (await collectAll(tool, "rollout/1", 1)).get(trajectory)?.status;
    };
    await tool.open("rollout/0");
    await keep("of the dead");
    await tool.open("rollout/0");
    step = 5;
    await keep("undone");
    await keep("going on");
    await tool.close("rollout/0");
    await tool.open("rollout/1");
    expect([await statusOf("of the dead"), await statusOf("going on")]).toEqual([sandboxGone, "exited"]);
    step = 4;
    await tool.open("rollout/1");
    expect(await statusOf("undone")).toBe(sandboxGone);
  });

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
