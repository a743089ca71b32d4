/** A simulator and a policy hold half a horizon each; whichever dies, the horizon begins again and nothing of the old one stays. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { expectCleanEnd, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";

const workflow = fileURLToPath(new URL("../support/workflows/horizons", import.meta.url));
const simulator = "echo-simulator";
const policy = "control-rollout";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-horizons-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

/** Kills the workers of each step one after another, a random while after the step, or the last kill, has begun. */
async function runWith(plan: Readonly<Record<number, readonly string[]>>, overrides: readonly string[]) {
  const events: RunEvent[] = [];
  const done: string[] = [];
  const strike = async (step: number) => {
    for (const worker of plan[step] ?? []) {
      const waitMs = Math.random() * 250;
      await new Promise((resolve) => setTimeout(resolve, waitMs));
      try {
        process.kill(pidOf(events, worker), "SIGKILL");
        done.push(`${worker} ${waitMs.toFixed(1)} ms into step ${step}`);
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
    const { summary } = await runWorkflow({ workflow, runsRoot: root, projectRoot, onEvent, overrides });
    const folder = join(root, summary.runId);
    await expectCleanEnd(summary.runId, folder, pidsOf(events));
    const lines = (await readFile(join(folder, "metrics.jsonl"), "utf8")).trimEnd().split("\n");
    return { summary, rows: lines.map((line) => JSON.parse(line) as Record<string, number>), done };
  } catch (error) {
    throw new Error(`failed after ${done.join("; ")}`, { cause: error });
  }
}

const whole = { trajectories: 5, environments: 5, steps: 5 * 40, breaks: 0 };

test.each([
  ["temporal", 1],
  ["spatial", 1],
  ["temporal", 2],
  ["spatial", 2],
])(
  "S2, SE2, SE3: whichever of simulator and policy is killed, whenever, each step has each environment's horizon once, whole (%s, %i stages)",
  async (mode, pipelineStages) => {
    const { summary, rows, done } = await runWith(
      {
        1: [`${simulator}/0`],
        2: [`${policy}/0`],
        3: [`${simulator}/0`, `${policy}/0`],
        4: [`${policy}/0`, `${policy}/0`, `${simulator}/0`],
        5: [`${simulator}/0`, `${simulator}/0`],
      },
      [`placement.mode=${mode}`, `pipelineStages=${pipelineStages}`, "steps=6"],
    );
    expect(done.length).toBeGreaterThan(3);
    expect(summary.restarts).toBeGreaterThan(3);
    expect(rows).toHaveLength(6);
    for (const row of rows) expect(row, done.join("; ")).toMatchObject(whole);
  },
  600_000,
);

test.each([
  [3, 2, 1],
  [2, 3, 3],
])(
  "S2: of %i simulators and %i policies any may be killed, and actions go to the simulators that asked (%i stages)",
  async (simulators, policies, pipelineStages) => {
    const { rows, done, summary } = await runWith(
      {
        2: [`${simulator}/1`, `${policy}/1`],
        3: [`${policy}/0`, `${simulator}/0`],
        4: [`${simulator}/1`, `${simulator}/0`],
      },
      [
        `ranks.simulator=${simulators}`,
        `ranks.rollout=${policies}`,
        "cluster.devices=6",
        "steps=5",
        `pipelineStages=${pipelineStages}`,
      ],
    );
    expect(summary.restarts).toBeGreaterThan(2);
    expect(rows).toHaveLength(5);
    for (const row of rows) expect(row, done.join("; ")).toMatchObject(whole);
  },
  600_000,
);

test("S2: whichever is killed while an episode is recorded, it is played from its beginning to its end", async () => {
  const plays = 25;
  const { rows, done, summary } = await runWith(
    {
      1: [`${simulator}/0`, `${policy}/0`],
      2: [`${policy}/0`, `${simulator}/0`],
      3: [`${simulator}/0`, `${simulator}/0`, `${policy}/0`],
    },
    [`plays=${plays}`, "horizon=1", "steps=3"],
  );
  expect(summary.restarts).toBeGreaterThan(2);
  const returns = rows.flatMap((row) => Array.from({ length: plays }, (_, play) => row[`return${play}`]));
  expect(returns).toHaveLength(3 * plays);
  expect(new Set(returns).size, done.join("; ")).toBe(1);
}, 600_000);
