import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { makeCertificates } from "../../packages/transport/test/support/certificates.ts";
import { childrenOf, isAlive, pidOf, until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { canUnplug, unpluggableNetwork } from "../support/network.ts";
import { type NodeProcess, NodesWorld, type RunProcess } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

/** Any death that counts as a crash ends the run, so what goes on has lost nodes only (S2). */
const noRestarts = "supervision.maxRestarts=0";

/** Where the plan, or a later move, put each worker. */
const nodesOf = (run: RunProcess): Set<string> =>
  new Set(
    run.events.flatMap((event) =>
      event.type === "plan"
        ? event.placement.flatMap(({ devices }) => devices.map((device) => device.split("/")[0] as string))
        : [],
    ),
  );

async function expectDone(run: RunProcess, steps: number, where = world): Promise<string> {
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expect(summary).toMatchObject({ steps, policyVersion: steps });
  await expectWholeLedger(join(where.runs, summary.runId), steps, 12);
  await where.expectNothingLeft(summary.runId, pidsOf(run.events));
  return summary.runId;
}

test("S2: one of two node agents is killed: that is noticed at once, its workers end, its ranks move to the other node, nothing is lost", async () => {
  const [, b] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const lease = "cluster.nats.leaseMs=120000"; // so that no silence says it
  const run = world.startRun([
    "steps=6",
    "pauseMs=60",
    "cluster.minNodes=2",
    "cluster.rejoinMs=200",
    lease,
    noRestarts,
  ]);
  await run.event("step-started", ({ step }) => step === 2);
  expect(nodesOf(run)).toEqual(new Set(["a", "b"]));
  await b?.kill();
  await run.event("step-finished", ({ step }) => step === 4);
  expect(run.lines().filter((line) => line.includes("moves from node 'b' to 'a'")).length).toBeGreaterThan(0);
  expect(run.lines()).toContainEqual(expect.stringContaining("node 'b' is lost: its agent has ended"));
  await expectDone(run, 6);
}, 480_000);

test("S2, AD4: ranks of a node that is lost move to no device that must stay free, and those of another stay apart", async () => {
  const [, b] = await Promise.all([world.startNode("a"), world.startNode("b"), world.startNode("c")]);
  const wishes = [
    "placement.mode=spatial",
    "cluster.devices=6",
    "placement.wishes={ freeDevices: 'node[0].1', apart: [[maker, trainer]] }",
  ];
  const run = world.startRun([
    "steps=6",
    "pauseMs=60",
    "cluster.minNodes=3",
    "cluster.rejoinMs=200",
    ...wishes,
    noRestarts,
  ]);
  await run.event("step-started", ({ step }) => step === 2);
  await b?.kill();
  await run.event("step-finished", ({ step }) => step === 4);
  const moves = run.lines().filter((line) => line.includes("moves from node 'b'"));
  expect(moves.length).toBeGreaterThan(0);
  expect(moves.filter((line) => line.includes("maker") && line.includes("'c'"))).toEqual([]);
  const plans = run.events.flatMap((event) => (event.type === "plan" ? [event.placement] : []));
  for (const text of [...moves, ...plans.flat().flatMap(({ devices }) => devices)])
    expect(text).not.toMatch(/a\/cpu:1/);
  await expectDone(run, 6);
}, 480_000);

test("S2: all nodes are gone when the workflow makes its first call: it begins when one is back", async () => {
  const a = await world.startNode("a");
  const begin = join(world.root, "begin");
  const run = world.startRun(["steps=3", `beginsWith=${begin}`]);
  await until(() => existsSync(`${begin}.awaited`), "the workflow to be about to call", 120_000);
  await a.kill();
  await run.line("node 'a' is lost");
  await writeFile(begin, "");
  await run.event("plan");
  await world.startNode("a");
  await expectDone(run, 3);
}, 480_000);

test("S2: a whole group of nodes is gone when the workflow makes its first call: what was to run there moves", async () => {
  const gpu = ["--labels", "pool=gpu"];
  const [a] = await Promise.all([world.startNode("a", gpu), world.startNode("b")]);
  const begin = join(world.root, "begin");
  const groups = ["cluster.groups.big.labels.pool=gpu", "placement.components={ maker: group(big).all, trainer: 2-3 }"];
  const run = world.startRun(["steps=3", "cluster.minNodes=2", "cluster.rejoinMs=0", ...groups, `beginsWith=${begin}`]);
  await until(() => existsSync(`${begin}.awaited`), "the workflow to be about to call", 120_000);
  await a.kill();
  await run.line("node 'a' is lost");
  await writeFile(begin, "");
  await expectDone(run, 3);
}, 480_000);

test("S2: an agent that is killed and started again is used again: its ranks come back to it", async () => {
  const [, b] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=5", "pauseMs=60", "cluster.minNodes=2", "cluster.rejoinMs=60000", noRestarts]);
  await run.event("step-started", ({ step }) => step === 2);
  await b?.kill();
  const again = await world.startNode("b");
  expect(again.output()).toContain("incarnation");
  await expectDone(run, 5);
  expect(run.lines().filter((line) => line.includes("moves from node"))).toEqual([]);
  expect(again.output()).toContain("opens run");
}, 480_000);

test("an agent that is asked to leave ends its workers and goes; one alone is enough to go on, and a new one helps", async () => {
  const [a] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=8", "pauseMs=60", "cluster.minNodes=2", "cluster.rejoinMs=0", noRestarts]);
  await run.event("step-started", ({ step }) => step === 2);
  a?.child.kill("SIGTERM");
  await until(() => a?.child.exitCode === 0, "the agent to leave");
  expect(a?.output()).toContain("has left");
  await world.startNode("c");
  await run.event("step-finished", ({ step }) => step === 4);
  await expectDone(run, 8);
  expect(run.lines()).toContainEqual(expect.stringContaining("node 'a' is lost: it was asked to leave"));
}, 480_000);

test("a NATS server that is killed and started again costs no worker: calls and data go on meanwhile", async () => {
  await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=30", "pauseMs=100", "cluster.minNodes=2"]);
  await run.event("step-started", ({ step }) => step === 2);
  await world.nats.stop("SIGKILL");
  const before = run.events.filter((event) => event.type === "step-finished").length;
  await run.event("step-finished", ({ step }) => step > before + 1);
  await world.nats.start();
  await expectDone(run, 30);
  expect(run.events.filter((event) => event.type === "worker-died")).toEqual([]);
}, 480_000);

test("S2: a worker that dies while the control plane is away is replaced when it is back", async () => {
  await world.startNode("a");
  const run = world.startRun(["steps=20", "pauseMs=60"]);
  await run.event("step-started", ({ step }) => step === 2);
  await world.nats.stop();
  process.kill((await run.event("worker-started", ({ worker }) => worker === "maker/0")).pid as number, "SIGKILL");
  await new Promise((resolve) => setTimeout(resolve, 1500));
  await world.nats.start();
  await run.event("worker-restarted", ({ worker }) => worker === "maker/0");
  await expectDone(run, 20);
}, 480_000);

test("WH3, J1: a runner that is killed leaves no worker on any node, and its run is resumed on the same agents", async () => {
  await Promise.all([world.startNode("a"), world.startNode("b")]);
  const first = world.startRun(["steps=6", "pauseMs=60", "cluster.minNodes=2"]);
  const { runId } = await first.event("run-started");
  await first.event("step-finished", ({ step }) => step === 2);
  first.child.kill("SIGKILL");
  const pids = pidsOf(first.events);
  expect(pids.length).toBeGreaterThanOrEqual(4);
  await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 15_000);
  const second = world.startRun(["steps=6", "cluster.minNodes=2"], runId);
  expect((await second.event("run-started")).resumedFrom).toBeGreaterThanOrEqual(2);
  await expectDone(second, 6);
}, 480_000);

