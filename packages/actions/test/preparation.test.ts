import type { TreadleError } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import { expect, test } from "vitest";
import { Leases } from "../src/grpc/leases.ts";
import {
  ActionPool,
  CommandActions,
  CpuManager,
  type ExecRequest,
  type ExecResult,
  QuotaManager,
  type Sandbox,
  type SandboxDriver,
} from "../src/index.ts";
import { guardMemory } from "../src/pool/memory-guard.ts";

/** Sandboxes and commands called `slow` take until they are released, or aborted. */
function setUp(isSlow: (sandbox: number) => boolean = () => false) {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0, 1, 2, 3]], memoryBytes: 100 }];
  const cpu = new CpuManager({ nodes, trajectoryMemoryBytes: 10 });
  const log: string[] = [];
  const commands: ExecRequest[] = [];
  const releases: (() => void)[] = [];
  const until = (what: string, signal: AbortSignal | undefined): Promise<void> =>
    new Promise((resolve, reject) => {
      releases.push(resolve);
      signal?.addEventListener("abort", () => {
        log.push(`${what} ended`);
        reject(signal.reason);
      });
    });
  let opened = 0;
  const driver: SandboxDriver = {
    name: "slow",
    isolation: "none",
    diskLacks: () => undefined,
    async open(_, signal): Promise<Sandbox> {
      const number = ++opened;
      log.push(`open ${number}`);
      if (isSlow(number)) await until(`open ${number}`, signal);
      return {
        id: String(number),
        stateFolder: "/tmp/state",
        loss: undefined,
        usedBytes: () => 50,
        async exec(request): Promise<ExecResult> {
          commands.push(request);
          const command = request.command.join(" ");
          log.push(command);
          const result = {
            status: "exited",
            exitCode: 0,
            stdout: Buffer.alloc(0),
            stderr: Buffer.alloc(0),
            seconds: 0,
          };
          if (command !== "slow") return result as ExecResult;
          return until(command, request.signal).then(
            () => result as ExecResult,
            () => ({ ...result, status: "cancelled", exitCode: null }) as ExecResult,
          );
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
    async close() {},
  };
  const pool = new ActionPool({ managers: [cpu], clock });
  return { clock, cpu, log, commands, releases, pool, actions: new CommandActions(pool, driver) };
}
const spec = { kind: "tests", cost: { cpu: 2 } };
const codeOf = (result: Promise<unknown>): Promise<string> =>
  result.then(
    () => "done",
    (error: TreadleError) => error.code,
  );

test.each(["cancelled", "late"])(
  "CA2 the making of a sandbox ends with the action that is %s, and its cores come back",
  async (how) => {
    const { clock, log, pool, actions } = setUp((sandbox) => sandbox === 1);
    actions.openTrajectory("t");
    const handle = actions.submit("t", { ...spec, ...(how === "late" && { deadlineMs: 500 }) }, { command: ["run"] });
    await settle();
    expect([pool.numRunning, pool.usage().cpu!.held]).toEqual([1, 2]);
    if (how === "cancelled") handle.cancel();
    else await clock.advance(500);
    await settle();
    expect(await codeOf(handle.result)).toBe(how === "late" ? "action.deadline" : "action.cancelled");
    expect([pool.numRunning, pool.usage().cpu!.held]).toEqual([0, 0]);
    expect(log).toEqual(["open 1", "open 1 ended"]);
    await actions.submit("t", spec, { command: ["run"] }).result;
    expect(log.slice(2)).toEqual(["open 2", "run"]);
    await actions.close();
  },
);

test("CA2 so does a command that prepares, which runs on the action's cores, and its sandbox is closed", async () => {
  const { log, commands, pool, actions } = setUp();
  actions.openTrajectory("t", { prepare: [["first"], ["slow"], ["last"]] });
  const handle = actions.submit("t", spec, { command: ["run"] });
  await settle();
  expect(commands.map(({ cores }) => cores)).toEqual([
    [0, 1],
    [0, 1],
  ]);
  handle.cancel();
  await settle();
  expect(log).toEqual(["open 1", "first", "slow", "slow ended", "close 1"]);
  expect(pool.numRunning).toBe(0);
  await actions.close();
});

test("CA2 what two wait for goes on for the one that stays, and ends with the last", async () => {
  const { log, releases, pool, actions } = setUp((sandbox) => sandbox < 3);
  for (const trajectory of ["stays", "goes"]) actions.openTrajectory(trajectory);
  const [left, stays] = [1, 2].map(() => actions.submit("stays", spec, { command: ["run"] })) as [
    ReturnType<typeof actions.submit>,
    ReturnType<typeof actions.submit>,
  ];
  await settle();
  left.cancel();
  await settle();
  expect(pool.numRunning).toBe(1);
  releases[0]!();
  expect((await stays.result).status).toBe("exited");
  expect(log).toEqual(["open 1", "run"]);
  // A file waits, and an action; then both go, the last two at once.
  const gone = new AbortController();
  const write = codeOf(actions.writeFile("goes", "file", "", gone.signal));
  const both = [1, 2].map(() => actions.submit("goes", spec, { command: ["run"] }).result.catch(() => {}));
  await settle();
  gone.abort(Object.assign(new Error("gone"), { code: "gone" }));
  expect(await write).toBe("gone");
  expect(log).toEqual(["open 1", "run", "open 2"]);
  await actions.closeTrajectory("goes");
  await Promise.all(both);
  expect(log).toEqual(["open 1", "run", "open 2", "open 2 ended"]);
  expect(pool.numRunning).toBe(0);
  await actions.close();
});

test("the guard of the memory does not wait for a sandbox that is being made", async () => {
  const { clock, cpu, pool, actions } = setUp((sandbox) => sandbox === 2);
  for (const trajectory of ["greedy", "slow"]) actions.openTrajectory(trajectory);
  await actions.submit("greedy", spec, { command: ["run"] }).result;
  actions.submit("slow", spec, { command: ["run"] });
  await settle();
  expect(pool.numRunning).toBe(1);
  const unguard = guardMemory({
    actions,
    cpu,
    clock,
    memory: () => new Map([["n", { reserveBytes: 100, availableBytes: 60 }]]),
  });
  await clock.advance(300);
  expect(() => actions.submit("greedy", spec, { command: ["run"] })).toThrow(/ran out of memory/);
  unguard();
  await actions.close();
});

test("what was cancelled while it was prepared does not begin, and a lease of it gives its units back", async () => {
  const clock = new ManualClock();
  const pool = new ActionPool({
    managers: [new QuotaManager("judge", { concurrency: 1 })],
    clock,
    // As a service that is restored, whoever has gone.
    prepare: () => clock.sleep(1000),
  });
  const leases = new Leases(pool);
  const granted: string[] = [];
  const first = leases.acquire({ id: "first", kind: "call", cost: { judge: 1 } }, ({ id }) => granted.push(id));
  leases.acquire({ id: "second", kind: "call", cost: { judge: 1 } }, ({ id }) => granted.push(id));
  await settle();
  first.cancel();
  await clock.advance(2000);
  expect(granted).toEqual(["second"]);
  leases.release("second", { httpStatus: 200, retryAfter: "" });
  await settle();
  expect(pool.numRunning).toBe(0);
  await pool.close();
});
