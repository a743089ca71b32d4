import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { expectCleanEnd, expectWholeLedger, ledgerOptions, pidsOf } from "../support/ledger.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

/** Runs the ledger, doing something to workers a random while after each of some steps has begun. */
async function runWith(
  plan: Readonly<Record<number, readonly [signal: NodeJS.Signals, worker: string][]>>,
  overrides: string[],
) {
  const events: RunEvent[] = [];
  const struck: { readonly worker: string; readonly told: string }[] = [];
  const strike = async (step: number) => {
    for (const [signal, worker] of plan[step] ?? []) {
      const waitMs = Math.random() * 120;
      await new Promise((resolve) => setTimeout(resolve, waitMs));
      try {
        process.kill(pidOf(events, worker), signal);
        struck.push({ worker, told: `${signal} ${worker} ${waitMs.toFixed(1)} ms into step ${step}` });
      } catch {
        // it is starting again just now
      }
    }
  };
  const onEvent = (event: RunEvent) => {
    events.push(event);
    if (event.type === "step-started") void strike(event.step);
  };
  try {
    const result = await runWorkflow(ledgerOptions(root, onEvent, overrides));
    return { result, events, struck };
  } catch (error) {
    throw new Error(`failed after ${struck.map(({ told }) => told).join("; ")}`, { cause: error });
  }
}

test.each([
  ["temporal", 0],
  ["spatial", 1],
] as const)(
  "S2: whichever worker is killed, whenever, every item is trained once (%s, staleness %i)",
  async (mode, maxStaleness) => {
    const { result, events, struck } = await runWith(
      {
        2: [["SIGKILL", "maker/0"]],
        3: [["SIGKILL", "trainer/1"]],
        4: [
          ["SIGKILL", "trainer/0"],
          ["SIGKILL", "maker/1"],
        ],
        5: [
          ["SIGKILL", "maker/1"],
          ["SIGKILL", "maker/0"],
          ["SIGKILL", "trainer/0"],
        ],
      },
      [
        `placement.mode=${mode}`,
        `flow.maxStaleness=${maxStaleness}`,
        "steps=6",
        `payload=${maxStaleness * 20_000 + 50}`,
      ],
    );
    expect(struck.length).toBeGreaterThan(2);
    expect(result.summary.steps).toBe(6);
    expect(result.summary.policyVersion).toBe(6);
    expect(result.summary.restarts).toBeGreaterThan(2);
    const folder = join(root, result.summary.runId);
    await expectWholeLedger(folder, 6, 12);
    await expectCleanEnd(result.summary.runId, folder, pidsOf(events));
  },
  360_000,
);

test("S3: a worker that is stopped is declared unresponsive, ended and replaced, and nothing is lost", async () => {
  const { result, events, struck } = await runWith({ 2: [["SIGSTOP", "maker/1"]], 3: [["SIGSTOP", "trainer/0"]] }, [
    "steps=4",
  ]);
  expect(struck.length).toBeGreaterThan(0); // the other may be starting again just then
  const replaced = events.flatMap((event) => (event.type === "worker-restarted" ? [event.worker] : []));
  for (const { worker } of struck) expect(replaced).toContain(worker);
  // Those who wait for a stopped one may be starved of processor time for as long, and be the first to be declared.
  const deaths = events.filter((event) => event.type === "worker-died");
  const declared = new Set(deaths.map(({ worker }) => worker.split("/")[0]));
  for (const { worker } of struck) expect(declared).toContain(worker.split("/")[0]);
  // A fellow of the trainer's group may be told that the one before it is gone, and end with that.
  for (const { reason } of deaths) expect(reason).toMatch(/supervision\.heartbeatTimeoutMs|its group starts over/);
  expect(deaths.some(({ reason }) => reason.includes("supervision.heartbeatTimeoutMs"))).toBe(true);
  const folder = join(root, result.summary.runId);
  await expectWholeLedger(folder, 4, 12);
  await expectCleanEnd(result.summary.runId, folder, pidsOf(events));
}, 360_000);

test("S2: whichever worker is killed while the run measures and changes its plan, every item is trained once", async () => {
  const { result, events } = await runWith(
    {
      2: [["SIGKILL", "maker/0"]],
      4: [["SIGKILL", "trainer/1"]],
      6: [["SIGKILL", "maker/0"]],
      8: [["SIGKILL", "trainer/0"]],
    },
    [
      ...[
        "placement.mode=auto",
        `placement.auto.profile=${join(root, "profile.json")}`,
        "placement.auto.trialRounds=1",
      ],
      ...["cluster.devices=4", "steps=24"],
    ],
  );
  const phases = events.flatMap((event) => (event.type === "plan" ? [event.phase] : []));
  expect(phases).toContain("profiling");
  expect(phases.at(-1)).toBe("chosen");
  // Whether another plan is tried as well depends on what steps take: so few can seldom pay for it.
  expect(phases.filter((phase) => phase === "profiling").length).toBeGreaterThan(1);
  const folder = join(root, result.summary.runId);
  await expectWholeLedger(folder, 24, 12);
  await expectCleanEnd(result.summary.runId, folder, pidsOf(events));
}, 480_000);
