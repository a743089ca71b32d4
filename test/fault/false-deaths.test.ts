/** News of a death that did not happen: the process in question counts no more, does no harm, and ends. */
import { realpath } from "node:fs/promises";
import { join } from "node:path";
import { type ControlPlane, LinksConfig, NatsConfig, WorkerPermissions } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { machineFacts } from "../../packages/runtime/src/node/machine-facts.ts";
import { NodeService } from "../../packages/runtime/src/node/node-service.ts";
import { openSocketFolder } from "../../packages/runtime/src/node/socket-folder.ts";
import { until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await world.close();
});

/** An agent of this process: nobody else can tell lies for it. */
async function startLiar(name: string): Promise<{ readonly plane: ControlPlane; close(): Promise<void> }> {
  const { url, keys } = world.nats;
  vi.stubEnv("TMPDIR", world.temporary);
  const nats = NatsConfig.parse({ url, credentialsFile: keys.node, trustFile: keys.trust });
  const plane = await openNatsControlPlane({ nats, name, keepsRecords: false });
  const service = new NodeService({
    name,
    plane,
    info: { ...machineFacts(), devices: [], labels: {} },
    projectRoot: await realpath(world.project),
    place: {
      kind: "machine",
      links: LinksConfig.parse({}),
      permissions: WorkerPermissions.parse({}),
      openFolder: openSocketFolder,
      cutOffMs: 60_000,
    },
  });
  await service.start();
  return { plane, close: () => service.close("the test is over").then(() => plane.close()) };
}

/** All ranks of a trainer begin a new life when one dies, since they hold one state together. */
function incarnationOf(worker: string, run: RunProcess): number {
  const isOne = (name: string) => name === worker || (worker.startsWith("trainer/") && name.startsWith("trainer/"));
  return run.events.filter((event) => event.type === "worker-died" && isOne(event.worker)).length;
}

test("RK2, C1: workers that are reported dead while they live end, and what they do until then does not count", async () => {
  const liar = await startLiar("a");
  const { plane } = liar;
  const run = world.startRun(["steps=8", "pauseMs=50", "supervision.maxRestarts=1000"]);
  const { runId } = await run.event("run-started");
  const runner = await until(() => plane.members("run").find(({ name }) => name === runId), "the run to be announced");
  const isOver = () => run.events.some(({ type }) => type === "run-finished" || type === "run-failed");
  const back = () => run.events.filter(({ type }) => type === "worker-restarted").length;
  await run.event("step-started", ({ step }) => step === 2);
  let numLies = 0;
  for (const worker of ["maker/0", "trainer/1", "maker/1", "trainer/0", "maker/0", "trainer/1"]) {
    const before = back();
    // Between steps, in the midst of one, while its mates are replaced: the seconds that processes take to start decide.
    // Told again, since it counts for nothing when it names a life that has ended meanwhile.
    await until(
      async () => {
        const report = { worker, incarnation: incarnationOf(worker, run), code: null, signal: "SIGKILL", logTail: [] };
        await plane.command(runner, "exited", { node: "a", report }, { timeoutMs: 10_000 }).catch(() => {});
        return until(() => isOver() || back() > before, `${worker} to be back`, 10_000).catch(() => false);
      },
      `${worker} to be back`,
      120_000,
    );
    if (!isOver()) numLies++;
  }
  expect(numLies).toBeGreaterThan(2);
  await run.event("run-finished");
  expect(await run.exited).toBe(0);
  await liar.close();
  await expectWholeLedger(join(world.runs, runId), 8, 12);
  await world.expectNothingLeft(runId, pidsOf(run.events));
}, 480_000);
