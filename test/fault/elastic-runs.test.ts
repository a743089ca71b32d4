import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { isAlive, pidOf, until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { type NodeProcess, NodesWorld, type RunProcess } from "../support/nodes.ts";

let world: NodesWorld;
beforeEach(async () => {
  world = await NodesWorld.open();
});
afterEach(() => world.close());

/** Every node offers its cores. */
const flags = ["cluster.devices=auto", "pauseMs=40", "ranks=1", "cluster.rejoinMs=200"];
const elastic = [...flags, "placement.elastic.maker.min=1", "placement.elastic.maker.max=6"];

type PlanEvent = Extract<RunProcess["events"][number], { type: "plan" }>;
const plans = (run: RunProcess): PlanEvent[] => run.events.filter((event): event is PlanEvent => event.type === "plan");
const devicesOf = (plan: PlanEvent | undefined, component: string): string[] => [
  ...(plan?.placement.find((row) => row.component === component)?.devices ?? []),
];
const nodesOf = (plan: PlanEvent): Set<string | undefined> =>
  new Set(plan.placement.flatMap(({ devices }) => devices.map((device) => device.split("/")[0])));
const laterPlan = (run: RunProcess, fits: (plan: PlanEvent) => boolean) =>
  until(() => plans(run).findLast(fits), "another plan", 150_000);
const steps = (run: RunProcess): number => run.events.filter((event) => event.type === "step-finished").length;
const nextStep = async (run: RunProcess): Promise<void> => {
  const before = steps(run);
  await until(() => steps(run) > before + 1, "two more steps", 150_000);
};

async function expectDone(run: RunProcess, numSteps: number): Promise<void> {
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expect(summary).toMatchObject({ steps: numSteps, policyVersion: numSteps });
  await expectWholeLedger(join(world.runs, summary.runId), numSteps, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}

const leave = async (node: NodeProcess): Promise<void> => {
  node.child.kill("SIGTERM");
  await until(() => node.child.exitCode !== null, "the agent to leave", 60_000);
  expect(node.child.exitCode).toBe(0);
};

const toldBy = (run: RunProcess, worker: string): string[] =>
  run.events.flatMap((event) => (event.type === "log" && event.worker === worker ? [event.line] : []));

test("AD3: an elastic group grows with a node that joins and shrinks with one that leaves; those of its ranks that stay go on", async () => {
  await world.startNode("a");
  const run = world.startRun(["steps=400", ...elastic]);
  await run.event("step-finished");
  const before = devicesOf(plans(run)[0], "maker").length;
  const staying = devicesOf(plans(run)[0], "maker").map((_, rank) => pidOf(run.events, `maker/${rank}`));
  const b = await world.startNode("b", ["--drain", "60"]);
  const grown = await laterPlan(run, (plan) => nodesOf(plan).has("b"));
  expect(devicesOf(grown, "maker").length).toBeGreaterThan(before);
  expect(devicesOf(grown, "trainer")).toEqual(devicesOf(plans(run)[0], "trainer"));
  await nextStep(run);
  const num = devicesOf(grown, "maker").length;
  expect(toldBy(run, "maker/0").filter((line) => line.startsWith("one of"))).toEqual([
    `one of ${before}`,
    `one of ${num}`,
  ]);
  await leave(b);
  expect(b.output()).toContain("leaves\n");
  expect(nodesOf(plans(run).at(-1) as PlanEvent)).toEqual(new Set(["a"]));
  await until(() => toldBy(run, "maker/0").at(-1) === `one of ${before}`, "the group to be as before", 60_000);
  expect(staying.every(isAlive)).toBe(true);
  expect(run.events.filter((event) => event.type === "worker-died")).toEqual([]);
  await nextStep(run);
  const { runId } = await run.event("run-started");
  await promisify(execFile)(process.execPath, [world.command, "stop", runId, ...world.flagsOf()], {
    timeout: 120_000,
  });
  const { summary } = await run.event("run-finished");
  await expectDone(run, summary.steps);
}, 480_000);

test("AD1, S2: an elastic group shrinks when a node is killed; the step is done again, once", async () => {
  await world.startNode("a");
  const b = await world.startNode("b");
  const run = world.startRun(["steps=12", "cluster.minNodes=2", ...elastic]);
  await run.event("step-finished", ({ step }) => step === 2);
  expect(nodesOf(plans(run)[0] as PlanEvent)).toEqual(new Set(["a", "b"]));
  await b.kill();
  await laterPlan(run, (plan) => !nodesOf(plan).has("b"));
  await expectDone(run, 12);
}, 480_000);

test("a node drains between two steps, also of a run that is not elastic: its ranks move, and nothing is done twice", async () => {
  await world.startNode("a");
  const b = await world.startNode("b", ["--drain", "60"]);
  const run = world.startRun(["steps=14", "cluster.minNodes=2", ...flags, "ranks=2"]);
  await run.event("step-finished", ({ step }) => step === 2);
  expect(nodesOf(plans(run)[0] as PlanEvent).has("b")).toBe(true);
  await leave(b);
  expect(b.output()).toContain("leaves\n");
  await expectDone(run, 14);
  expect(run.events.filter((event) => event.type === "worker-died")).toEqual([]);
}, 480_000);
