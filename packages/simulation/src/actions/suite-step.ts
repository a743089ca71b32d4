/**
 * Test suites that come together on one machine, as at the end of a rollout: drawn shapes, on which nothing was tuned. Elastic degrees
 * against the fixed degree that is best in hindsight for that shape.
 */
import { ActionHistory, CpuManager, type DecideOptions, defaultDecideOptions } from "@treadle/actions/state-machines";
import type { Random } from "@treadle/learning";
import { normal } from "../durations.ts";
import { EventQueue } from "../event-queue.ts";
import { type BestDegree, bestDegree } from "./best-degree.ts";
import { scalingAction } from "./scaling-action.ts";
import { VirtualPool } from "./virtual-pool.ts";

/** Seconds on one core, and what the scheduler is told of them. */
type Suite = {
  readonly atSeconds: number;
  readonly seconds: number;
  readonly estimate: number;
  readonly serialShare: number;
};

export type SuiteShape = {
  readonly cores: number;
  /** that one suite may have */
  readonly maxCores: number;
  /** how often as many suites come together */
  readonly rounds: number;
  /** in one round */
  readonly suitesPerCore: number;
  readonly suites: readonly Suite[];
};

/** Mean completion times, of the best fixed degree for that shape. */
export type SuiteComparison = {
  readonly shape: SuiteShape;
  readonly unitAware: number;
  readonly fixed: BestDegree;
};

const degrees = [1, 2, 4, 8, 16, 32] as const;
/** of every suite, as in the other steps */
const overheadSeconds = 0.06;
const medianSeconds = 60;

/** 2 to 64 cores, a quarter to eight suites a core, 1 to 30 % serial, equal or unequal, known exactly or to 30 %. */
export function drawSuites(random: Random): SuiteShape {
  const oneOf = <Value>(values: readonly Value[]): Value => values[Math.floor(random.float() * values.length)]!;
  const cores = oneOf([2, 4, 8, 16, 32, 64]);
  const numSuites = Math.max(2, Math.round(cores * 2 ** (5 * random.float() - 2)));
  const rounds = oneOf([1, 1, 2, 4]);
  const spread = oneOf([0, 0, 0.2, 0.6]);
  const estimateSpread = oneOf([0, 0, 0.3]);
  const serialShare = 0.01 * 30 ** random.float();
  const serialSpread = oneOf([0, 1]);
  // In parts of the time that a round keeps all cores busy.
  const gap = ((0.3 + 2 * random.float()) * numSuites * medianSeconds) / cores;
  const suites = Array.from({ length: rounds * numSuites }, (_, i): Suite => {
    const seconds = medianSeconds * Math.exp(spread * normal(random));
    return {
      atSeconds: Math.floor(i / numSuites) * gap,
      seconds,
      estimate: seconds * Math.exp(estimateSpread * normal(random)),
      serialShare: serialShare * (1 + serialSpread * (random.float() - 0.5)),
    };
  });
  return { cores, maxCores: oneOf([cores, Math.min(cores, 8)]), rounds, suitesPerCore: numSuites / cores, suites };
}

/** Mean completion time, seconds. */
export function suiteStep({ suites, cores, maxCores }: SuiteShape, options: Partial<DecideOptions>): number {
  const queue = new EventQueue();
  const numa = [Array.from({ length: cores }, (_, core) => core)];
  const manager = new CpuManager({ nodes: [{ id: "node", numa, memoryBytes: Number.MAX_SAFE_INTEGER }] });
  const pool = new VirtualPool(queue, manager, { ...defaultDecideOptions, ...options });
  const history = new ActionHistory();
  let sum = 0;
  for (const [i, suite] of suites.entries()) {
    const own = { kind: "suite", id: `${i}`, trajectory: `${i}`, maxCores, cores, overheadSeconds };
    queue.at(suite.atSeconds * 1000, () =>
      pool.submit({
        ...scalingAction({ ...own, ...suite }, history),
        ended: (completionSeconds) => {
          sum += completionSeconds;
          pool.endTrajectory(`${i}`);
        },
      }),
    );
  }
  while (queue.runNext()) {}
  return sum / suites.length;
}

export function compareSuite(shape: SuiteShape): SuiteComparison {
  const fixed = bestDegree(degrees, shape.cores, (dop) => suiteStep(shape, { policy: "fixed-dop", dop }));
  return { shape, unitAware: suiteStep(shape, {}), fixed };
}
