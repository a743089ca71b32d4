import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, expect, test } from "vitest";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

test("S2: an agent that beats and answers nothing is named and keeps no launch back; it is used when it answers again", async () => {
  const goOn = join(world.root, "go-on");
  const onSignal = fileURLToPath(new URL("../chaos/on-signal.mjs", import.meta.url));
  world.environment = { NODE_OPTIONS: `--import=${onSignal}`, CHAOS_HANG_UNTIL: goOn };
  const [hung] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  hung.child.kill("SIGUSR2");
  const run = world.startRun(["steps=40", "pauseMs=60"]);
  await run.line("begins without node 'a', which is there and has not answered");
  await run.event("step-finished", ({ step }) => step === 2);
  const { placement } = await run.event("plan");
  expect(placement.flatMap(({ devices }) => devices).every((device) => device.startsWith("b/"))).toBe(true);
  await run.line("node 'a' beats, and does not answer: it is asked again");
  writeFileSync(goOn, "");
  await run.line("node 'a' has joined");
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  await expectWholeLedger(join(world.runs, summary.runId), 40, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}, 480_000);

test("MB4, S2: what dies on a node whose agent hangs is elsewhere within seconds, long before its silence would tell", async () => {
  const goOn = join(world.root, "go-on");
  const onSignal = fileURLToPath(new URL("../chaos/on-signal.mjs", import.meta.url));
  world.environment = { NODE_OPTIONS: `--import=${onSignal}`, CHAOS_HANG_UNTIL: goOn };
  const [hung] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const heartbeatTimeoutMs = 240_000; // of a worker; the agent is asked
  const run = world.startRun([
    ...["steps=60", "pauseMs=60", "cluster.minNodes=2", "cluster.rejoinMs=0"],
    `supervision.heartbeatTimeoutMs=${heartbeatTimeoutMs}`,
  ]);
  await run.event("step-finished", ({ step }) => step === 2);
  const { placement } = await run.event("plan");
  const onHung = placement.flatMap(({ component, devices }) =>
    devices.some((device) => device.startsWith("a/")) ? [component] : [],
  );
  const victim = await run.event("worker-started", ({ worker, pid }) => {
    const [component = ""] = worker.split("/");
    return pid !== undefined && onHung.includes(component);
  });
  hung.child.kill("SIGUSR2");
  const killedMs = performance.now();
  process.kill(victim.pid as number, "SIGKILL");
  await run.line("node 'a' is lost: it beats, and does not answer");
  const tookMs = performance.now() - killedMs;
  const { reason } = await run.event("worker-died", ({ worker }) => worker === victim.worker);
  expect(reason).toContain("node 'a'");
  await run.event("worker-restarted", ({ worker }) => worker === victim.worker);
  expect(tookMs).toBeLessThan(60_000); // five seconds, and what a busy machine takes for each
  writeFileSync(goOn, "");
  await run.line("node 'a' has joined");
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  await expectWholeLedger(join(world.runs, summary.runId), 60, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}, 480_000);
