import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { reportActivity, TraceWriter, utilisation } from "../src/index.ts";
import { syntheticTrace } from "../src/testing/index.ts";

it("agrees with the exact shares, over the run and per step", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-activity-"));
  try {
    const batches = syntheticTrace({ steps: 4 });
    using writer = new TraceWriter(join(folder, "trace.jsonl"));
    for (const batch of batches) writer.append(batch);
    const report = await reportActivity([writer.path], 400);
    for (const [component, exact] of Object.entries(utilisation(batches))) {
      for (const [name, share] of Object.entries(exact)) {
        const binned = report.overall[component]![name as keyof typeof exact];
        expect(Math.abs(binned - share), `${component} ${name}`).toBeLessThan(0.02);
      }
    }
    expect(report.computeByStep.map(({ step }) => step)).toEqual([1, 2, 3, 4]);
    expect(report.computeByStep[0]!.seconds.actor).toBeCloseTo(0.61, 6);
    expect(report.overTime.rollout).toHaveLength(400);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
