import type { SubStageGraph } from "./graph.ts";
import type { NamedDecision } from "./replay.ts";
import { endOf, type Schedule } from "./schedule.ts";

export type Span = { readonly start: number; readonly end: number };

/** A schedule as an answer tells it: by ids, with the times of every sub-stage. */
export type Timeline = {
  readonly makespan: number;
  readonly decisions: readonly NamedDecision[];
  /** by the index of the sub-stage */
  readonly spans: readonly Span[];
};

export function timelineOf(graph: SubStageGraph, schedule: Schedule): Timeline {
  const { substages } = graph.problem;
  const end = endOf(graph, schedule);
  const named = (substage: number, option: number): [string, number][] =>
    substage < 0 ? [] : [[substages[substage]!.id, option]];
  const starts = new Map<number, number>();
  for (const { at, action } of schedule.decisions) for (const i of [action.start, action.beside]) starts.set(i, at);
  /** the CPU starts what is ready at once */
  const lastEnd = (i: number): number => Math.max(0, ...graph.deps[i]!.map((dep) => end.endedAt(dep)));
  return {
    makespan: schedule.makespan,
    decisions: schedule.decisions.map(({ at, worker, action }) => ({
      t: at,
      worker,
      start: [...named(action.start, action.option), ...named(action.beside, action.besideOption)],
      split: action.split,
    })),
    spans: substages.map((_, i) => ({ start: starts.get(i) ?? lastEnd(i), end: end.endedAt(i) })),
  };
}
