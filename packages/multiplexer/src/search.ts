import { type Action, actionsOf } from "./action.ts";
import { lowerBound } from "./bound.ts";
import type { Effort } from "./effort.ts";
import type { SubStageGraph } from "./graph.ts";
import { followTo, lookahead } from "./lookahead.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { optimum } from "./optimum.ts";
import { greedyMakespan, playout } from "./playout.ts";
import { greedy } from "./policies.ts";
import { betterThan, type Decision, follow, isBetter, type Schedule } from "./schedule.ts";

/** Steps of simulation, a decision of the schedule, that may go into improving what the policies found. */
const stepsPerDecision = 2500;
/** A schedule of more decisions is not worth a search of all actions. */
const decisionsOfFullSearch = 64;

/**
 * The best of `greedy`, `playout` and `lookahead`, improved: at each decision of the best schedule each other action is
 * tried, two decisions of this worker deep with playouts as leaves, and a better schedule takes its place; what is small is
 * then searched in full. Any-time: past its effort it answers with the best so far. Not complete means cut off by it.
 */
export function search(
  graph: SubStageGraph,
  window: number,
  effort: Effort,
): Schedule & { readonly complete: boolean } {
  let best = follow(MultiplexState.initial(graph), greedy);
  const bound = lowerBound(graph)(MultiplexState.initial(graph));
  const isProven = (): boolean => !isBetter(bound, best);
  for (const policy of [playout(graph, effort), lookahead(graph, window, effort)]) {
    if (isProven() || effort.isSpent) break;
    const found = follow(MultiplexState.initial(graph), policy);
    if (found.makespan < best.makespan) best = found;
  }
  const stopAtSteps = effort.steps + stepsPerDecision * best.decisions.length;
  const mayGoOn = (): boolean => !isProven() && !effort.isSpent && effort.steps < stopAtSteps;
  for (let before = Number.POSITIVE_INFINITY; mayGoOn() && best.makespan < before; ) {
    before = best.makespan;
    best = improve(graph, best, effort, stopAtSteps);
  }
  if (mayGoOn() && best.decisions.length <= decisionsOfFullSearch) {
    best = optimum(graph, best, stopAtSteps - effort.steps, effort).schedule;
  }
  return { ...best, complete: !effort.isSpent };
}

/** One pass over the decisions of `known`; each action that leads to something better replaces it and all after it. */
function improve(graph: SubStageGraph, known: Schedule, effort: Effort, stopAtSteps: number): Schedule {
  const state = MultiplexState.initial(graph);
  const [followed, leaf] = [new MultiplexState(graph), new MultiplexState(graph)];
  let best = known;
  const prefix: Decision[] = [];
  const mayGoOn = (): boolean => !effort.isSpent && effort.steps < stopAtSteps;

  const tryActions = (worker: number): void => {
    const floor = graph.neverFaster ? state.now + state.longestChain() : 0;
    for (const action of actionsOf(state, worker)) {
      if (!isBetter(floor, best) || !mayGoOn()) return;
      followed.copyFrom(state).apply(worker, action);
      const isDecision = followTo(worker, followed, effort);
      const nextActions = isDecision ? actionsOf(followed, worker) : [];
      if (!isDecision && isBetter(followed.now, best)) best = recorded(state, prefix, worker, [action]);
      for (const next of nextActions) {
        if (!mayGoOn()) return;
        leaf.copyFrom(followed).apply(worker, next);
        const makespan = greedyMakespan(leaf, betterThan(best), effort);
        if (isBetter(makespan, best)) best = recorded(state, prefix, worker, [action, next]);
      }
    }
  };

  do {
    for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
      tryActions(worker);
      const decision = best.decisions[prefix.length]!;
      prefix.push(decision);
      state.apply(worker, decision.action);
    }
  } while (mayGoOn() && state.advance());
  return best;
}

/** The decisions so far, then these actions of `worker` at its next points, and `greedy` at all others. */
function recorded(
  from: MultiplexState,
  prefix: readonly Decision[],
  worker: number,
  actions: readonly Action[],
): Schedule {
  let next = 0;
  const { makespan, decisions } = follow(new MultiplexState(from.graph).copyFrom(from), (state, due) =>
    due === worker && next < actions.length ? actions[next++]! : greedy(state, due),
  );
  return { makespan, decisions: [...prefix, ...decisions] };
}
