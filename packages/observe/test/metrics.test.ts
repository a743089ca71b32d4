import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createRunRegistry, MetricsWriter, readMetrics } from "../src/index.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-metrics-"));
  path = join(folder, "run", "metrics.jsonl");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

describe("a metrics file", () => {
  it("gives back what was written, numbers that JSON lacks included", () => {
    using writer = new MetricsWriter(path);
    writer.write(1, { reward: 0.5, loss: Number.NaN });
    writer.write(2, { reward: Number.NEGATIVE_INFINITY });
    expect(readMetrics(path)).toEqual([
      { step: 1, reward: 0.5, loss: Number.NaN },
      { step: 2, reward: Number.NEGATIVE_INFINITY },
    ]);
  });

  it("has a row as soon as write returns", () => {
    using writer = new MetricsWriter(path);
    writer.write(1, { reward: 1 });
    expect(readFileSync(path, "utf8")).toBe('{"reward":1,"step":1}\n');
  });

  it("goes on after a writer that was killed in the middle of a row", () => {
    new MetricsWriter(path).write(1, { reward: 1 });
    appendFileSync(path, '{"reward":0.');
    expect(readMetrics(path)).toEqual([{ step: 1, reward: 1 }]);
    using writer = new MetricsWriter(path);
    writer.write(2, { reward: 2 });
    expect(readMetrics(path).map(({ step }) => step)).toEqual([1, 2]);
  });

  it("counts a step that a resumed run repeated once, as last written", () => {
    using writer = new MetricsWriter(path);
    for (const [step, reward] of [
      [1, 1],
      [2, 2],
      [3, 3],
      [2, 20],
    ] as const)
      writer.write(step, { reward });
    expect(readMetrics(path).map(({ reward }) => reward)).toEqual([1, 20, 3]);
  });

  it("names the line that is no row of metrics", () => {
    writeFileSync(join(folder, "bad.jsonl"), '{"step":1}\nnonsense\n{"step":2}\n');
    expect(() => readMetrics(join(folder, "bad.jsonl"))).toThrow(/line 2 of '.*bad.jsonl'/);
  });
});

it("exposes a run to Prometheus, apart from other runs of the process", async () => {
  const [mine, other] = [await createRunRegistry({ runId: "a" }), await createRunRegistry({ runId: "b" })];
  mine.observe({
    type: "step-finished",
    atMs: 0,
    step: 3,
    seconds: 1.5,
    tokens: 100,
    metrics: { reward: 0.5, loss: Number.NaN },
  });
  mine.observe({ type: "step-finished", atMs: 0, step: 4, seconds: 1.5, tokens: 50, metrics: { reward: 0.75 } });
  mine.observe({ type: "worker-restarted", atMs: 0, worker: "rollout/1" });
  mine.observe({
    type: "utilisation",
    atMs: 0,
    components: { actor: { compute: 0.5, lockWait: 0.25, channelWait: 0, transfer: 0, idle: 0.25 } },
  });
  const text = await mine.exposition();
  expect(text).toContain('treadle_step{run="a"} 4');
  expect(text).toContain('treadle_tokens_total{run="a"} 150');
  expect(text).toContain('treadle_metric{name="reward",run="a"} 0.75');
  expect(text).toContain('treadle_step_seconds_count{run="a"} 2');
  expect(text).toContain('treadle_worker_restarts_total{worker="rollout/1",run="a"} 1');
  expect(text).toContain('treadle_component_share{component="actor",activity="lockWait",run="a"} 0.25');
  expect(await other.exposition()).toContain('treadle_step{run="b"} 0');
});
