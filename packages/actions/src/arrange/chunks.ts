import { type Chunk, capacities, chunkSizeFor, chunkSizes, packChunks } from "./buddy.ts";
import { type Choices, toChoices } from "./choices.ts";
import { arrangePool } from "./pool.ts";

export type ChunkArranged = {
  /** chosen index of each task, into the choices that were given */
  readonly index: Int32Array;
  readonly totalSeconds: number;
  readonly placement: readonly Chunk[];
  /** partial solutions that were kept */
  readonly work: number;
};

/** One way to serve a task: an interval of `size` devices, by the given choice. */
type Option = { readonly size: number; readonly seconds: number; readonly choice: number };

const levels = chunkSizes.length;

/**
 * The exact least sum of seconds when every task takes one aligned interval inside one free chunk; undefined when the
 * tasks do not fit at all.
 *
 * Repairs of ARL-Tangram Algorithm 4: chunks are split, and a task never joins pieces of different chunks. The state
 * is what the tasks so far use of each of the four capacities of `capacities`, which decides feasibility exactly.
 *
 * Most instances end at the first relaxation (all devices in one pool); else states run through a dynamic program
 * that drops those whose Lagrangian bound exceeds a known solution.
 */
export function arrangeChunks(tasks: readonly Choices[], chunks: readonly Chunk[]): ChunkArranged | undefined {
  const capacity = capacities(chunks);
  const options = tasks.map(optionsOf);
  if (options.some((o) => o.length === 0)) return undefined;
  const used = new Array<number>(levels).fill(0);
  for (const o of options) take(used, o[0]!.size, 1);
  if (!fits(used, capacity)) return undefined;
  const finish = (picks: readonly Option[], work: number): ChunkArranged => {
    const placement = packChunks(
      chunks,
      picks.map((p) => p.size),
    );
    // `fits` is necessary and sufficient (see `capacities`), so the packing exists.
    if (placement === undefined) throw new Error("requests within every capacity could not be packed");
    const index = Int32Array.from(picks, (p) => p.choice);
    return { index, totalSeconds: picks.reduce((sum, p) => sum + p.seconds, 0), placement, work };
  };

  const pooled = options.map((o, i) => ({
    id: tasks[i]!.id,
    units: o.map((p) => p.size),
    seconds: o.map((p) => p.seconds),
  }));
  const relaxed = arrangePool(pooled, capacity[0]!)!;
  const relaxedPicks = options.map((o, i) => o[relaxed.index[i]!]!);
  const relaxedUse = new Array<number>(levels).fill(0);
  for (const pick of relaxedPicks) take(relaxedUse, pick.size, 1);
  if (fits(relaxedUse, capacity)) return finish(relaxedPicks, relaxed.work);
  return searchStates(options, capacity, used, finish);
}

function optionsOf(task: Choices): Option[] {
  const sizes: number[] = [];
  const seconds: number[] = [];
  const choices: number[] = [];
  task.units.forEach((units, choice) => {
    const size = chunkSizeFor(units);
    if (size === undefined) return;
    sizes.push(size);
    seconds.push(task.seconds[choice]!);
    choices.push(choice);
  });
  const kept = toChoices(task.id, sizes, seconds);
  return kept.units.map((size, i) => {
    const at = sizes.findIndex((s, j) => s === size && seconds[j] === kept.seconds[i]);
    return { size, seconds: kept.seconds[i]!, choice: choices[at]! };
  });
}

function take(used: number[], size: number, sign: 1 | -1): void {
  for (let a = 0; a < levels && chunkSizes[a]! <= size; a++) used[a]! += sign * size;
}

const fits = (used: readonly number[], capacity: readonly number[]): boolean =>
  used.every((amount, a) => amount <= capacity[a]!);

/** Upgrades the task that gains most per device while it fits: a solution to prune by. */
function greedySolution(
  options: readonly Option[][],
  capacity: readonly number[],
  minimum: readonly number[],
): Option[] {
  const picks = options.map((o) => o[0]!);
  const used = [...minimum];
  for (;;) {
    let best = -1;
    let bestOption: Option | undefined;
    let bestDensity = 0;
    for (let i = 0; i < options.length; i++) {
      for (const option of options[i]!) {
        if (option.size <= picks[i]!.size) continue;
        const density = (picks[i]!.seconds - option.seconds) / (option.size - picks[i]!.size);
        if (density <= bestDensity) continue;
        take(used, picks[i]!.size, -1);
        take(used, option.size, 1);
        const feasible = fits(used, capacity);
        take(used, option.size, -1);
        take(used, picks[i]!.size, 1);
        if (!feasible) continue;
        best = i;
        bestOption = option;
        bestDensity = density;
      }
    }
    if (bestOption === undefined) return picks;
    take(used, picks[best]!.size, -1);
    take(used, bestOption.size, 1);
    picks[best] = bestOption;
  }
}

