import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { ledgerOptions } from "../support/ledger.ts";
import { makeTemporary } from "../support/temporary-folder.ts";

test("RB1: a run that saves every few steps outlives more crashes than are allowed, with steps between them", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
  await makeTemporary(root);
  const events: RunEvent[] = [];
  let struck = 0;
  const onEvent = (event: RunEvent) => {
    events.push(event);
    // Between two saved states, with several of them since the last strike.
    if (event.type !== "step-started" || struck === 3 || event.step < 12 * (struck + 1) || event.step % 3 !== 2) return;
    process.kill(pidOf(events, "trainer/0"), "SIGKILL");
    struck++;
  };
  const settings = ["checkpoints.stateEverySteps=3", "steps=48", "supervision.maxRestarts=1", "pauseMs=5"];
  try {
    const { summary } = await runWorkflow(ledgerOptions(root, onEvent, settings));
    expect(summary.steps).toBe(48);
    expect(struck).toBe(3);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
});
