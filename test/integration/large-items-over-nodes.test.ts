import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, pidOf, until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";

const payload = 300_000;
const itemBytes = payload * Float32Array.BYTES_PER_ELEMENT;
const batch = 12;
const settings = [`payload=${payload}`, `batch=${batch}`, "cluster.minNodes=2"];

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

/** What a process has read and written so far, files included. */
function bytesMoved(pid: number): number {
  const counters = readFileSync(`/proc/${pid}/io`, "utf8").matchAll(/^[rw]char: (\d+)$/gm);
  return [...counters].reduce((sum, [, bytes]) => sum + Number(bytes), 0);
}

async function expectDone(run: RunProcess, steps: number): Promise<void> {
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  await expectWholeLedger(join(world.runs, summary.runId), steps, batch);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}

test.skipIf(!existsSync("/proc/self/io"))(
  "large items go from node to node, and only their names through the runner",
  async () => {
    await Promise.all([world.startNode("a"), world.startNode("b")]);
    const run = world.startRun([...settings, "steps=5"]);
    await run.event("step-finished", ({ step }) => step === 1);
    const before = bytesMoved(run.child.pid as number);
    await run.event("step-finished", ({ step }) => step === 4);
    const moved = bytesMoved(run.child.pid as number) - before;
    // Through the runner they would be read and written: twice as much.
    expect(moved).toBeLessThan(0.1 * 2 * batch * itemBytes);
    await expectDone(run, 5);
  },
  480_000,
);

test("C1, DP1: a producer that dies takes nothing along, and neither does its whole node", async () => {
  const [a] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun([...settings, "steps=6", "pauseMs=60", "cluster.rejoinMs=200"]);
  await run.event("step-started", ({ step }) => step === 2);
  const maker = pidOf(run.events, "maker/0");
  process.kill(maker, "SIGKILL");
  await until(() => !isAlive(maker), "the maker to die");
  await run.event("worker-restarted", ({ worker }) => worker === "maker/0");
  await run.event("step-started", ({ step }) => step === 4);
  await a?.kill();
  await expectDone(run, 6);
  expect(run.lines()).toContainEqual(expect.stringContaining("node 'a' is lost"));
}, 480_000);