/** Prices of the four capacities by subgradient ascent; any non-negative prices give a valid bound. */
function dualPrices(options: readonly Option[][], capacity: readonly number[], target: number): number[] {
  let prices = new Array<number>(levels).fill(0);
  let best = prices;
  let bestBound = Number.NEGATIVE_INFINITY;
  let stride = 1;
  for (let round = 0; round < 120; round++) {
    const slack = capacity.map((c) => -c);
    let bound = -prices.reduce((sum, p, a) => sum + p * capacity[a]!, 0);
    for (const o of options) {
      const pick = cheapest(o, prices);
      bound += pick.seconds + priceOf(pick.size, prices);
      take(slack, pick.size, 1);
    }
    if (bound > bestBound) {
      bestBound = bound;
      best = prices;
    } else stride *= 0.93;
    const norm = slack.reduce((sum, s) => sum + s * s, 0);
    if (norm === 0) break;
    const step = (stride * Math.max(target - bound, 1e-12)) / norm;
    prices = prices.map((p, a) => Math.max(0, p + step * slack[a]!));
  }
  return best;
}

function priceOf(size: number, prices: readonly number[]): number {
  let sum = 0;
  for (let a = 0; a < levels && chunkSizes[a]! <= size; a++) sum += prices[a]! * size;
  return sum;
}

function cheapest(options: readonly Option[], prices: readonly number[]): Option {
  let best = options[0]!;
  let least = Number.POSITIVE_INFINITY;
  for (const option of options) {
    const cost = option.seconds + priceOf(option.size, prices);
    if (cost < least) {
      least = cost;
      best = option;
    }
  }
  return best;
}

type State = { used: number[]; seconds: number; option: Option | undefined; before: State | undefined };

function searchStates(
  options: readonly Option[][],
  capacity: readonly number[],
  minimum: readonly number[],
  finish: (picks: readonly Option[], work: number) => ChunkArranged,
): ChunkArranged {
  const known = greedySolution(options, capacity, minimum);
  const knownSeconds = known.reduce((sum, p) => sum + p.seconds, 0);
  const prices = dualPrices(options, capacity, knownSeconds);
  const allowed = knownSeconds + 1e-9 * Math.max(1e-9, Math.abs(knownSeconds));
  // What the tasks not yet decided cost at least, and use at least.
  let restBound = 0;
  for (const o of options) restBound += Math.min(...o.map((p) => p.seconds + priceOf(p.size, prices)));
  const restUse = [...minimum];
  const budget = prices.reduce((sum, p, a) => sum + p * capacity[a]!, 0);
  const key = (used: readonly number[]): number =>
    used.reduce((code, amount, a) => code * (capacity[a]! + 1) + amount, 0);
  let layer: State[] = [{ used: new Array<number>(levels).fill(0), seconds: 0, option: undefined, before: undefined }];
  let work = 0;
  for (const o of options) {
    restBound -= Math.min(...o.map((p) => p.seconds + priceOf(p.size, prices)));
    take(restUse, o[0]!.size, -1);
    const next = new Map<number, State>();
    for (const state of layer) {
      for (const option of o) {
        const used = [...state.used];
        take(used, option.size, 1);
        if (!used.every((amount, a) => amount + restUse[a]! <= capacity[a]!)) continue;
        const seconds = state.seconds + option.seconds;
        const spent = used.reduce((sum, amount, a) => sum + amount * prices[a]!, 0);
        if (seconds + restBound + spent - budget > allowed) continue;
        const code = key(used);
        const other = next.get(code);
        if (other === undefined || seconds < other.seconds) next.set(code, { used, seconds, option, before: state });
      }
    }
    layer = [...next.values()];
    work += layer.length;
  }
  let best: State | undefined;
  for (const state of layer) if (best === undefined || state.seconds < best.seconds) best = state;
  if (best === undefined || best.seconds >= knownSeconds) return finish(known, work);
  const picks = new Array<Option>(options.length);
  for (let state = best, i = options.length - 1; i >= 0; i--, state = state.before!) picks[i] = state.option!;
  return finish(picks, work);
}
