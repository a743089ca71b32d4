import { TreadleError } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import { expect, test } from "vitest";
import {
  ActionPool,
  CommandActions,
  CpuManager,
  type ExecRequest,
  type ExecResult,
  type Sandbox,
  type SandboxDriver,
} from "../src/index.ts";
import { guardMemory } from "../src/pool/memory-guard.ts";

/** Remembers what it was asked for. The sandboxes named in `dying` die under the command that says so. */
function recordingDriver(clock: ManualClock, dying: number[] = [], openMs = 0) {
  const log: string[] = [];
  const requests: ExecRequest[] = [];
  let opened = 0;
  const driver: SandboxDriver = {
    name: "recording",
    isolation: "none",
    diskLacks: () => undefined,
    async open(): Promise<Sandbox> {
      const number = ++opened;
      log.push(`open ${number}`);
      if (openMs > 0) await clock.sleep(openMs);
      let loss: string | undefined;
      return {
        id: String(number),
        stateFolder: "/tmp/state",
        get loss() {
          return loss;
        },
        usedBytes: () => 50,
        async exec(request): Promise<ExecResult> {
          requests.push(request);
          if (dying.includes(number) && request.command.includes("die")) {
            loss = "it was struck";
            // As told by files that went first.
            if (request.command.includes("exited")) return { status: "exited", exitCode: 0, ...nothing };
            throw new TreadleError("sandbox.failed", "it has died");
          }
          log.push(`${request.command.join(" ")} in ${number}`);
          const seconds = Number(request.command[1] ?? 0);
          if (seconds > 0) await clock.sleep(seconds * 1000);
          const ended = { stdout: Buffer.from("out"), stderr: Buffer.alloc(0), seconds };
          if (request.timeoutMs !== undefined) return { status: "timeout", exitCode: null, ...ended };
          const exitCodes: Record<string, number> = { fail: 1, absent: 127 };
          return { status: "exited", exitCode: exitCodes[request.command[0] ?? ""] ?? 0, ...ended };
        },
        holdShell: () => {
          throw new Error("not used here");
        },
        async writeFile() {},
        readFile: async () => Buffer.alloc(0),
        async unpack() {},
        async pack() {},
        snapshot: () => {
          throw new Error("not used here");
        },
        async close() {
          log.push(`close ${number}`);
        },
      };
    },
    async close() {
      log.push("close driver");
    },
  };
  return { driver, log, requests };
}

const nothing = { stdout: Buffer.alloc(0), stderr: Buffer.alloc(0), seconds: 0 };

function setUp(dying: number[] = [], openMs = 0, names = ["n0", "n1"]) {
  const clock = new ManualClock();
  const nodes = names.map((id) => ({ id, numa: [[0, 1, 2, 3]], memoryBytes: 100 }));
  const cpu = new CpuManager({ nodes, trajectoryMemoryBytes: 60 });
  const { driver, log, requests } = recordingDriver(clock, dying, openMs);
  const pool = new ActionPool({ managers: [cpu], clock });
  return { clock, cpu, log, requests, actions: new CommandActions(pool, driver) };
}
const spec = {
  kind: "tests",
  cost: { cpu: { min: 1, max: 4 } },
  key: "cpu",
  elasticity: { type: "amdahl", serialShare: 0 },
  duration: 8,
};

test("a sandbox starts with the first action, gets its cores and their number, and ends with its trajectory", async () => {
  const { log, requests, actions } = setUp();
  actions.openTrajectory("t");
  expect(log).toEqual([]);
  const result = await actions.submit("t", spec, { command: ["run"], environment: { A: "b" } }).result;
  expect(result.stdout.toString()).toBe("out");
  expect(requests[0]).toMatchObject({ cores: [0, 1, 2, 3], environment: { TREADLE_UNITS_CPU: "4", A: "b" } });
  await actions.submit("t", spec, { command: ["run"] }).result;
  await actions.closeTrajectory("t");
  expect(log).toEqual(["open 1", "run in 1", "run in 1", "close 1"]);
  await actions.close();
});

