import { type Action, actionsOf, nothing, splitAt, startOf } from "./action.ts";
import type { MultiplexState } from "./multiplex-state.ts";

/** Decides at a decision point of `worker`, from the state alone. */
export type Policy = (state: MultiplexState, worker: number) => Action;

/** A pair must be better than what it is compared with by more than this. */
const ratioTolerance = 1e-12;

/** One at a time: the earliest ready (ties: the lower index), with the fitting option of the least factor. */
export const temporal: Policy = (state, worker) => {
  if (state.first(worker) >= 0) return nothing;
  let start = state.ready(worker, 0);
  for (let at = 1; at < state.numReady(worker); at++) {
    const substage = state.ready(worker, at);
    if (state.readyAt(substage) < state.readyAt(start)) start = substage;
  }
  return startOf(start, state.graph.fittingOption[start]!);
};

/** Rollouts beside rollouts at the middle split, as serving systems multiplex; all else one at a time. */
export const mux: Policy = (state, worker) => {
  const { isRollout, numSplits } = state.graph;
  const middle = (numSplits - 1) >> 1;
  const first = state.first(worker);
  if (state.second(worker) >= 0) return splitAt(middle);
  if (first >= 0 && isRollout[first] === 0) return nothing;
  const pair = actionsOf(state, worker).find(
    ({ start, beside, split }) =>
      split === middle &&
      start >= 0 &&
      isRollout[start] === 1 &&
      (first >= 0 || (beside >= 0 && isRollout[beside] === 1)),
  );
  return pair ?? temporal(state, worker);
};

/**
 * The pair that takes the least of the time that its two take one after the other, if that saves any; else one at a time.
 * Written out rather than over `actionsOf`: it leads every playout.
 */
export const greedy: Policy = (state, worker) => {
  const { graph } = state;
  const { numSplits, memoryLimit, pipeline, firstOption, optionShare, optionFactor, leastFactor } = graph;
  const first = state.first(worker);
  const second = state.second(worker);
  if (second >= 0) {
    const [leftA, leftB] = [state.left(worker, first), state.left(worker, second)];
    const [factorA, factorB] = [state.factor(first), state.factor(second)];
    let best = Number.POSITIVE_INFINITY;
    let bestSplit = 0;
    const solo = leftA * leastFactor[first]! + leftB * leastFactor[second]!;
    for (let split = 0; split < numSplits; split++) {
      const ratio = pairSeconds(state, first, leftA, factorA, second, leftB, factorB, split) / solo;
      if (ratio < best - ratioTolerance) {
        best = ratio;
        bestSplit = split;
      }
    }
    return splitAt(bestSplit);
  }
  const numReady = state.numReady(worker);
  let best = 1;
  let [bestStart, bestOption, bestBeside, bestBesideOption, bestSplit] = [-1, 0, -1, 0, 0];
  const numOthers = first >= 0 ? 1 : numReady;
  for (let i = 0; i < numOthers; i++) {
    const a = first >= 0 ? first : state.ready(worker, i);
    const leftA = state.left(worker, a);
    const fromA = first >= 0 ? 0 : firstOption[a]!;
    const untilA = first >= 0 ? 1 : firstOption[a + 1]!;
    for (let j = first >= 0 ? 0 : i + 1; j < numReady; j++) {
      const b = state.ready(worker, j);
      if (pipeline[a] === pipeline[b]) continue;
      const leftB = state.left(worker, b);
      const solo = leftA * leastFactor[a]! + leftB * leastFactor[b]!;
      for (let optionA = fromA; optionA < untilA; optionA++) {
        const free = memoryLimit - (first >= 0 ? state.share(a) : optionShare[optionA]!);
        const factorA = first >= 0 ? state.factor(a) : optionFactor[optionA]!;
        for (let optionB = firstOption[b]!; optionB < firstOption[b + 1]!; optionB++) {
          if (optionShare[optionB]! > free) continue;
          const factorB = optionFactor[optionB]!;
          for (let split = 0; split < numSplits; split++) {
            const ratio = pairSeconds(state, a, leftA, factorA, b, leftB, factorB, split) / solo;
            if (ratio >= best - ratioTolerance) continue;
            best = ratio;
            bestSplit = split;
            bestStart = first >= 0 ? b : a;
            bestOption = first >= 0 ? optionB - firstOption[b]! : optionA - fromA;
            bestBeside = first >= 0 ? -1 : b;
            bestBesideOption = first >= 0 ? 0 : optionB - firstOption[b]!;
          }
        }
      }
    }
  }
  if (bestStart < 0) return temporal(state, worker);
  return { start: bestStart, option: bestOption, beside: bestBeside, besideOption: bestBesideOption, split: bestSplit };
};

/** Until both have ended: together at a split, then what is left of the longer one alone. */
function pairSeconds(
  { graph }: MultiplexState,
  a: number,
  leftA: number,
  factorA: number,
  b: number,
  leftB: number,
  factorB: number,
  split: number,
): number {
  const { type, numTypes, numSplits, slowdown } = graph;
  const paceA = factorA * slowdown[(type[a]! * numTypes + type[b]!) * numSplits + split]!;
  const paceB = factorB * slowdown[(type[b]! * numTypes + type[a]!) * numSplits + numSplits - 1 - split]!;
  const secondsA = leftA * paceA;
  const secondsB = leftB * paceB;
  return secondsA <= secondsB
    ? secondsA + (leftB - secondsA / paceB) * factorB
    : secondsB + (leftA - secondsB / paceA) * factorA;
}
