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

/** Remembers what it was asked for; sandboxes named in `dying` fail their first command as if they had died. */
function recordingDriver(dying: number[] = []) {
  const log: string[] = [];
  const requests: ExecRequest[] = [];
  let opened = 0;
  const driver: SandboxDriver = {
    name: "recording",
    isolation: "none",
    async open(): Promise<Sandbox> {
      const number = ++opened;
      log.push(`open ${number}`);
      return {
        id: String(number),
        async exec(request): Promise<ExecResult> {
          requests.push(request);
          if (dying.includes(number)) throw new TreadleError("sandbox.failed", "it has died");
          log.push(`exec in ${number}`);
          return { status: "exited", exitCode: 0, stdout: Buffer.from("out"), stderr: Buffer.alloc(0), seconds: 0 };
        },
        holdShell: () => {
          throw new Error("not used here");
        },
        async writeFile() {},
        readFile: async () => Buffer.alloc(0),
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

function setUp(dying: number[] = []) {
  const clock = new ManualClock();
  const nodes = ["n0", "n1"].map((id) => ({ id, numa: [[0, 1, 2, 3]], memoryBytes: 100 }));
  const cpu = new CpuManager({ nodes, trajectoryMemoryBytes: 60 });
  const { driver, log, requests } = recordingDriver(dying);
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
  expect(log).toEqual(["open 1", "exec in 1", "exec in 1", "close 1"]);
  await actions.close();
});

test("a sandbox that died is replaced at the next attempt", async () => {
  const { clock, log, actions } = setUp([1]);
  actions.openTrajectory("t");
  const handle = actions.submit("t", { ...spec, retries: { limit: 1, backoffMs: 10 } }, { command: ["run"] });
  await clock.advance(20);
  expect((await handle.result).status).toBe("exited");
  expect(log).toEqual(["open 1", "close 1", "open 2", "exec in 2"]);
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