const retried = { ...spec, retries: { limit: 1, backoffMs: 10 } };
const outcomeOf = (result: Promise<{ status: string }>): Promise<string> =>
  result.then(
    ({ status }) => status,
    (error: TreadleError) => error.code,
  );

test("CA1 a sandbox that died before anything had run in it is replaced at the next attempt", async () => {
  const { clock, log, actions } = setUp([1]);
  actions.openTrajectory("t");
  const handle = actions.submit("t", retried, { command: ["run", "0", "die"] });
  await clock.advance(20);
  expect((await handle.result).status).toBe("exited");
  expect(log).toEqual(["open 1", "close 1", "open 2", "run 0 die in 2"]);
  await actions.close();
});

test("CA1 a sandbox that died with files ends its trajectory, whatever is tried again, and gives back what it held", async () => {
  const { clock, cpu, log, actions } = setUp([1]);
  actions.openTrajectory("t");
  await actions.submit("t", spec, { command: ["write"] }).result;
  const struck = actions.submit("t", retried, { command: ["run", "0", "die"] });
  const behind = actions.submit("t", { kind: "tests", cost: { cpu: 4 }, retries: { limit: 1 } }, { command: ["run"] });
  const outcomes = [outcomeOf(struck.result), outcomeOf(behind.result)];
  await clock.advance(100);
  expect(await Promise.all(outcomes)).toEqual(["sandbox.lost", "sandbox.lost"]);
  await expect(struck.result).rejects.toThrow(/'t' lost its sandbox and its files: it was struck/);
  expect(() => actions.submit("t", spec, { command: ["run"] })).toThrow(/lost its sandbox/);
  await expect(actions.readFile("t", "file")).rejects.toMatchObject({ code: "sandbox.lost" });
  expect(log).toEqual(["open 1", "write in 1", "close 1"]);
  expect([cpu.home("t"), actions.pool.numRunning, actions.pool.numWaiting]).toEqual([undefined, 0, 0]);
  await actions.closeTrajectory("t");
  actions.openTrajectory("t");
  expect((await actions.submit("t", spec, { command: ["run"] }).result).status).toBe("exited");
  await actions.close();
});

test("CA1 what is declared restorable is prepared again in another sandbox", async () => {
  const { clock, log, actions } = setUp([1]);
  actions.openTrajectory("t", { prepare: [["install"], ["build"]], isRestorable: true });
  await actions.submit("t", spec, { command: ["write"] }).result;
  const handle = actions.submit("t", retried, { command: ["run", "0", "die"] });
  await clock.advance(20);
  expect((await handle.result).status).toBe("exited");
  expect(log).toEqual([
    ...["open 1", "install in 1", "build in 1", "write in 1", "close 1"],
    ...["open 2", "install in 2", "build in 2", "run 0 die in 2"],
  ]);
  actions.openTrajectory("bad", { prepare: [["fail"]] });
  await expect(actions.submit("bad", spec, { command: ["run"] }).result).rejects.toThrow(/'fail', which prepares/);
  await actions.close();
});

test("of figures that come from elsewhere, the guard of the memory acts once on each", async () => {
  const { clock, cpu, actions } = setUp([], 0, ["far"]);
  let memory = { reserveBytes: 100, availableBytes: 60, reading: {} };
  const unguard = guardMemory({ actions, cpu, clock, memory: () => new Map([["far", memory]]) });
  const names = ["a", "b", "c"];
  for (const name of names) {
    actions.openTrajectory(name, { memoryBytes: 10 });
    await actions.submit(name, spec, { command: ["run"] }).result;
  }
  const isOpen = (name: string): boolean => {
    try {
      actions.openSession(name, `s${clock.now()}`);
      return true;
    } catch {
      return false;
    }
  };
  for (let i = 0; i < 4; i++) await clock.advance(300);
  expect(names.filter(isOpen)).toHaveLength(2);
  memory = { ...memory, reading: {} }; // still short
  for (let i = 0; i < 4; i++) await clock.advance(300);
  expect(names.filter(isOpen)).toHaveLength(1);
  unguard();
  await actions.close();
});

