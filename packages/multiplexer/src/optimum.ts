import { type Action, actionsOf } from "./action.ts";
import { lowerBound } from "./bound.ts";
import type { Effort } from "./effort.ts";
import type { SubStageGraph } from "./graph.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { follow, isBetter, type Schedule } from "./schedule.ts";

/**
 * All actions at all decision points, idling included, but for what no continuation can make better than the best so far,
 * at first `known`. Not complete when more than `limit` actions were tried or the effort was spent.
 */
export function optimum(
  graph: SubStageGraph,
  known: Schedule,
  limit: number,
  effort: Effort,
): { readonly schedule: Schedule; readonly complete: boolean; readonly actions: number } {
  const bound = lowerBound(graph);
  const states: MultiplexState[] = [];
  const path: Action[] = [];
  let best = known;
  let actions = 0;
  let complete = true;

  const visit = (state: MultiplexState): void => {
    let worker = state.nextDue();
    while (worker < 0) {
      effort.take(1);
      // Idling everywhere leads nowhere: then not all has ended when nothing runs.
      if (!state.advance()) {
        if (state.isDone && isBetter(state.now, best)) best = scheduleOf(graph, path);
        return;
      }
      worker = state.nextDue();
    }
    const depth = path.length;
    for (const action of actionsOf(state, worker, true)) {
      if (!isBetter(bound(state), best)) return;
      if (actions >= limit || effort.isSpent) {
        complete = false;
        return;
      }
      actions++;
      states[depth] ??= new MultiplexState(graph);
      const next = states[depth].copyFrom(state);
      path.push(action);
      next.apply(worker, action);
      visit(next);
      path.pop();
    }
  };

  visit(MultiplexState.initial(graph));
  return { schedule: best, complete, actions };
}

function scheduleOf(graph: SubStageGraph, actions: readonly Action[]): Schedule {
  let next = 0;
  return follow(MultiplexState.initial(graph), () => actions[next++]!);
}
