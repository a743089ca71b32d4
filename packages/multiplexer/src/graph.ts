import { dependantsOf, dependencyOrder } from "./dependency-order.ts";
import type { MultiplexProblem } from "./problem.ts";
import { optionsOf, withSlack } from "./substage.ts";

/**
 * A checked problem as flat tables, so that millions of states can be tried. Sub-stages, workers, pipelines and types are
 * indices; pipelines in the order of their first appearance.
 */
export type SubStageGraph = {
  readonly problem: MultiplexProblem;
  readonly numSubStages: number;
  readonly numWorkers: number;
  readonly numSplits: number;
  /** what shares on one worker may add to, slack included */
  readonly memoryLimit: number;
  readonly pipelines: readonly string[];
  /** -1: the CPU */
  readonly worker: Int32Array;
  readonly pipeline: Int32Array;
  readonly type: Int32Array;
  readonly isRollout: Uint8Array;
  readonly seconds: Float64Array;
  /** what is left when it ends with another: 1e-9 · max(1, seconds) */
  readonly endTolerance: Float64Array;
  /** the options of i are firstOption[i] … firstOption[i + 1] - 1 of these two */
  readonly firstOption: Int32Array;
  readonly optionShare: Float64Array;
  readonly optionFactor: Float64Array;
  /** the least factor of all options */
  readonly leastFactor: Float64Array;
  /** the option of the least factor that fits alone; -1 when none does */
  readonly fittingOption: Int32Array;
  readonly deps: readonly (readonly number[])[];
  readonly dependants: readonly (readonly number[])[];
  /** seconds of the longest chain after it, alone and at least factors */
  readonly chainAfter: Float64Array;
  /** where the sub-stages of each worker begin in a list of all, ordered by worker */
  readonly firstOfWorker: Int32Array;
  /** slowdown[(a · numTypes + b) · numSplits + k]: of type a beside b at a's own split k */
  readonly slowdown: Float64Array;
  readonly numTypes: number;
  /** no pair is faster than alone: only then chains bound what is left */
  readonly neverFaster: boolean;
};

export function compile(problem: MultiplexProblem): SubStageGraph {
  const { workers, memory, splits, substages, pair, rolloutTypes } = problem;
  const numSubStages = substages.length;
  const numSplits = splits.length;
  const pipelines = [...new Set(substages.map(({ pipeline }) => pipeline))];
  const types = [...new Set(substages.map(({ type }) => type))];
  const indexOf = new Map(substages.map(({ id }, i) => [id, i]));
  const deps = substages.map((substage) => substage.deps.map((id) => indexOf.get(id)!));
  const dependants = dependantsOf(deps);
  const options = substages.map(optionsOf);
  const memoryLimit = withSlack(memory);

  const firstOption = new Int32Array(numSubStages + 1);
  for (const [i, list] of options.entries()) firstOption[i + 1] = firstOption[i]! + list.length;
  const seconds = Float64Array.from(substages, ({ dur }) => dur);
  const leastFactor = Float64Array.from(options, (list) => Math.min(...list.map(([, factor]) => factor)));
  const fittingOption = Int32Array.from(options, (list) => {
    let best = -1;
    for (const [at, [share, factor]] of list.entries()) {
      if (share <= memoryLimit && (best < 0 || factor < list[best]![1])) best = at;
    }
    return best;
  });
  const chainAfter = new Float64Array(numSubStages);
  for (const i of dependencyOrder(deps).reverse()) {
    for (const next of dependants[i]!) {
      chainAfter[i] = Math.max(chainAfter[i]!, seconds[next]! * leastFactor[next]! + chainAfter[next]!);
    }
  }
  const firstOfWorker = new Int32Array(workers + 1);
  for (const { worker } of substages) if (worker !== null) firstOfWorker[worker + 1]!++;
  for (let w = 0; w < workers; w++) firstOfWorker[w + 1]! += firstOfWorker[w]!;

  const slowdown = new Float64Array(types.length * types.length * numSplits).fill(Number.NaN);
  let neverFaster = true;
  for (const [a, typeA] of types.entries()) {
    for (const [b, typeB] of types.entries()) {
      const row = Object.hasOwn(pair, typeA) ? pair[typeA]! : {};
      if (!Object.hasOwn(row, typeB)) continue;
      slowdown.set(row[typeB]!, (a * types.length + b) * numSplits);
      neverFaster &&= row[typeB]!.every((value) => value >= 1);
    }
  }
  return {
    problem,
    numSubStages,
    numWorkers: workers,
    numSplits,
    memoryLimit,
    pipelines,
    worker: Int32Array.from(substages, ({ worker }) => worker ?? -1),
    pipeline: Int32Array.from(substages, ({ pipeline }) => pipelines.indexOf(pipeline)),
    type: Int32Array.from(substages, ({ type }) => types.indexOf(type)),
    isRollout: Uint8Array.from(substages, ({ type }) => (rolloutTypes.includes(type) ? 1 : 0)),
    seconds,
    endTolerance: seconds.map((value) => 1e-9 * Math.max(1, value)),
    firstOption,
    optionShare: Float64Array.from(options.flatMap((list) => list.map(([share]) => share))),
    optionFactor: Float64Array.from(options.flatMap((list) => list.map(([, factor]) => factor))),
    leastFactor,
    fittingOption,
    deps,
    dependants,
    chainAfter,
    firstOfWorker,
    slowdown,
    numTypes: types.length,
    neverFaster,
  };
}