test("a node that is out of memory ends the action that is furthest above its reservation, and no other", async () => {
  const { clock, cpu, actions } = setUp([], 0, ["local"]);
  let available = 1000;
  const unguard = guardMemory({
    actions,
    cpu,
    clock,
    memory: () => new Map([["local", { reserveBytes: 100, availableBytes: available }]]),
  });
  // Sandboxes use 50 bytes each.
  for (const [trajectory, memoryBytes] of [
    ["modest", 50],
    ["greedy", 10],
  ] as const) {
    actions.openTrajectory(trajectory, { memoryBytes });
    await actions.submit(trajectory, spec, { command: ["run"] }).result;
  }
  await clock.advance(1000);
  expect((await actions.submit("greedy", spec, { command: ["run"] }).result).status).toBe("exited");
  available = 70;
  await clock.advance(300);
  available = 120;
  expect(() => actions.submit("greedy", spec, { command: ["run"] })).toThrow(/ran out of memory, and it used 50 bytes/);
  expect((await actions.submit("modest", spec, { command: ["run"] }).result).status).toBe("exited");
  unguard();
  await actions.close();
});

test("making a sandbox is overhead, and a command that was cut short teaches no duration", async () => {
  const { clock, actions } = setUp([], 41);
  actions.openTrajectory("t");
  const first = actions.submit("t", { ...spec, duration: "history" }, { command: ["run", "0.01"] });
  await clock.advance(100);
  expect((await first.result).status).toBe("exited");
  expect([first.overheadSeconds, first.executionSeconds]).toEqual([0.041, 0.01]);
  const cut = actions.submit("t", { ...spec, duration: "history" }, { command: ["run", "60"], timeoutMs: 60_000 });
  await clock.advance(61_000);
  expect((await cut.result).status).toBe("timeout");
  const next = actions.submit("t", { ...spec, duration: "history" }, { command: ["run", "0.01"] });
  await settle();
  // What was learned on one core is the first one's 10 ms; it gets four.
  expect(actions.pool.recentStarts()[0]!.expectedSeconds).toBeCloseTo(0.0025, 6);
  await clock.advance(100);
  await next.result;
  await actions.close();
});

test("trajectories spread over nodes by memory, stay there, and share cores within them", async () => {
  const { cpu, actions } = setUp();
  for (const t of ["a", "b"]) actions.openTrajectory(t);
  const handles = ["a", "b", "a"].map((t) => actions.submit(t, spec, { command: ["run"] }));
  await settle();
  await Promise.all(handles.map((h) => h.result));
  expect([cpu.home("a"), cpu.home("b")]).toEqual(["cpu@n0", "cpu@n1"]);
  expect(handles.map((h) => h.allocation!.cpu!.node)).toEqual(["n0", "n1", "n0"]);
  await actions.close();
});

test("an unknown trajectory is refused, and so is a second of the same name", async () => {
  const { actions } = setUp();
  expect(() => actions.submit("t", spec, { command: ["run"] })).toThrow(/'t' is not open/);
  actions.openTrajectory("t");
  expect(() => actions.openTrajectory("t")).toThrow(/'t' is open already/);
  await actions.close();
  expect(() => actions.submit("t", spec, { command: ["run"] })).toThrow(TreadleError);
});

test("commands that do not exist, or that a limit ends, count as failed; those that only say no do not", async () => {
  const { actions } = setUp();
  actions.openTrajectory("t");
  for (const command of ["run", "fail", "absent"]) await actions.submit("t", spec, { command: [command] }).result;
  await actions.submit("t", spec, { command: ["run"], timeoutMs: 5 }).result;
  expect(actions.pool.statistics().tests).toMatchObject({ submitted: 4, completed: 4, failed: 2 });
  await actions.close();
});

