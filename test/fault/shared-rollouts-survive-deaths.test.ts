/** Ranks that share what each of them took: whichever dies, whenever, every prompt is trained once. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { expectWholeLearningLedger } from "../support/learning-ledger.ts";
import { expectCleanEnd, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const random = createRandom(Number(process.env.TREADLE_SEED)).split("strikes");
const strikes: Readonly<Record<number, readonly string[]>> = {
  2: ["project-rollout/0"],
  3: ["project-rollout/1"],
  4: ["project-rollout/1", "project-rollout/0"],
};

test.each(["temporal", "spatial"] as const)(
  "SH1, SH2, RX1, RX2: placement mode '%s'",
  async (mode) => {
    const events: RunEvent[] = [];
    let numStruck = 0;
    const strike = async (step: number) => {
      for (const worker of strikes[step] ?? []) {
        await new Promise((resolve) => setTimeout(resolve, 120 * random.split(`${step} ${worker}`).float()));
        try {
          process.kill(pidOf(events, worker), "SIGKILL");
          numStruck++;
        } catch {
          // it is starting again just now
        }
      }
    };
    const onEvent = (event: RunEvent) => {
      events.push(event);
      if (event.type === "step-started") void strike(event.step);
    };
    const overrides = [
      `placement.mode=${mode}`,
      "steps=5",
      "groupSize=16",
      "rollout.placement=least-load",
      "rollout.migrate=anew",
      "rollout.scheduler=pps",
    ];
    const workflow = join(projectRoot, "test/support/workflows/learning-ledger");
    const { summary } = await runWorkflow({ ...ledgerOptions(root, onEvent, overrides), workflow });
    expect(numStruck).toBeGreaterThan(1);
    expect(summary.restarts).toBeGreaterThan(1);
    const folder = join(root, summary.runId);
    await expectWholeLearningLedger(folder, 5, 12);
    await expectCleanEnd(summary.runId, folder, pidsOf(events));
  },
  240_000,
);
