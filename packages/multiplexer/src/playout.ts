import { actionsOf, isSame } from "./action.ts";
import type { Effort } from "./effort.ts";
import type { SubStageGraph } from "./graph.ts";
import { winTolerance } from "./lookahead.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { greedy, type Policy } from "./policies.ts";

/**
 * The action after which `greedy`, for all workers to the end, ends first. For one run from its beginning to its end: what
 * `greedy` does now leads to where the last choice led, so that only other actions are followed, and those no further than
 * they can win. Past its effort it decides as `greedy`.
 */
export function playout(graph: SubStageGraph, effort: Effort): Policy {
  const scratch = new MultiplexState(graph);
  /** when `greedy` ends from the state of the next call */
  let expected: number | undefined;
  return (state, worker) => {
    expected ??= greedyMakespan(scratch.copyFrom(state), Number.POSITIVE_INFINITY, effort);
    const usual = greedy(state, worker);
    if (effort.isSpent) return usual;
    const floor = graph.neverFaster ? state.now + state.longestChain() : Number.NEGATIVE_INFINITY;
    let best = Number.POSITIVE_INFINITY;
    let chosen = usual;
    for (const action of actionsOf(state, worker)) {
      if (floor >= best - winTolerance) break;
      const isUsual = isSame(action, usual);
      // beyond what is expected of the usual one, which is yet to come or has been, nothing wins
      const limit = Math.min(best - winTolerance, expected + winTolerance);
      const makespan = isUsual
        ? expected
        : greedyMakespan(scratch.copyFrom(state).apply(worker, action), limit, effort);
      if (makespan >= best - winTolerance) continue;
      best = makespan;
      chosen = action;
    }
    if (effort.isSpent) return usual;
    expected = best;
    return chosen;
  };
}

/** Steps between two looks at what a playout can still reach. */
const stepsPerLook = 32;

/** When `greedy` ends from here on; infinite when that is not before `bound`. `state` is spent. */
export function greedyMakespan(state: MultiplexState, bound: number, effort: Effort): number {
  const { neverFaster } = state.graph;
  let steps = 0;
  let look = stepsPerLook;
  do {
    for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
      state.apply(worker, greedy(state, worker));
      steps++;
    }
    if (++steps < look) continue;
    look = steps + stepsPerLook;
    if (effort.isSpent || state.now >= bound || (neverFaster && state.now + state.longestChain() >= bound)) {
      effort.take(steps);
      return Number.POSITIVE_INFINITY;
    }
  } while (state.advance());
  effort.take(steps);
  return state.now;
}
