import { readlinkSync, realpathSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";
import { insteadOfOwnNode, secondNode } from "../support/second-node.ts";

const other = await secondNode();
let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

test.skipIf(other === undefined)(
  "another Node than the runner's is refused by its version as an agent's own, and runs workers where an agent allows it (needs the package registry)",
  async () => {
    const program = other as string;
    const a = await world.startNode("a", ["--labels", "node=other"], insteadOfOwnNode(program));
    const refused = world.startRun(["cluster.nodeWaitMs=3000"]);
    expect(await refused.exited).toBe(1);
    expect(refused.events.at(-1)).toMatchObject({
      code: "node.unavailable",
      message: expect.stringMatching(/'a' cannot be used: it runs Node 'v\d+[^']*', the runner 'v\d+[^']*'; install/),
    });
    await a.kill();

    // By its own Node, the workers by the other.
    await world.startNode("b", ["--labels", "node=other", "--allow-interpreter", program]);
    const group = ["cluster.groups.other.labels.node=other", `cluster.groups.other.interpreter.command=${program}`];
    const run = world.startRun(["steps=3", "pauseMs=60", ...group]);
    const { pid } = await run.event("worker-started");
    expect(readlinkSync(`/proc/${pid}/exe`)).toBe(realpathSync(program));
    const { summary } = await run.event("run-finished");
    expect(await run.exited).toBe(0);
    await expectWholeLedger(join(world.runs, summary.runId), 3, 12);
    await world.expectNothingLeft(summary.runId, pidsOf(run.events));
  },
  480_000,
);
