import { z } from "zod";
import { type Action, nothing } from "./action.ts";
import type { SubStageGraph } from "./graph.ts";
import { MultiplexState } from "./multiplex-state.ts";

/** What a worker does from one of its decision points on: [id, index of the option] each, and the index of a split. */
export const NamedDecision = z.strictObject({
  t: z.number().nonnegative(),
  worker: z.int(),
  start: z.array(z.tuple([z.string(), z.int()])).default([]),
  split: z.int().nullish(),
});
export type NamedDecision = z.infer<typeof NamedDecision>;

export type ReplayAnswer =
  | { readonly ok: true; readonly makespan: number }
  | { readonly ok: false; readonly error: string };

/** A decision belongs to a point of its worker within this, relative to max(1, t). */
const pointTolerance = 1e-6;

/** Follows given decisions and says the first that is not allowed. A point without one starts nothing and keeps its split. */
export function replay(graph: SubStageGraph, decisions: readonly NamedDecision[]): ReplayAnswer {
  const { numWorkers, numSubStages, problem } = graph;
  const unknown = decisions.find(({ worker }) => worker < 0 || worker >= numWorkers);
  if (unknown) return refusal(unknown, `there are workers 0 to ${numWorkers - 1}`);
  const ofWorker = Array.from({ length: numWorkers }, (): NamedDecision[] => []);
  for (const decision of [...decisions].sort((a, b) => a.t - b.t)) ofWorker[decision.worker]!.push(decision);
  const indexOf = new Map(problem.substages.map(({ id }, i) => [id, i]));

  const state = MultiplexState.initial(graph);
  do {
    for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
      const decision = ofWorker[worker]![0];
      if (decision && decision.t < state.now - tolerance(state.now))
        return refusal(decision, "no decision is due then");
      if (!decision || decision.t > state.now + tolerance(state.now)) {
        state.apply(worker, { ...nothing, split: state.split(worker) });
        continue;
      }
      ofWorker[worker]!.shift();
      const action = actionOf(state, decision, indexOf);
      if (typeof action === "string") return refusal(decision, action);
      state.apply(worker, action);
    }
  } while (state.advance());
  const left = ofWorker.flat()[0];
  if (left) return refusal(left, "no decision is due then");
  if (!state.isDone) {
    const never = Array.from({ length: numSubStages }, (_, i) => i).find((i) => !state.hasStarted(i))!;
    return { ok: false, error: `sub-stage '${problem.substages[never]!.id}' is never started` };
  }
  return { ok: true, makespan: state.now };
}

const tolerance = (t: number): number => pointTolerance * Math.max(1, t);

const refusal = ({ t, worker }: NamedDecision, reason: string): ReplayAnswer => ({
  ok: false,
  error: `decision of worker '${worker}' at '${t}': ${reason}`,
});

/** The action that a decision names, or why it is none. */
function actionOf(
  state: MultiplexState,
  { worker, start, split }: NamedDecision,
  indexOf: ReadonlyMap<string, number>,
): Action | string {
  const { graph } = state;
  const { numSplits, pipeline, firstOption, optionShare, memoryLimit } = graph;
  const chosen = split ?? state.split(worker);
  if (chosen < 0 || chosen >= numSplits) return `split '${chosen}' is not from 0 to ${numSplits - 1}`;
  const running = [state.first(worker), state.second(worker)].filter((i) => i >= 0);
  const ready = new Set(Array.from({ length: state.numReady(worker) }, (_, at) => state.ready(worker, at)));
  const pipelines = running.map((i) => pipeline[i]);
  let share = running.reduce((sum, i) => sum + state.share(i), 0);
  const starts: [number, number][] = [];
  for (const [id, option] of start) {
    const substage = indexOf.get(id);
    if (substage === undefined) return `sub-stage '${id}' is not known`;
    if (!ready.delete(substage)) return `sub-stage '${id}' is not ready there`;
    const numOptions = firstOption[substage + 1]! - firstOption[substage]!;
    if (option < 0 || option >= numOptions) return `option '${option}' of '${id}' is not from 0 to ${numOptions - 1}`;
    if (pipelines.length === 2) return `sub-stage '${id}' would be the third on its worker`;
    if (pipelines.includes(pipeline[substage])) return `sub-stage '${id}' would run beside another of its pipeline`;
    share += optionShare[firstOption[substage]! + option]!;
    if (share > memoryLimit) return `sub-stage '${id}' does not fit: memory shares would add to '${share}'`;
    pipelines.push(pipeline[substage]);
    starts.push([substage, option]);
  }
  const [first = [-1, 0], second = [-1, 0]] = starts;
  return { start: first[0]!, option: first[1]!, beside: second[0]!, besideOption: second[1]!, split: chosen };
}
