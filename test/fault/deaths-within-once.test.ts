/** What is done once, before the steps, is done once whatever dies meanwhile. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { pidOf, until } from "../support/cluster.ts";
import { expectCleanEnd, expectWholeLedger, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { type RunnerProcess, startRunner } from "../support/runner-process.ts";
import { makeTemporary } from "../support/temporary-folder.ts";

let root: string;
let runner: RunnerProcess | undefined;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-once-"));
  await makeTemporary(root);
});
afterEach(async () => {
  runner?.child.kill("SIGKILL");
  await rm(root, { recursive: true, force: true });
});

/** 2 makers, 2 items a batch, 160 ms each: pauses alone make that more than two seconds */
const first = 60;
const overrides = [`first=${first}`, "steps=2", "pauseMs=160"];
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test("S2: workers that are killed one after another within 'once' are replaced, and its items are trained once", async () => {
  const events: RunEvent[] = [];
  const striking = (async () => {
    await until(() => pidsOf(events).length >= 4, "all workers to start");
    for (const worker of ["maker/0", "trainer/1", "maker/1", "trainer/0"]) {
      await pause(Math.random() * 150);
      const before = pidsOf(events).length;
      process.kill(pidOf(events, worker), "SIGKILL");
      await until(() => pidsOf(events).length > before, `'${worker}' to be replaced`);
    }
  })();
  const result = await runWorkflow(ledgerOptions(root, (event) => events.push(event), overrides));
  await striking;
  const folder = join(root, result.summary.runId);
  const deaths = events.filter(({ type }) => type === "worker-died").length;
  expect(deaths).toBeGreaterThanOrEqual(4);
  await expectWholeLedger(folder, 2, 12, first);
  await expectCleanEnd(result.summary.runId, folder, pidsOf(events));
}, 360_000);

test("J1: a runner that is killed within 'once' does all of it again when it is resumed, from the state before", async () => {
  let runId = "new";
  for (let kill = 1; kill <= 2; kill++) {
    const killed = startRunner(root, runId, overrides);
    runner = killed;
    runId = (await until(() => killed.events.find((event) => event.type === "run-started"), "the start")).runId;
    await until(() => pidsOf(killed.events).length >= 4, "all workers to start");
    await pause(100 + 400 * kill);
    expect(killed.events.some(({ type }) => type === "step-started")).toBe(false);
    killed.child.kill("SIGKILL");
    await killed.exited;
  }
  const resumed = startRunner(root, runId, overrides);
  runner = resumed;
  expect(await resumed.exited).toBe(0);
  await expectWholeLedger(join(root, runId), 2, 12, first);
  await expectCleanEnd(runId, join(root, runId), pidsOf(resumed.events));
}, 360_000);
