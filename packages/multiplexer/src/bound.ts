import type { SubStageGraph } from "./graph.ts";
import type { MultiplexState } from "./multiplex-state.ts";

/** What no schedule beats from a state on: its longest chain at its fastest, each worker's work in its best pair. */
export function lowerBound({
  numWorkers,
  numTypes,
  numSplits,
  slowdown,
}: SubStageGraph): (state: MultiplexState) => number {
  let leastSlowdown = 1;
  /** seconds of work at least factors that one second of a worker can do */
  let mostWork = 1;
  for (let a = 0; a < numTypes; a++) {
    for (let b = 0; b < numTypes; b++) {
      for (let k = 0; k < numSplits; k++) {
        const ofA = slowdown[(a * numTypes + b) * numSplits + k]!;
        const ofB = slowdown[(b * numTypes + a) * numSplits + numSplits - 1 - k]!;
        if (Number.isNaN(ofA) || Number.isNaN(ofB)) continue;
        leastSlowdown = Math.min(leastSlowdown, ofA);
        mostWork = Math.max(mostWork, 1 / ofA + 1 / ofB);
      }
    }
  }
  return (state) => {
    let most = 0;
    for (let worker = 0; worker < numWorkers; worker++) most = Math.max(most, state.workLeft(worker));
    return state.now + Math.max(state.longestChain() * leastSlowdown, most / mostWork);
  };
}
