import { type Action, actionsOf, nothing } from "./action.ts";
import type { Effort } from "./effort.ts";
import type { SubStageGraph } from "./graph.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { greedy, type Policy } from "./policies.ts";

/** An action wins by being better by more than this. */
export const winTolerance = 1e-9;

/**
 * JigsawRL §4.4: the action after which the longest remaining chain ends first, as seen `window` decisions of this worker
 * later, while others decide by `greedy`. Nothing is followed that cannot win: no chain ends sooner than alone at least
 * factors, so that where no pair is faster than alone, what a state promises never becomes better. Past its effort it
 * decides as `greedy`.
 */
export function lookahead(graph: SubStageGraph, window: number, effort: Effort): Policy {
  const followers = Array.from({ length: window }, () => new Follower(graph, effort));

  /** The least promise over the actions of `worker`, `depth` decisions before the leaf, and its action; undefined when none is below `limit`. */
  const best = (
    state: MultiplexState,
    worker: number,
    depth: number,
    limit: number,
  ): { readonly promise: number; readonly action: Action } | undefined => {
    if (graph.neverFaster && promiseOf(state) >= limit) return undefined;
    const actions = actionsOf(state, worker);
    let found: { readonly promise: number; readonly action: Action } | undefined;
    let below = limit;
    for (const [i, next] of followers[depth - 1]!.follow(state, worker, actions).entries()) {
      const here = promiseOf(next);
      if (graph.neverFaster && here >= below) continue;
      const isLeaf = depth === 1 || !next.isDue(worker);
      const promise = isLeaf ? here : (best(next, worker, depth - 1, below)?.promise ?? below);
      if (promise >= below) continue;
      found = { promise, action: actions[i]! };
      below = promise - winTolerance;
    }
    return found;
  };

  return (state, worker) => {
    if (effort.isSpent) return greedy(state, worker);
    const { action } = best(state, worker, window, Number.POSITIVE_INFINITY) ?? { action: nothing };
    return effort.isSpent ? greedy(state, worker) : action;
  };
}

const promiseOf = (state: MultiplexState): number => state.now + state.longestChain();

/**
 * Follows each action of one worker to its next decision. Until then nothing ends on that worker, so that what the others
 * do is the same whatever it does: they are followed once.
 */
class Follower {
  readonly #others: MultiplexState;
  readonly #effort: Effort;
  readonly #ends: MultiplexState[] = [];

  constructor(graph: SubStageGraph, effort: Effort) {
    this.#others = new MultiplexState(graph);
    this.#effort = effort;
  }

  /** States by the index of the action, at the next decision of `worker` or at the end of all; they are this object's. */
  follow(state: MultiplexState, worker: number, actions: readonly Action[]): readonly MultiplexState[] {
    const then = state.now;
    const ends = actions.map((action, i) => {
      this.#ends[i] ??= new MultiplexState(state.graph);
      return { action, state: this.#ends[i], by: state.nextEndBy(worker, action) };
    });
    const others = this.#others.copyFrom(state);
    others.postpone(worker);
    let steps = 0;
    for (const end of [...ends].sort((a, b) => a.by - b.by)) {
      while (!others.isDue(worker)) {
        steps += decideOthers(others);
        if (others.nextEnd() >= end.by || !others.advance()) break;
        steps++;
      }
      end.state.copyFrom(others).decideLate(worker, end.action, then);
      if (!end.state.isDue(worker)) followTo(worker, end.state, this.#effort);
    }
    this.#effort.take(steps);
    return ends.map((end) => end.state);
  }
}

function decideOthers(state: MultiplexState): number {
  let count = 0;
  for (let other = state.nextDue(); other >= 0; other = state.nextDue()) {
    state.apply(other, greedy(state, other));
    count++;
  }
  return count;
}

/** Others decide by `greedy` until `worker` has a decision, which it takes before them; false: the end came first. */
export function followTo(worker: number, state: MultiplexState, effort: Effort): boolean {
  let steps = 0;
  for (;;) {
    steps += decideOthers(state);
    const more = state.advance();
    steps++;
    if (more && !state.isDue(worker)) continue;
    effort.take(steps);
    return more;
  }
}
