import type { Action } from "./action.ts";
import type { SubStageGraph } from "./graph.ts";
import { MultiplexState } from "./multiplex-state.ts";
import type { Policy } from "./policies.ts";

/** In the order in which they are taken: by time, at one time by worker. */
export type Decision = { readonly at: number; readonly worker: number; readonly action: Action };
export type Schedule = { readonly makespan: number; readonly decisions: readonly Decision[] };

/** Makespans differ when they do by more than this, relatively. */
const sameWithin = 1e-9;

/** What a makespan must be below to be better than `schedule`. */
export const betterThan = ({ makespan }: Schedule): number => makespan * (1 - sameWithin);

export const isBetter = (makespan: number, than: Schedule): boolean => makespan < betterThan(than);

/** Follows `policy` from `state` to the end, where it leaves `state`. */
export function follow(state: MultiplexState, policy: Policy): Schedule {
  const decisions: Decision[] = [];
  do {
    for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
      const action = policy(state, worker);
      decisions.push({ at: state.now, worker, action });
      state.apply(worker, action);
    }
  } while (state.advance());
  return { makespan: state.now, decisions };
}

/** The end of a schedule that `follow` or a search gave. */
export function endOf(graph: SubStageGraph, { decisions }: Schedule): MultiplexState {
  const state = MultiplexState.initial(graph);
  let next = 0;
  follow(state, () => decisions[next++]!.action);
  return state;
}