test("L3: an agent that was stopped and goes on finds that its workers count no more", async () => {
  const [, b] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=30", "pauseMs=100", "cluster.minNodes=2", "cluster.rejoinMs=0", noRestarts]);
  await run.event("step-started", ({ step }) => step === 2);
  const early = pidsOf(run.events);
  b?.child.kill("SIGSTOP");
  await until(
    () => run.lines().some((line) => line.includes("node 'b' is lost: it was silent")),
    "the silence to count",
  );
  b?.child.kill("SIGCONT");
  await run.line("node 'b' has joined");
  // The workers that it had are gone before that: no device is granted twice.
  const died = run.events.flatMap((event) => (event.type === "worker-died" ? [event.worker] : []));
  expect(died.length).toBeGreaterThan(0);
  await until(() => early.filter(isAlive).length < early.length, "its old workers to be gone");
  await expectDone(run, 30);
}, 480_000);

const manyRanks = ["steps=40", "pauseMs=60", "cluster.minNodes=2", "cluster.devices=8", "ranks=4", noRestarts];
const haveEnded = (agents: readonly NodeProcess[]) =>
  until(() => agents.every((agent) => agent.output().includes("has ended run")), "both nodes to have ended the run");

test("S2, NS2: what nodes end since they do not hear the runner, which was suspended, costs no restart", async () => {
  const agents = await Promise.all(["a", "b"].map((name) => world.startNode(name)));
  const run = world.startRun(manyRanks);
  await run.event("step-finished", ({ step }) => step === 3);
  run.child.kill("SIGSTOP");
  await haveEnded(agents);
  run.child.kill("SIGCONT");
  await expectDone(run, 40);
  const reasons = run.events.flatMap((event) => (event.type === "worker-died" ? [event.reason] : []));
  expect(reasons.length).toBeGreaterThan(0);
}, 480_000);

