import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

/** Where the plan, or a later move, put each worker. */
const nodesOf = (run: RunProcess): Set<string> =>
  new Set(
    run.events.flatMap((event) =>
      event.type === "plan"
        ? event.placement.flatMap(({ devices }) => devices.map((device) => device.split("/")[0] as string))
        : [],
    ),
  );

const linesOf = (run: RunProcess): string[] =>
  run.events.flatMap((event) => (event.type === "log" && event.worker === "runner" ? [event.line] : []));

async function expectDone(run: RunProcess, steps: number): Promise<string> {
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expect(summary).toMatchObject({ steps, policyVersion: steps });
  await expectWholeLedger(join(world.runs, summary.runId), steps, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
  return summary.runId;
}

test("S2: one of two node agents is killed: its workers end, its ranks move to the other node, nothing is lost", async () => {
  const [, b] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=6", "pauseMs=60", "cluster.minNodes=2", "cluster.rejoinMs=200"]);
  await run.event("step-started", ({ step }) => step === 2);
  expect(nodesOf(run)).toEqual(new Set(["a", "b"]));
  await b?.kill();
  await run.event("step-finished", ({ step }) => step === 4);
  expect(linesOf(run).filter((line) => line.includes("moves from node 'b' to 'a'")).length).toBeGreaterThan(0);
  expect(linesOf(run)).toContainEqual(expect.stringContaining("node 'b' is lost"));
  await expectDone(run, 6);
}, 240_000);