test("trajectories that wait for cores are spread over all nodes as they become free", async () => {
  const clock = new ManualClock();
  const ids = ["a", "b", "c", "d"];
  const nodes = ids.map((id) => ({ id, numa: [[0, 1, 2, 3]], memoryBytes: 1e10 }));
  const pool = new ActionPool({ managers: [new CpuManager({ nodes, trajectoryMemoryBytes: 1e7 })], clock });
  const counts = new Map<string, number>();
  const act = (i: number) =>
    pool.submit({ kind: "k", trajectory: `t${i}`, cost: { cpu: 1 } }, async ({ allocation }) => {
      const node = allocation["cpu"]?.node ?? "";
      counts.set(node, (counts.get(node) ?? 0) + 1);
      await clock.sleep(80 + ((i * 7) % 40)); // one after the other, as real ones end
    });
  const all = Array.from({ length: 16 }, (_, i) => act(i));
  await settle();
  // They come when no node has a free core: whichever has one first is not the home of all.
  for (let i = 16; i < 160; i++) all.push(act(i));
  for (let ms = 0; ms < 1300; ms += 5) await clock.advance(5);
  expect(pool.numWaiting + pool.numRunning).toBe(0);
  for (const { result } of all) await result;
  for (const id of ids) expect(counts.get(id)).toBeGreaterThan(30);
  await pool.close();
});

test("what has lost its node ends at once, whether it ran or waited, and what asks for more than is there now fails", async () => {
  const { clock, cpu, actions, log } = setUp([], 0, ["n0"]);
  let loss: string | undefined;
  const open = actions.driver.open.bind(actions.driver);
  actions.driver.open = async (...args) =>
    Object.defineProperty(await open(...args), "loss", { get: () => loss }) as Sandbox;
  actions.openTrajectory("idle");
  await actions.submit("idle", spec, { command: ["run"] }).result;
  cpu.leave("n0");
  loss = "host 'n0' was lost";
  const queued = actions.submit("idle", spec, { command: ["run"] });
  const large = actions.pool.submit({ kind: "large", cost: { cpu: 4 } }, async () => {});
  await settle();
  expect(actions.pool.numWaiting).toBe(2);
  await actions.endLost();
  await expect(queued.result).rejects.toMatchObject({ code: "sandbox.lost" });
  expect(() => actions.submit("idle", spec, { command: ["run"] })).toThrow(/lost its sandbox and its files: host 'n0'/);
  cpu.join({ id: "n0", numa: [[0, 1]], memoryBytes: 100 });
  actions.pool.changed();
  await expect(large.result).rejects.toMatchObject({
    code: "action.impossible",
    message: "'4' units of 'cpu' were asked for, one action can get 2; ask for less or add capacity",
  });
  expect(log).toContain("close 1");
  await clock.advance(1);
  await actions.close();
});

test("CA1 what a command says of itself while its sandbox dies counts for nothing", async () => {
  const { actions } = setUp([1]);
  actions.openTrajectory("t");
  await actions.submit("t", spec, { command: ["first"] }).result;
  await expect(actions.submit("t", spec, { command: ["die", "exited"] }).result).rejects.toMatchObject({
    code: "sandbox.lost",
  });
  await actions.close();
});

test("CA3 a trajectory that is being closed is opened again when nothing of it is left, and leaves nothing then", async () => {
  const { clock, log, actions } = setUp();
  for (let round = 1; round <= 3; round++) {
    actions.openTrajectory("t");
    const running = actions.submit("t", spec, { command: ["sleep", "5"] });
    running.result.catch(() => {});
    await settle();
    let isClosed = false;
    const closing = actions.closeTrajectory("t").then(() => {
      isClosed = true;
    });
    expect(() => actions.openTrajectory("t")).toThrow(/'t' is still being closed; wait/);
    const waited = actions.closed("t").then(() => isClosed);
    clock.advance(5000);
    await closing;
    expect(await waited).toBe(true);
    expect(log.filter((line) => line === `close ${round}`)).toHaveLength(1);
  }
  await actions.close();
});
