/** A simulator takes answers while what it shows waits for room, so that stages beyond `flow.capacity` block no cycle. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const workflow = fileURLToPath(new URL("../support/workflows/horizons", import.meta.url));

test.each([
  { mode: "spatial", capacity: 1, pipelineStages: 5, simulators: 1 },
  { mode: "spatial", capacity: 2, pipelineStages: 3, simulators: 2 },
  { mode: "temporal", capacity: 1, pipelineStages: 3, simulators: 1 },
])(
  "SE4: '$pipelineStages' stages of '$simulators' simulators and room for '$capacity' observations: every horizon is whole ($mode)",
  async ({ mode, capacity, pipelineStages, simulators }) => {
    const root = await mkdtemp(join(tmpdir(), "treadle-stages-"));
    try {
      const overrides = [
        `placement.mode=${mode}`,
        `pipelineStages=${pipelineStages}`,
        `ranks.simulator=${simulators}`,
        `flow.capacity=${capacity}`,
        "numEnvironments=6",
        "horizon=6",
        "steps=2",
        "supervision.stallMs=20000",
      ];
      const { summary } = await runWorkflow({ workflow, runsRoot: root, projectRoot, onEvent: () => {}, overrides });
      const lines = (await readFile(join(root, summary.runId, "metrics.jsonl"), "utf8")).trimEnd().split("\n");
      const whole = { trajectories: 6, environments: 6, steps: 6 * 6, breaks: 0 };
      expect(lines.map((line) => JSON.parse(line) as unknown)).toMatchObject([whole, whole]);
    } finally {
      await rm(root, { recursive: true, force: true });
    }
  },
  300_000,
);
