import { TreadleError } from "@treadle/contracts";
import { afterEach, describe, expect, test } from "vitest";
import { ActionPool, CpuManager, ProcessDriver, ShellActions, type ShellActionsOptions } from "../src/index.ts";
import { eventually, processesWith } from "./support/processes.ts";

let actions: ShellActions | undefined;
afterEach(() => actions?.close());

function setUp(options: Pick<ShellActionsOptions, "scheduling" | "sandboxes">, cores = 2): ShellActions {
  const numa = [Array.from({ length: cores }, (_, core) => core)];
  const cpu = new CpuManager({ nodes: [{ id: "local", numa, memoryBytes: 2 ** 30 }] });
  const pool = new ActionPool({ managers: [cpu] });
  actions = new ShellActions({ pool, driver: new ProcessDriver(), ...options });
  return actions;
}
const spec = { kind: "echo", cost: { cpu: 1 } };
const echo = { program: 'echo "$1"', args: ["hello"] };

describe.each(["action", "trajectory"] as const)("scheduling by %s", (scheduling) => {
  describe.each(["slot", "trajectory"] as const)("with a sandbox for each %s", (sandboxes) => {
    test("answers, and gives every core back when trajectories close (SA3)", async () => {
      const shells = setUp({ scheduling, sandboxes });
      for (const name of ["a", "b", "c", "d"]) {
        shells.openTrajectory(name);
        for (let turn = 0; turn < 2; turn++) {
          const result = await shells.run(name, spec, echo);
          expect([result.status, result.output.toString(), result.cores.length]).toEqual(["exited", "hello\n", 1]);
        }
        await shells.closeTrajectory(name);
      }
      const { heldSeconds, busySeconds } = shells.coreTime();
      expect(heldSeconds).toBeGreaterThanOrEqual(busySeconds);
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(shells.coreTime().heldSeconds).toBe(heldSeconds);
    });

    test("closing a trajectory ends its action, whether it runs or waits, and lets others go on (SA3)", async () => {
      const shells = setUp({ scheduling, sandboxes }, 1);
      shells.openTrajectory("runs");
      shells.openTrajectory("waits");
      const running = shells.run("runs", spec, { program: "sleep 81.25" });
      expect(await eventually(() => processesWith("81.25").length > 0)).toBe(true);
      const waiting = shells.run("waits", spec, echo);
      const ended = Promise.all(
        [running, waiting].map((one) =>
          one.then(
            ({ status }) => status,
            (error: TreadleError) => error.code,
          ),
        ),
      );
      await shells.closeTrajectory("waits");
      await shells.closeTrajectory("runs");
      expect(processesWith("81.25")).toEqual([]);
      const outcomes = await ended;
      expect(["cancelled", "action.cancelled"]).toContain(outcomes[0]);
      expect(outcomes[1]).toBe("action.cancelled");
      shells.openTrajectory("next");
      expect((await shells.run("next", spec, echo)).status).toBe("exited");
    });
  });
});

test("SA1 by trajectory, a core stays with its trajectory while nothing runs; by action, it does not", async () => {
  const think = async (scheduling: "action" | "trajectory") => {
    const shells = setUp({ scheduling, sandboxes: "slot" }, 1);
    for (const name of ["first", "second"]) shells.openTrajectory(name);
    await shells.run("first", spec, echo);
    let isAnswered = false;
    const second = shells.run("second", spec, echo).then((result) => {
      isAnswered = true;
      return result;
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    const wasAnswered = isAnswered;
    await shells.closeTrajectory("first");
    expect((await second).status).toBe("exited");
    return wasAnswered;
  };
  expect(await think("trajectory")).toBe(false);
  await actions?.close();
  expect(await think("action")).toBe(true);
});

test("SA2 files are shared through a slot, and not between trajectories that have sandboxes of their own", async () => {
  const leftBehind = async (sandboxes: "slot" | "trajectory") => {
    const shells = setUp({ scheduling: "action", sandboxes }, 1);
    shells.openTrajectory("first");
    await shells.run("first", spec, { program: "echo x > file" });
    expect((await shells.run("first", spec, { program: "cat file" })).output.toString()).toBe("x\n");
    shells.openTrajectory("second");
    return (await shells.run("second", spec, { program: "cat file" })).exitCode === 0;
  };
  expect(await leftBehind("slot")).toBe(true);
  await actions?.close();
  expect(await leftBehind("trajectory")).toBe(false);
});

test("many actions are in flight at once, never two on a core, and each says how long it waited", async () => {
  const shells = setUp({ scheduling: "action", sandboxes: "slot" });
  const names = Array.from({ length: 12 }, (_, i) => `t${i}`);
  for (const name of names) shells.openTrajectory(name);
  const results = await Promise.all(names.map((name) => shells.run(name, spec, { program: "sleep 0.03" })));
  for (const core of [0, 1]) {
    const own = results.filter(({ cores }) => cores[0] === core).sort((a, b) => a.grantedMs - b.grantedMs);
    expect(own.length).toBeGreaterThan(0);
    for (const [i, { grantedMs }] of own.entries()) {
      const before = own[i - 1];
      if (before) expect(grantedMs).toBeGreaterThanOrEqual(before.grantedMs + 1000 * before.executionSeconds - 1);
    }
  }
  expect(Math.max(...results.map(({ queueingSeconds }) => queueingSeconds))).toBeGreaterThan(0.1);
});

test("an action of a trajectory that is not open is refused", async () => {
  const shells = setUp({ scheduling: "action", sandboxes: "slot" });
  await expect(shells.run("nobody", spec, echo)).rejects.toThrow(TreadleError);
  shells.openTrajectory("twice");
  expect(() => shells.openTrajectory("twice")).toThrow(/open already/);
});
