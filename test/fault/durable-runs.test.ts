import { execFile } from "node:child_process";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { NatsCluster } from "../chaos/nats-cluster.ts";
import { isAlive, pidOf, until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld, type RunProcess } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

const kept = ["cluster.nats.durableRuns=true", "pauseMs=60"];

type World = Pick<NodesWorld, "command" | "project" | "temporary" | "flagsOf">;

/** The command line on another machine: another folder for runs. */
const treadleOf =
  (world: World) =>
  async (...args: string[]): Promise<string> => {
    const { stdout } = await promisify(execFile)(process.execPath, [world.command, ...args, ...world.flagsOf()], {
      cwd: world.project,
      env: { ...process.env, TMPDIR: world.temporary },
      timeout: 120_000,
    });
    return stdout;
  };
const treadle = (...args: string[]): Promise<string> => treadleOf(world)(...args);

const threw = (run: RunProcess) => run.events.at(-1) as unknown as { code: string; message: string };

test("J1: a runner dies with its machine's disk; its run goes on elsewhere, no prompt lost and none trained twice", async () => {
  await world.startNode("a");
  const first = world.startRun(["steps=8", ...kept]);
  const { runId } = await first.event("run-started");
  await first.event("step-finished", ({ step }) => step === 3);
  first.child.kill("SIGKILL");
  await first.exited;
  const pids = pidsOf(first.events);
  await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 30_000);
  const committed = first.events.flatMap((event) => (event.type === "step-finished" ? [event.step] : []));
  await rm(join(world.runs, runId), { recursive: true });

  expect(await treadle("runs", "--kept")).toBe(`${runId}\n`);
  const elsewhere = join(world.root, "elsewhere");
  const printed = await treadle("resume", runId, "--runs", elsewhere, "--json");
  const summary = JSON.parse(printed) as { steps: number; policyVersion: number };
  expect(summary).toMatchObject({ steps: 8, policyVersion: 8 });
  await expectWholeLedger(join(elsewhere, runId), 8, 12);
  expect(committed.length).toBeGreaterThanOrEqual(3);

  // A checkpoint of the first machine's, which the second has never seen before, serves as well.
  await rm(elsewhere, { recursive: true });
  const again = await treadle("resume", runId, "--runs", elsewhere, "--json", "--set", "steps=9");
  expect(JSON.parse(again)).toMatchObject({ steps: 9 });
  await expectWholeLedger(join(elsewhere, runId), 9, 12);
  expect(await treadle("runs", "--forget", runId)).toContain("no runs are kept there");
}, 480_000);

test("RS8, J1: with states every few steps a death on a node rolls back, and elsewhere the run goes on after what is kept", async () => {
  await world.startNode("a");
  const every = "checkpoints.stateEverySteps=3";
  const first = world.startRun(["steps=40", every, ...kept]);
  const { runId } = await first.event("run-started");
  await first.event("step-started", ({ step }) => step === 5); // step 4 has ended, and is in no saved state
  process.kill(pidOf(first.events, "trainer/0"), "SIGKILL");
  const again = await first.event(
    "run-started",
    (event) => first.events.indexOf(event) > 0 && event.resumedFrom !== undefined,
  );
  expect((again.resumedFrom ?? 0) % 3).toBe(0);
  await first.event("step-finished", ({ step }) => step >= 6);
  first.child.kill("SIGKILL");
  await first.exited;
  const pids = pidsOf(first.events);
  await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 30_000);
  await rm(join(world.runs, runId), { recursive: true });
  const done = Math.max(...first.events.map((event) => (event.type === "step-finished" ? event.step : 0)));
  const steps = done + 10; // more than may be committed by then
  const elsewhere = join(world.root, "elsewhere");
  const printed = await treadle("resume", runId, "--runs", elsewhere, "--json", "--set", `steps=${steps}`);
  expect(JSON.parse(printed)).toMatchObject({ steps, policyVersion: steps });
  await expectWholeLedger(join(elsewhere, runId), steps, 12);
}, 600_000);

