import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { RunStatus } from "@treadle/contracts";
import { expect, test } from "vitest";
import { until } from "../support/cluster.ts";
import { expectWholeLedger, pidsOf } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";

/** Where nobody listens: processes bind to one address of this machine, and say another. */
const nowhere = "127.7.7.7";

test("processes that nobody can dial work over NATS, workflow and workers unchanged, and status says so", async () => {
  await using world = await NodesWorld.open();
  const flags = ["--advertise", nowhere];
  await Promise.all([world.startNode("a", flags), world.startNode("b", flags)]);
  const more = ["cluster.minNodes=2", `cluster.links.advertise=${nowhere}`, "payload=200000"];
  const run = world.startRun(["steps=30", "pauseMs=60", ...more]);
  await run.event("step-finished", ({ step }) => step === 1);
  const args = [world.command, "status", "--json", ...world.flagsOf()];
  // A runner that is busy just then says nothing.
  let status: unknown;
  await until(async () => {
    const { stdout } = await promisify(execFile)(process.execPath, args, { timeout: 60_000 });
    status = (JSON.parse(stdout) as { runs: { status: unknown }[] }).runs[0]?.status;
    return status !== undefined;
  }, "the run to say how it is");
  const { workers } = RunStatus.parse(status);
  expect(new Set(workers.map(({ node }) => node))).toEqual(new Set(["a", "b"]));
  expect(workers.map(({ route }) => route)).toEqual(workers.map(() => "nats"));
  const { summary } = await run.event("run-finished");
  expect(await run.exited).toBe(0);
  expect(summary).toMatchObject({ steps: 30, policyVersion: 30 });
  expect(run.events.filter((event) => event.type === "worker-died")).toEqual([]);
  const told = run.events.flatMap((event) => (event.type === "log" ? [event.line] : []));
  expect(told).toContainEqual(expect.stringMatching(/reaches runner\/runner by way of NATS, since no process answers/));
  await expectWholeLedger(join(world.runs, summary.runId), 30, 12);
  await world.expectNothingLeft(summary.runId, pidsOf(run.events));
}, 480_000);
