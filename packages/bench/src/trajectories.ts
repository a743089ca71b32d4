import { performance } from "node:perf_hooks";
import { median } from "@treadle/contracts";
import { solveAllocate, solvePlace, solveRollout } from "@treadle/trajectories";
import { normal, randomNumbers } from "./actions/workload.ts";
import { type BenchRow, type RowInput, row } from "./row.ts";
import { benchTurnDecisions } from "./turn-decisions.ts";

/** Normal numbers, the same at every call. */
function normals(): () => number {
  const uniform = randomNumbers(1);
  return () => normal(uniform);
}

/** Log-normal lengths with a long tail. */
function benchLengths(n: number): number[] {
  const normal = normals();
  return Array.from({ length: n }, () => Math.min(32768, Math.ceil(Math.exp(6.5 + normal()))));
}

/** About seven turns a trajectory, in a log-normal way, predicted with a log-sd of 0.5, all parts of Heddle on. */
function benchRollout(n: number, workers: number): unknown {
  const normal = normals();
  const trajectories = Array.from({ length: n }, () => {
    const turns = Math.max(1, Math.round(Math.exp(1.7 + 0.7 * normal())));
    const tokens = Array.from({ length: turns }, () => Math.max(1, Math.round(Math.exp(4.5 + 0.8 * normal()))));
    const left = tokens.map((_, i) => tokens.slice(i).reduce((sum, each) => sum + each, 0));
    const steps = tokens.map((each, i) => ({
      tokens: each,
      tool: Math.exp(-0.5 + normal()),
      observe: 40,
      pred: left[i]! * Math.exp(0.5 * normal()),
    }));
    return { context: 800, steps };
  });
  return {
    trajectories,
    workers: Array.from({ length: workers }, (_, j) => ({ tokenTime: j < workers / 4 ? 0.0115 : 0.018 })),
    F: { type: "affine", slope: 0.04 },
    maxBatch: 100,
    scheduler: "pps",
    placement: { type: "dp", migrate: true, rankBy: "total", robust: 0.25 },
    prefillRatio: 0.01,
    migration: { base: 0.05, perToken: 0.00002 },
  };
}

/** Median of the search's own milliseconds (the sort is outside), after one warm-up round. */
function medianMs(rounds: number, solve: () => { stats: { milliseconds: number } }): number {
  const times = Array.from({ length: rounds + 1 }, () => solve().stats.milliseconds).slice(1);
  return median(times);
}

/** Placement, allocation (Heddle §5.2, §6) and rollouts against Formula 3, Algorithm 2 and scans. About 15 seconds. */
export function benchTrajectories(): BenchRow[] {
  const nowMs = (): number => performance.now();
  const F = { type: "affine", slope: 0.04 };
  const rows: BenchRow[] = [];
  const add = (name: string, unit: string, value: number, baseline: number | null = null): void => {
    const against = baseline === null ? {} : { baseline, against: "the paper's method" };
    rows.push(row({ name, value, unit, notMeasured: "sorting the lengths; errors of their prediction", ...against }));
  };

  const paper = { lengths: benchLengths(6400), workers: 16, F };
  const exactMs = medianMs(25, () => solvePlace(paper, { nowMs }));
  add(
    "place 6400 trajectories on 16 workers",
    "ms",
    exactMs,
    solvePlace(paper, { nowMs, method: "dp" }).stats.milliseconds,
  );
  const large = { lengths: benchLengths(1_000_000), workers: 1024, F };
  add(
    "place 1000000 trajectories on 1024 workers",
    "ms",
    medianMs(5, () => solvePlace(large, { nowMs })),
  );

  const tokenTime = { 1: 0.018, 2: 0.0115, 4: 0.008, 8: 0.0063 };
  const gpus64 = { gpus: 64, tokenTime, F, lengths: paper.lengths };
  const annealed = solveAllocate(gpus64, { nowMs, method: "anneal", seed: 1 });
  add(
    "allocate 64 GPUs to 6400 trajectories",
    "ms",
    medianMs(15, () => solveAllocate(gpus64, { nowMs })),
    annealed.stats.milliseconds,
  );
  add("makespan of that allocation", "s", solveAllocate(gpus64).makespan!, annealed.makespan);
  const gpus1024 = { gpus: 1024, tokenTime, F, lengths: large.lengths };
  add(
    "allocate 1024 GPUs to 1000000 trajectories",
    "ms",
    medianMs(3, () => solveAllocate(gpus1024, { nowMs })),
  );

  const microseconds = (problem: unknown, method?: string): number => {
    const { stats } = solveRollout(problem, { nowMs, method });
    return (1000 * stats.milliseconds) / stats.events;
  };
  const addRollout = (n: number, workers: number, against: Pick<RowInput, "baseline" | "against"> = {}): void => {
    const problem = benchRollout(n, workers);
    const rounds = Array.from({ length: 4 }, () => microseconds(problem)).slice(1);
    rows.push(
      row({
        name: `rollout of ${n} trajectories on ${workers} workers`,
        value: median(rounds),
        unit: "µs an event",
        notMeasured: "reading the problem; what a live router does beside deciding",
        ...against,
      }),
    );
  };
  for (const workers of [16, 64]) addRollout(6400, workers);
  addRollout(400, 16, { baseline: microseconds(benchRollout(400, 16), "naive"), against: "a scan of everything" });
  return [...rows, ...benchTurnDecisions()];
}