test("a run that goes on is refused to a second runner; one that was suspended finds that its run went on elsewhere", async () => {
  await world.startNode("a");
  const first = world.startRun(["steps=5000", ...kept]);
  const { runId } = await first.event("run-started");
  await first.event("step-finished", ({ step }) => step === 2);
  const elsewhere = join(world.root, "elsewhere");
  const second = world.startRun(["steps=5000", ...kept], runId, elsewhere);
  expect(await second.exited).toBe(1);
  expect(threw(second)).toMatchObject({ code: "run.locked", message: expect.stringContaining("in use by another") });

  first.child.kill("SIGSTOP");
  const finished = () => first.events.filter((event) => event.type === "step-finished");
  await new Promise((resolve) => setTimeout(resolve, 1000)); // what it has said is read
  const before = finished().length;
  const steps = before + 8; // one more may be committed than it has said
  const takeOver = async () => {
    const run = world.startRun([`steps=${steps}`, "pauseMs=10"], runId, elsewhere);
    const isTaken = run.event("step-finished").then(
      () => true,
      () => false, // it was refused: the first has not been silent for long enough
    );
    return (await isTaken) ? run : undefined;
  };
  const third = await until(takeOver, "the silence of the first to count", 120_000);
  first.child.kill("SIGCONT");
  expect(await first.exited).toBe(1);
  expect(threw(first)).toMatchObject({ code: "run.locked" });
  expect(finished().length).toBeLessThanOrEqual(before + 1); // what was committed before may only be said now
  await third.event("run-finished");
  expect(await third.exited).toBe(0);
  await expectWholeLedger(join(elsewhere, runId), steps, 12);
}, 600_000);

test("with the NATS server away, a step counts when it is back; when it stays away, the run ends and goes on later", async () => {
  await world.startNode("a");
  const run = world.startRun(["steps=8", ...kept]);
  const { runId } = await run.event("run-started");
  await run.event("step-finished", ({ step }) => step === 2);
  await world.nats.stop("SIGKILL");
  await run.line("waits for the NATS servers");
  const before = run.events.filter((event) => event.type === "step-finished").length;
  await new Promise((resolve) => setTimeout(resolve, 1000));
  expect(run.events.filter((event) => event.type === "step-finished")).toHaveLength(before);
  await world.nats.start();
  await run.event("run-finished");
  expect(await run.exited).toBe(0);
  await expectWholeLedger(join(world.runs, runId), 8, 12);

  const brief = world.startRun(["steps=12", ...kept, "cluster.nats.outageMs=1500"]);
  const other = await brief.event("run-started");
  await brief.event("step-finished", ({ step }) => step === 2);
  await world.nats.stop("SIGKILL");
  expect(await brief.exited).toBe(1);
  expect(threw(brief)).toMatchObject({
    code: "control-plane.unreachable",
    message: expect.stringContaining("treadle resume"),
  });
  await world.nats.start();
  const elsewhere = join(world.root, "elsewhere");
  const resumed = JSON.parse(await treadle("resume", other.runId, "--runs", elsewhere, "--json")) as object;
  expect(resumed).toMatchObject({ steps: 12, policyVersion: 12 });
  await expectWholeLedger(join(elsewhere, other.runId), 12, 12);
}, 480_000);

test("S2, J1: of three NATS servers that keep a run one comes back with a part of it, and another dies; the run goes on without its disk", async () => {
  const here = { host: "127.0.0.1", inside: [] };
  await using three = await NodesWorld.over(await NatsCluster.start([here, here, here]));
  // The servers elect who keeps what before they keep anything.
  const start = () => three.startNode("a", ["--replicas", "3"]).catch(() => undefined);
  await until(start, "an agent that could announce itself", 120_000);
  const replicas = "cluster.nats.replicas=3";
  const first = three.startRun(["steps=5000", replicas, ...kept]);
  const { runId } = await first.event("run-started");
  const next = async () => {
    const before = first.events.filter(({ type }) => type === "step-finished").length;
    await first.event("step-finished", ({ step }) => step > before + 1);
  };
  await next();
  const [last, other] = three.nats.servers;
  await other?.stop("SIGKILL");
  await next();
  await other?.start();
  await next();
  await last?.stop("SIGKILL");
  await next();
  await delay(2500); // the runner looks every two seconds whether the servers have everything
  await next();
  first.child.kill("SIGKILL");
  await first.exited;
  const done = first.events.filter(({ type }) => type === "step-finished").length;
  await rm(join(three.runs, runId), { recursive: true });
  const steps = done + 4;
  const elsewhere = join(three.root, "elsewhere");
  const args = ["--runs", elsewhere, "--json", "--set", `steps=${steps}`];
  const summary = JSON.parse(await treadleOf(three)("resume", runId, ...args)) as object;
  expect(summary).toMatchObject({ steps, policyVersion: steps });
  await expectWholeLedger(join(elsewhere, runId), steps, 12);
}, 600_000);
