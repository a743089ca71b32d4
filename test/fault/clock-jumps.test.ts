/** Wall clocks that jump by hours, each machine's its own, cost nothing: time is measured where no clock is set. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { monitorEventLoopDelay } from "node:perf_hooks";
import type { RunEvent } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, pidOf } from "../support/cluster.ts";
import { expectWholeLearningLedger } from "../support/learning-ledger.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";
import { projectRoot } from "../support/project.ts";

let world: NodesWorld;
const waits = monitorEventLoopDelay();
beforeEach(async () => {
  waits.reset();
  waits.enable();
  world = await NodesWorld.open();
});
afterEach(() => world.close());

const reachedFile = () => join(world.root, "jumping");

/** Processes that are started from now on are on a machine of which the clock jumps, in a way of its own. */
function jumpAs(clock: "back" | "forth" | number): void {
  world.environment = {
    NODE_OPTIONS: `--require=${join(projectRoot, "test/support/jumping-clock.cjs")}`,
    JUMPING_CLOCK: String(clock),
    JUMPING_CLOCK_LOG: reachedFile(),
  };
}

async function startAll(overrides: readonly string[], name?: string): Promise<RunProcess> {
  const starting = (["back", "forth"] as const).map((clock) => {
    jumpAs(clock);
    return world.startNode(clock);
  });
  await Promise.all(starting);
  jumpAs(7);
  return world.startRun(["cluster.minNodes=2", ...overrides], "new", undefined, name);
}

/**
 * No other than these. A machine so busy that this process waited for seconds may have kept beats and leases waiting, too,
 * and then says nothing of clocks.
 */
function expectDeaths(run: RunProcess, deaths: readonly RunEvent[]): void {
  if (waits.max / 1e6 > 1000) return;
  expect(run.events.filter(({ type }) => type === "worker-died")).toEqual(deaths);
  expect(run.lines().filter((line) => line.includes("is lost"))).toEqual([]);
}

/** Every process of the run, and in each of them its threads, had such a clock. */
async function expectJumped(run: RunProcess): Promise<void> {
  const lines = (await readFile(reachedFile(), "utf8")).trim().split("\n");
  const reached = lines.map((line) => JSON.parse(line) as { pid: number; thread: number });
  for (const pid of [run.child.pid as number, ...pidsOf(run.events)]) {
    expect(reached.filter((each) => each.pid === pid).length, `threads of ${pid}`).toBeGreaterThan(1);
  }
}

test("M3: nobody is taken for dead, and every prompt is trained once", async () => {
  const run = await startAll(["steps=6"], "learning-ledger");
  const { runId } = await run.event("run-started");
  await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expectDeaths(run, []);
  await expectWholeLearningLedger(join(world.runs, runId), 6, 12);
  await expectJumped(run);
  await world.expectNothingLeft(runId, pidsOf(run.events));
}, 300_000);

test("S2: a death is noticed and mended, and a NATS server that comes back is found, as soon as with steady clocks", async () => {
  const run = await startAll(["steps=20", "pauseMs=40", "supervision.heartbeatTimeoutMs=10000"]);
  const { runId } = await run.event("run-started");
  await run.event("step-finished", ({ step }) => step === 2);
  await world.nats.stop("SIGKILL");
  await new Promise((resolve) => setTimeout(resolve, 1000));
  await world.nats.start();
  const maker = pidOf(run.events, "maker/0");
  process.kill(maker, "SIGSTOP");
  const died = await run.event("worker-died", ({ worker }) => worker === "maker/0");
  expect(isAlive(maker)).toBe(false);
  await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expectDeaths(run, [died]);
  await expectWholeLedger(join(world.runs, runId), 20, 12);
  await expectJumped(run);
  await world.expectNothingLeft(runId, pidsOf(run.events));
}, 300_000);

test("S3: a worker that neither computes nor returns is seen to stand still", async () => {
  jumpAs("forth");
  await world.startNode("forth");
  jumpAs("back");
  const run = world.startRun(["pauseMs=600000", "supervision.stallMs=2000"]);
  const { error } = await run.event("run-failed");
  expect(error).toMatchObject({
    code: "call.timeout",
    message: expect.stringMatching(/^nothing moved for \d{1,2} s: /),
  });
  expect(await run.exited).toBe(1);
}, 300_000);
