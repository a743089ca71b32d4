import { once } from "node:events";
import { fileURLToPath } from "node:url";
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

test("S4: a second signal ends a run at once, also while a process that a dead worker started holds its output", async () => {
  const onSignal = fileURLToPath(new URL("../chaos/on-signal.mjs", import.meta.url));
  world.environment = { NODE_OPTIONS: `--import=${onSignal}` };
  await world.startNode("a");
  const run = world.startRun(["steps=100000", "pauseMs=50", "supervision.maxRestarts=0"]);
  await run.event("step-finished", ({ step }) => step === 2);
  const started = pidsOf(run.events);
  process.kill(started[0] as number, "SIGUSR2"); // it starts a process in a session of its own, and dies
  for (let i = 0; i < 2; i++) run.child.kill("SIGTERM");
  const code = await run.exited;
  expect(code).not.toBe(0);
  await until(() => !pidsOf(run.events).some(isAlive), "the workers to end");
}, 300_000);
