import { expect, test, vi } from "vitest";
import type { BenchRow } from "../src/row.ts";
import { coveredMs } from "../src/torch/step-time.ts";
import { benchTorch } from "../src/torch/torch.ts";
import { medianRound } from "../src/torch/turns.ts";

test("without PyTorch nothing is measured, and the row says why", async () => {
  vi.stubEnv("TREADLE_PYTHON", "/nonexistent/python");
  const rows: BenchRow[] = [];
  for await (const row of benchTorch()) rows.push(row);
  vi.unstubAllEnvs();
  expect(rows).toMatchObject([
    { value: null, ratio: null, notMeasured: expect.stringContaining("/nonexistent/python") },
  ]);
});

test("time that several engines compute at once counts once, and only within the step", () => {
  const stretch = (fromMs: number, toMs: number) => ({ fromMs, toMs });
  const step = stretch(10, 20);
  expect(coveredMs(step, [])).toBe(0);
  expect(coveredMs(step, [stretch(0, 5), stretch(25, 30)])).toBe(0);
  expect(coveredMs(step, [stretch(15, 18), stretch(8, 12), stretch(11, 13), stretch(16, 17), stretch(19, 40)])).toBe(7);
});

test("the round of the median ratio stands for all, not the medians of its sides", () => {
  const rounds = [
    { value: 10, baseline: 5 },
    { value: 3, baseline: 3 },
    { value: 100, baseline: 400 },
  ];
  expect(medianRound(rounds)).toEqual({ value: 3, baseline: 3 });
});
