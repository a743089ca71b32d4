import { performance } from "node:perf_hooks";
import { solveMultiplex } from "@treadle/multiplexer";
import { normal, randomNumbers } from "./actions/workload.ts";
import { type BenchRow, row } from "./row.ts";

const notMeasured = "reading the problem; whether durations and slowdowns are true";

/** Slowdowns of the paper's kind: tails hardly notice their share, training does (JigsawRL Figures 7 and 8). */
const pair = {
  dense: { dense: [2.6, 2.0, 1.5], tail: [2.4, 1.7, 1.25], train: [2.8, 2.1, 1.6] },
  tail: { dense: [1.4, 1.25, 1.15], tail: [1.3, 1.2, 1.1], train: [1.4, 1.2, 1.1] },
  train: { dense: [2.9, 2.1, 1.6], tail: [2.7, 1.7, 1.25], train: [3.0, 2.2, 1.7] },
};

/**
 * One step of each run: on every worker a dense rollout and its tail, half of the runs with tools on the CPU between them,
 * then a training that begins when all tails have ended. Lengths spread log-normally over workers.
 */
function benchGraph(numWorkers: number, numRuns: number, numSteps: number): object {
  const uniform = randomNumbers(7);
  const spread = (sigma: number): number => Math.exp(sigma * normal(uniform));
  const substages: object[] = [];
  for (let run = 0; run < numRuns; run++) {
    let before: string[] = [];
    for (let step = 0; step < numSteps; step++) {
      const tails: string[] = [];
      const trainings: string[] = [];
      for (let worker = 0; worker < numWorkers; worker++) {
        const name = (part: string): string => `${part}-${run}-${step}-${worker}`;
        const add = (part: string, fields: object): string => {
          substages.push({ id: name(part), pipeline: `run-${run}`, worker, type: part, ...fields });
          return name(part);
        };
        let last = add("dense", { dur: 20 * spread(0.2), mem: 0.45, deps: before });
        if (run % 2 === 1) last = add("tool", { worker: null, dur: 5 * spread(0.5), deps: [last] });
        tails.push(add("tail", { dur: 25 * spread(0.6), mem: 0.4, deps: [last] }));
      }
      for (let worker = 0; worker < numWorkers; worker++) {
        const id = `train-${run}-${step}-${worker}`;
        const memOptions = [[0.75, 1] as const, [0.55, 1.12] as const];
        substages.push({ id, pipeline: `run-${run}`, worker, type: "train", dur: 20, memOptions, deps: tails });
        trainings.push(id);
      }
      before = trainings;
    }
  }
  return { workers: numWorkers, splits: [0.25, 0.5, 0.75], rolloutTypes: ["dense", "tail"], pair, substages };
}

/** Several runs on the same workers (JigsawRL §4.4). Half a minute of one processor. */
export function* benchMultiplexer(): Generator<BenchRow> {
  for (const { numWorkers, numRuns, numSteps } of [
    { numWorkers: 4, numRuns: 2, numSteps: 3 },
    { numWorkers: 64, numRuns: 4, numSteps: 1 },
  ]) {
    const graph = benchGraph(numWorkers, numRuns, numSteps);
    const baseline = solveMultiplex(graph, { method: "serial" }).makespan!;
    for (const method of ["temporal", "mux", "greedy", "lookahead", "playout", "search"]) {
      const before = process.cpuUsage();
      const { makespan, stats } = solveMultiplex(graph, { method, nowMs: () => performance.now() });
      const { user, system } = process.cpuUsage(before);
      const name = `${numRuns} runs of ${numSteps} steps on ${numWorkers} workers, ${method}`;
      const against = "one run after the other";
      yield row({ name: `${name}, makespan`, value: makespan, unit: "s", baseline, against, notMeasured });
      const perDecision = (ms: number): number => ms / stats.decisions;
      yield row({
        name: `${name}, a decision, processor`,
        value: perDecision((user + system) / 1000),
        unit: "ms",
        notMeasured,
      });
      yield row({ name: `${name}, a decision, wall`, value: perDecision(stats.milliseconds), unit: "ms", notMeasured });
    }
  }
}
