import { compile, type SubStageGraph } from "./graph.ts";
import { MultiplexState } from "./multiplex-state.ts";
import { temporal } from "./policies.ts";
import { follow } from "./schedule.ts";
import { type Span, type Timeline, timelineOf } from "./timeline.ts";

/** One pipeline after the other, by first appearance, each alone; what one needs of others is dropped. */
export function serial({ problem, pipelines, pipeline }: SubStageGraph): Timeline {
  const decisions: Timeline["decisions"][number][] = [];
  const spans: Span[] = problem.substages.map(() => ({ start: 0, end: 0 }));
  let makespan = 0;
  for (const p of pipelines.keys()) {
    const members = problem.substages.flatMap((substage, i) => (pipeline[i] === p ? [{ substage, i }] : []));
    const ids = new Set(members.map(({ substage }) => substage.id));
    const substages = members.map(({ substage }) => ({ ...substage, deps: substage.deps.filter((id) => ids.has(id)) }));
    const alone = compile({ ...problem, substages });
    const timeline = timelineOf(alone, follow(MultiplexState.initial(alone), temporal));
    decisions.push(...timeline.decisions.map((decision) => ({ ...decision, t: decision.t + makespan })));
    for (const [at, { i }] of members.entries()) {
      const { start, end } = timeline.spans[at]!;
      spans[i] = { start: start + makespan, end: end + makespan };
    }
    makespan += timeline.makespan;
  }
  return { makespan, decisions, spans };
}
