import type { MultiplexState } from "./multiplex-state.ts";

/** What a worker does until its next decision point. Sub-stages are indices, -1 for none; `split` counts in pairs alone. */
export type Action = {
  readonly start: number;
  readonly option: number;
  /** started together with `start`, as the second of the pair */
  readonly beside: number;
  readonly besideOption: number;
  readonly split: number;
};

/** Starts nothing. */
export const nothing: Action = { start: -1, option: 0, beside: -1, besideOption: 0, split: 0 };

export const startOf = (start: number, option: number, split = 0): Action => ({ ...nothing, start, option, split });
export const splitAt = (split: number): Action => ({ ...nothing, split });

export const isSame = (a: Action, b: Action): boolean =>
  a.start === b.start &&
  a.option === b.option &&
  a.beside === b.beside &&
  a.besideOption === b.besideOption &&
  a.split === b.split;

/**
 * Every action at a decision point of `worker`, in the order in which ties are resolved: the splits of a pair that runs; a
 * ready sub-stage beside the one that runs, then nothing; pairs of ready ones, then singles. With `idling` an empty worker
 * may also wait.
 */
export function actionsOf(state: MultiplexState, worker: number, idling = false): Action[] {
  const { graph } = state;
  const { numSplits, memoryLimit, pipeline, firstOption, optionShare } = graph;
  const actions: Action[] = [];
  const first = state.first(worker);
  if (state.second(worker) >= 0) {
    for (let split = 0; split < numSplits; split++) actions.push(splitAt(split));
    return actions;
  }
  const numReady = state.numReady(worker);
  const numOptions = (i: number): number => firstOption[i + 1]! - firstOption[i]!;
  if (first >= 0) {
    const free = memoryLimit - state.share(first);
    for (let at = 0; at < numReady; at++) {
      const start = state.ready(worker, at);
      if (pipeline[start] === pipeline[first]) continue;
      for (let option = 0; option < numOptions(start); option++) {
        if (optionShare[firstOption[start]! + option]! > free) continue;
        for (let split = 0; split < numSplits; split++) actions.push(startOf(start, option, split));
      }
    }
    actions.push(nothing);
    return actions;
  }
  for (let at = 0; at < numReady; at++) {
    const start = state.ready(worker, at);
    for (let next = at + 1; next < numReady; next++) {
      const beside = state.ready(worker, next);
      if (pipeline[start] === pipeline[beside]) continue;
      for (let option = 0; option < numOptions(start); option++) {
        const free = memoryLimit - optionShare[firstOption[start]! + option]!;
        for (let besideOption = 0; besideOption < numOptions(beside); besideOption++) {
          if (optionShare[firstOption[beside]! + besideOption]! > free) continue;
          for (let split = 0; split < numSplits; split++) actions.push({ start, option, beside, besideOption, split });
        }
      }
    }
  }
  for (let at = 0; at < numReady; at++) {
    const start = state.ready(worker, at);
    for (let option = 0; option < numOptions(start); option++) {
      if (optionShare[firstOption[start]! + option]! <= memoryLimit) actions.push(startOf(start, option));
    }
  }
  if (idling) actions.push(nothing);
  return actions;
}
