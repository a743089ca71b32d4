/** Other users of a machine and hosts on the network: idle connections without a token, against every door of a whole run. */
import { readdirSync, readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { connectStranger } from "@treadle/transport/testing";
import { expect, test } from "vitest";
import { until } from "../support/cluster.ts";
import { Flood } from "../support/flood.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

/** More than may wait at a door without having shown a token. */
const connections = 200;
const lookMs = 10;

/** Those that a process has started, and so on. */
function descendantsOf(pid: number): number[] {
  const parents = new Map<number, number>();
  for (const each of readdirSync("/proc").map(Number).filter(Number.isInteger)) {
    try {
      const stat = readFileSync(`/proc/${each}/stat`, "latin1");
      parents.set(each, Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
    } catch {
      // it has just ended
    }
  }
  const below = (parent: number): number[] =>
    [...parents].flatMap(([child, of]) => (of === parent ? [child, ...below(child)] : []));
  return below(pid);
}

test.skipIf(process.platform !== "linux")(
  "floods of every door of runner, agents and workers, from the moment in which it is open, restart no worker and end no run",
  async () => {
    await using world = await NodesWorld.open();
    const agents = await Promise.all(["a", "b"].map((name) => world.startNode(name)));
    const agentPids = agents.map(({ child }) => child.pid as number);
    const run = world.startRun(["steps=60", "pauseMs=60", "cluster.minNodes=2"]);
    await using flood = new Flood({ connections, againMs: 200 });
    let isOver = false;
    const flooding = (async () => {
      // Workers listen long before they are up, and doors open one after another.
      for (; !isOver; await delay(lookMs))
        for (const pid of [run.child.pid as number, ...agentPids, ...agentPids.flatMap(descendantsOf)]) flood.at(pid);
    })();
    try {
      const { summary } = await run.event("run-finished");
      expect(await run.exited).toBe(0);
      expect(summary.restarts).toBe(0);
      expect(run.events.filter(({ type }) => type === "worker-died")).toEqual([]);
      const workers = pidsOf(run.events);
      expect(workers).toHaveLength(4);
      const flooded = [...flood.pids];
      for (const pid of [run.child.pid as number, ...agentPids, ...workers]) expect(flooded).toContain(pid);
      await expectWholeLedger(`${world.runs}/${summary.runId}`, 60, 12);
      await world.expectNothingLeft(summary.runId, workers);
    } finally {
      isOver = true;
      await flooding;
    }
  },
  300_000,
);

test.each([
  ["large", 16_000, 1],
  ["tiny", 0, 500],
] as const)(
  "a run goes on while the holder of a node's key says %s things of nodes without end",
  async (_, numObjects, atOnce) => {
    await using world = await NodesWorld.open();
    await world.startNode("a");
    const run = world.startRun(["cluster.minNodes=1", "steps=100000"]);
    await run.event("step-finished");
    const steps = () => run.events.filter(({ type }) => type === "step-finished").length;
    const seed = new TextEncoder().encode((await readFile(world.nats.keys.node, "utf8")).trim());
    const attacker = await connectStranger(world.nats.url, seed);
    const body = JSON.stringify(new Array(numObjects).fill({}));
    const entry = new TextEncoder().encode(`{"incarnation":1,"version":0,"body":${body}}`);
    let isOver = false;
    const flood = async () => {
      while (!isOver) {
        for (let i = 0; i < atOnce; i++) attacker.publish("treadle.entry.node.x", entry);
        await attacker.flush();
        await delay(1);
      }
    };
    const flooding = flood();
    await delay(2000); // what was on its way before
    const before = steps();
    try {
      await until(() => steps() > before + 3, "steps under a flood", 60_000);
    } finally {
      isOver = true;
      await flooding;
    }
    await attacker.close();
  },
  300_000,
);
