import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it } from "vitest";
import { RunData } from "../src/data/run-data.ts";

it("RD2: of a run that goes on and on no more is kept than so many rows, faults and points of a curve", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-long-run-"));
  const lines = (num: number, of: (i: number) => object) =>
    Array.from({ length: num }, (_, i) => `${JSON.stringify(of(i))}\n`).join("");
  writeFileSync(
    join(folder, "metrics.jsonl"),
    lines(100_200, (i) => ({ step: i, reward: i })),
  );
  writeFileSync(
    join(folder, "events.jsonl"),
    lines(5200, (i) => ({ type: "log", atMs: i, worker: "a/0", level: "warn", line: `${i}` })),
  );
  const run = new RunData(folder);
  await run.refresh();
  expect(run.metricsFrom(0)).toHaveLength(100_000);
  expect(run.faultsFrom(0)).toHaveLength(5000);
  expect(run.row.curve.length).toBeLessThanOrEqual(48);
  expect(run.row.curve.length).toBeGreaterThan(20);
  expect(JSON.stringify(run.now).length).toBeLessThan(20_000);
  rmSync(folder, { recursive: true });
});
