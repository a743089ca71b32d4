/** Other users of a machine and hosts on the network: idle connections without a token, against every door of a whole run. */
import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import { flood } from "../support/flood.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

test.skipIf(process.platform !== "linux")(
  "floods of runner, agents and workers, from the moment in which each listens, restart no worker and end no run",
  async () => {
    await using world = await NodesWorld.open();
    const agents = await Promise.all(["a", "b"].map((name) => world.startNode(name)));
    const run = world.startRun(["steps=60", "pauseMs=60", "cluster.minNodes=2"]);
    const ends = new Map<number, () => void>();
    let isOver = false;
    const flooding = (async () => {
      while (!isOver) {
        const pids = [run.child.pid, ...agents.map(({ child }) => child.pid), ...pidsOf(run.events)];
        for (const pid of pids) {
          if (pid === undefined || ends.has(pid)) continue;
          // More than may wait at a door without having shown a token.
          const end = flood(pid, { connections: 200, againMs: 200 });
          if (end) ends.set(pid, end);
        }
        await delay(10);
      }
    })();
    try {
      const { summary } = await run.event("run-finished");
      expect(await run.exited).toBe(0);
      expect(summary.restarts).toBe(0);
      expect(run.events.filter(({ type }) => type === "worker-died")).toEqual([]);
      const workers = pidsOf(run.events);
      expect(workers).toHaveLength(4);
      for (const pid of [run.child.pid as number, ...workers]) expect([...ends.keys()]).toContain(pid);
      await expectWholeLedger(`${world.runs}/${summary.runId}`, 60, 12);
      await world.expectNothingLeft(summary.runId, workers);
    } finally {
      isOver = true;
      await flooding;
      for (const end of ends.values()) end();
    }
  },
  300_000,
);
