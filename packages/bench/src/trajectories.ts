import { performance } from "node:perf_hooks";
import { median } from "@treadle/contracts";
import { solveAllocate, solvePlace } from "@treadle/trajectories";
import { type BenchRow, row } from "./row.ts";

/** Log-normal lengths with a long tail, the same at every call. */
function benchLengths(n: number): number[] {
  let state = 1;
  const uniform = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
  return Array.from({ length: n }, () => {
    const normal = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    return Math.min(32768, Math.ceil(Math.exp(6.5 + normal)));
  });
}

/** Median of the search's own milliseconds (the sort is outside), after one warm-up round. */
function medianMs(rounds: number, solve: () => { stats: { milliseconds: number } }): number {
  const times = Array.from({ length: rounds + 1 }, () => solve().stats.milliseconds).slice(1);
  return median(times);
}

/** Placement and allocation (Heddle §5.2, §6) against Formula 3 and Algorithm 2. About ten seconds. */
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
  return rows;
}
