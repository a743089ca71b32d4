import { once } from "node:events";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, until } from "../support/cluster.ts";
import { pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

test("S4: a second signal ends an agent from which a run cannot move away, with the worker that hangs there", async () => {
  const agent = await world.startNode("a", ["--drain", "3600"]);
  const run = world.startRun(["mistake=endless-loop", "supervision.stallMs=2000"], "new", world.runs, "mistakes");
  await run.line("has computed in 'score'");
  const pids = pidsOf(run.events);
  expect(pids).toHaveLength(1);
  const ended = once(agent.child, "exit");
  agent.child.kill("SIGTERM");
  await until(() => agent.output().includes("drains"), "the agent to drain");
  expect(pids.filter(isAlive)).toEqual(pids);
  agent.child.kill("SIGTERM");
  expect(await ended).toEqual([130, null]);
  await until(() => !pids.some(isAlive), "the worker to end");
}, 300_000);
