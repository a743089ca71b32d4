import { once } from "node:events";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, until } from "../support/cluster.ts";
import { keyOverrides } from "../support/keys.ts";
import { pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";
import { startTreadle } from "../support/treadle.ts";

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

test("S4: a second signal ends a run while a process that a dead worker started holds that worker's output", async () => {
  const onSignal = fileURLToPath(new URL("../chaos/on-signal.mjs", import.meta.url));
  world.environment = { NODE_OPTIONS: `--import=${onSignal}` };
  await world.startNode("a");
  const settings = [
    `cluster.nats.url=${world.nats.url}`,
    ...keyOverrides(world.nats.keys),
    "steps=100000",
    "pauseMs=3600000", // an hour an item, so the first signal waits for a step that does not end
  ];
  const workflow = join(world.project, "support/workflows/ledger");
  const flags = ["--plain", "--runs", world.runs, ...settings.flatMap((each) => ["--set", each])];
  const run = startTreadle(["run", workflow, ...flags], undefined, world.project);
  const events = async () => {
    const [folder = ""] = await readdir(world.runs).catch(() => []);
    const lines = await readFile(join(world.runs, folder, "events.jsonl"), "utf8").catch(() => "");
    return lines.split("\n").flatMap((line) => (line.endsWith("}") ? [JSON.parse(line) as RunEvent] : []));
  };
  const [victim] = (await until(async () => {
    const pids = pidsOf(await events());
    return pids.length > 1 ? pids : undefined;
  }, "the workers")) as [number];
  process.kill(victim, "SIGUSR2"); // it starts a process in a session of its own, and dies
  await until(async () => (await events()).some(({ type }) => type === "worker-died"), "its death to be noticed");
  run.child.kill("SIGTERM");
  await until(() => run.output().includes("press Ctrl-C again"), "the first signal to be heard");
  run.child.kill("SIGTERM");
  expect((await run.finished).code).toBe(130);
  await until(async () => !pidsOf(await events()).some(isAlive), "the workers to end");
}, 300_000);