test("S2, NS2: what nodes end since they were cut off from the NATS servers costs no restart", async () => {
  const agents = await Promise.all(["a", "b"].map((name) => world.startNode(name, ["--limit", "1"])));
  const run = world.startRun(manyRanks);
  await run.event("step-finished", ({ step }) => step === 3);
  await world.nats.stop("SIGKILL");
  await haveEnded(agents);
  await world.nats.start();
  await expectDone(run, 40);
}, 480_000);

test("S4, RU2: with the NATS server gone for good, a run ends as it should, and so does an agent that is asked to", async () => {
  const a = await world.startNode("a");
  const run = world.startRun(["steps=3", "pauseMs=60"]);
  await run.event("step-started", ({ step }) => step === 2);
  await world.nats.stop("SIGKILL");
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  a.child.kill("SIGTERM");
  await until(() => a.child.exitCode === 0, "the agent to leave", 60_000);
  await expectWholeLedger(join(world.runs, summary.runId), 3, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}, 480_000);

test("NS5: misuse is told in one sentence: no agents, no server, other code, an agent of the same name", async () => {
  const nobody = world.startRun(["cluster.nodeWaitMs=1500"]);
  expect(await nobody.exited).toBe(1);
  const threw = (run: RunProcess) => run.events.at(-1) as unknown as { code: string; message: string };
  expect(threw(nobody)).toMatchObject({ code: "node.unavailable", message: expect.stringContaining("treadle node") });

  const elsewhere = world.startRun(["cluster.nats.url=nats://127.0.0.1:1"]);
  expect(await elsewhere.exited).toBe(1);
  expect(threw(elsewhere)).toMatchObject({ code: "control-plane.unreachable" });

  const first = await world.startNode("a");
  await expect(world.startNode("a")).rejects.toThrow(/called 'a' is in the cluster already.*--name/s);
  expect(world.lastExitCode).toBe(3);
  expect(first.child.exitCode).toBeNull();
  // One that is silent gives its name up, and learns it when it is heard again.
  first.child.kill("SIGSTOP");
  const second = await world.startNode("a");
  first.child.kill("SIGCONT");
  await until(() => first.child.exitCode !== null, "the first of that name to end");
  expect(first.child.exitCode).toBe(3);

  await second.kill();
  await world.startNode("b", ["--project", await world.otherCode()]);
  const other = world.startRun(["cluster.nodeWaitMs=3000"]);
  expect(await other.exited).toBe(1);
  expect(threw(other)).toMatchObject({ code: "node.unavailable" });
  expect(other.lines()).toContainEqual(expect.stringContaining("its code is not the runner's"));
}, 480_000);

test("NS5: an agent of the same name is refused while a run is under way, and costs it no worker", async () => {
  const [a, b] = await Promise.all([world.startNode("a"), world.startNode("b")]);
  const run = world.startRun(["steps=60", "pauseMs=200", "cluster.minNodes=2", noRestarts]);
  await run.event("step-finished", ({ step }) => step === 2);
  for (const name of ["a", "b"]) {
    const before = run.events.filter(({ type }) => type === "step-finished").length;
    await expect(world.startNode(name)).rejects.toThrow(/is in the cluster already.*--name/s);
    expect(world.lastExitCode).toBe(3);
    await run.event("step-finished", ({ step }) => step > before + 1);
  }
  expect([a, b].map(({ child }) => child.exitCode)).toEqual([null, null]);
  expect(run.events.some(({ type }) => type === "run-finished")).toBe(false); // both came while it ran
  await expectDone(run, 60);
  expect(run.events.filter(({ type }) => type === "worker-died")).toEqual([]);
  expect(run.lines().filter((line) => line.includes("is lost") || line.includes("moves from node"))).toEqual([]);
}, 480_000);

test("over encrypted links, with certificates of one authority, and on nobody without one", async () => {
  const tls = await makeCertificates(world.root, "ours");
  const flags = ["--link-ca", tls.ca, "--link-cert", tls.cert, "--link-key", tls.key];
  const [a] = await Promise.all([world.startNode("a", flags), world.startNode("b", flags)]);
  const own = Object.entries(tls).map(([key, path]) => `cluster.links.tls.${key}=${path}`);
  const run = world.startRun(["steps=2", "cluster.minNodes=2", ...own]);
  const runId = await expectDone(run, 2);
  const config = await readFile(join(world.runs, runId, "config.json"), "utf8");
  expect(config).toContain(tls.key);
  expect(config).not.toContain("PRIVATE KEY");
  expect(a.output()).not.toContain("PRIVATE KEY");

  const plain = world.startRun(["steps=1", "cluster.minNodes=2", "supervision.maxRestarts=0"]);
  const failed = await plain.event("run-failed");
  expect(failed.error.message).toContain("give every machine some, or none");
}, 480_000);

test.skipIf(!canUnplug)(
  "L3: a node whose network is cut ends its workers, which count no more, and is used again when it is back",
  async () => {
    await using network = await unpluggableNetwork();
    await using far = await NodesWorld.open({ host: network.host });
    const b = await far.startNode("b", ["--bind", network.guest, "--limit", "3"], network.inside);
    await far.startNode("a", ["--bind", network.host]);
    const more = ["cluster.minNodes=2", "cluster.rejoinMs=0", `cluster.links.bind=${network.host}`];
    const run = far.startRun(["steps=30", "pauseMs=100", ...more]);
    await run.event("step-started", ({ step }) => step === 2);
    await network.unplug();
    await run.line("node 'b' is lost");
    await until(() => b.output().includes("ends its workers"), "the node to end its workers", 60_000);
    await network.plug();
    await run.line("node 'b' has joined");
    await expectDone(run, 30, far);
  },
  480_000,
);

test("a worker that dies is replaced by a process that waited for that", async ({ skip }) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  const { child } = await world.startNode("a", ["--spares", "1"]);
  const run = world.startRun(["steps=12", "pauseMs=300", "supervision.maxRestarts=1"]);
  await run.event("step-finished", ({ step }) => step === 2);
  const workers = pidsOf(run.events);
  const waiting = () => childrenOf(child.pid as number, "/worker/main.").filter((pid) => !workers.includes(pid));
  await until(() => waiting().length > 0, "a process to wait");
  const spares = waiting();
  expect(spares).toHaveLength(1);
  process.kill(pidOf(run.events, "maker/0"), "SIGKILL");
  await run.event("worker-restarted", ({ worker }) => worker === "maker/0");
  expect(pidOf(run.events, "maker/0")).toBe(spares[0]);
  await expectDone(run, 12);
}, 480_000);
