/**
 * The fast exact search: best-first branch and bound over cut x chunk x split.
 *
 * A state (subgraph, level, items) is asked with a limit: afterwards either its value is exact, or it is proven to be at
 * least the limit (`Row.lower` says so). A candidate of a state is a temporal cut, or a cut, a chunk and a range of
 * splits. A range is bounded below by giving its first part the most and its second part the most devices of the range;
 * it is halved until one split is left, whose parts are then asked, each with the largest limit that can still win.
 * Values only ever tighten, so every answer is memoised for all later limits.
 */
import { type Bounds, DeadlinePassed, mayHaveMoreStages, type Row } from "./bounds.ts";
import { type Candidate, largestUseful, pop, push, restOf, type Stage, stagesOf, totalSeconds } from "./candidate.ts";
import { evaluateSchedule } from "./evaluate.ts";
import { bitCount } from "./graph.ts";
import { type Cut, leafOf, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import type { Schedule } from "./problem.ts";
import { tailBound } from "./tails.ts";

const noStages: readonly Stage[] = [];

/** So many splits of two components are looked at sooner than halved further. */
const fewSplits = 32;

/** What a state's value comes of: a candidate, or a cycle that runs as one component. */
type Choice = Candidate | { readonly bound: number; readonly asOne: true };

export class Search {
  readonly #model: PlanModel;
  readonly #bounds: Bounds;
  readonly #operations: Operations;
  readonly #checkDeadline: () => void;
  readonly #choices = new Map<number, Choice>();
  /** the best complete candidate of the root, kept up to date for an early stop */
  #incumbent: { readonly time: number; readonly choice: Choice } | undefined;
  states = 0;
  candidates = 0;

  constructor(model: PlanModel, bounds: Bounds, operations: Operations, checkDeadline: () => void) {
    this.#model = model;
    this.#bounds = bounds;
    this.#operations = operations;
    this.#checkDeadline = checkDeadline;
  }

  /**
   * The least time and a schedule of it, or nothing where all take longer than `limit`; on a passed deadline the best so
   * far, with `bound` below `time`.
   */
  run(limit = Number.POSITIVE_INFINITY): { time: number; schedule: Schedule | null; bound: number } {
    const { all, levels } = this.#model;
    const row = this.#bounds.row(all, 0);
    try {
      this.#solve(all, levels, 0, limit, true);
    } catch (error) {
      if (!(error instanceof DeadlinePassed)) throw error;
      const bound = row.lower[levels]!;
      const incumbent = this.#incumbent;
      if (this.#bounds.upperAt(all, 0, levels) === Number.POSITIVE_INFINITY) {
        if (incumbent === undefined) return { time: Number.POSITIVE_INFINITY, schedule: null, bound };
        return { time: incumbent.time, schedule: this.#compose(incumbent.choice, all, levels, 0), bound };
      }
      const schedule = this.scheduleAt(all, levels, 0);
      const { objective } = this.#model;
      const time = evaluateSchedule(this.#model, schedule)[objective] ?? Number.POSITIVE_INFINITY;
      if (incumbent === undefined || time <= incumbent.time) return { time, schedule, bound };
      return { time: incumbent.time, schedule: this.#compose(incumbent.choice, all, levels, 0), bound };
    }
    const bound = row.lower[levels]!;
    if (row.exact[levels] === 0 || bound === Number.POSITIVE_INFINITY)
      return { time: Number.POSITIVE_INFINITY, schedule: null, bound };
    return { time: bound, schedule: this.schedule(all, levels, 0), bound };
  }

  /** What the upper bounds alone have found, without a search; null where they found nothing or no schedule of it. */
  first(): Schedule | null {
    const { all, levels } = this.#model;
    if (this.#bounds.upperAt(all, 0, levels) === Number.POSITIVE_INFINITY) return null;
    try {
      return this.scheduleAt(all, levels, 0);
    } catch (error) {
      if (!(error instanceof DeadlinePassed)) throw error;
      return null;
    }
  }

  #solve(set: PlanSet, level: number, itemsIndex: number, limit: number, root: boolean): void {
    const row = this.#bounds.row(set, itemsIndex);
    if (row.exact[level] === 1 || row.lower[level]! >= limit) return;
    this.states++;
    const upper = this.#bounds.upperAt(set, itemsIndex, level);
    // Something at most `upper` exists, so nothing above it needs to be looked at; the slack keeps that something.
    const hint = upper + Math.abs(upper) * 1e-12 + Number.MIN_VALUE;
    const found =
      this.#best(set, level, itemsIndex, Math.min(limit, hint), row, root) ??
      (hint < limit ? this.#best(set, level, itemsIndex, limit, row, root) : undefined);
    if (found !== undefined) {
      row.exact[level] = 1;
      raiseLower(row, level, found.bound);
      this.#choices.set(this.#key(set, level, itemsIndex), found);
      this.#bounds.lowerUpper(set, itemsIndex, level, found.bound);
    } else if (limit === Number.POSITIVE_INFINITY && upper === Number.POSITIVE_INFINITY) {
      row.exact[level] = 1;
      raiseLower(row, level, Number.POSITIVE_INFINITY);
    } else {
      raiseLower(row, level, limit);
    }
  }

  /** The best candidate below `limit`, its `bound` being the state's value; undefined where there is none. */
  #best(set: PlanSet, level: number, itemsIndex: number, limit: number, row: Row, root: boolean): Choice | undefined {
    const heap: Candidate[] = [];
    let best = limit;
    let choice: Choice | undefined;
    if (leafOf(set, this.#operations) >= 0) {
      const seconds = this.#model.leafSeconds(set.leaf, itemsIndex)[level]!;
      if (seconds < best) {
        best = seconds;
        choice = { bound: seconds, asOne: true };
        if (root) this.#incumbent = { time: best, choice };
      }
    }
    for (const cut of set.cuts) {
      if (this.#operations.temporal && cut.turns) {
        const a = this.#bounds.lowerAt(cut.turnFirst, itemsIndex, level);
        const b = this.#bounds.lowerAt(cut.turnSecond, itemsIndex, level);
        const bound = a + b + swapAt(cut, level);
        const [before, open] = [noStages, false];
        if (bound < best)
          push(heap, { bound, cut, itemsIndex, count: -1, level, low: level, high: level, before, open });
      }
      if (!this.#operations.spatial || !cut.beside || (level < 2 && !cut.free)) continue;
      for (const { itemsIndex: chunkIndex, count } of this.#model.chunkings[itemsIndex]!) {
        this.#pushWindow(heap, cut, chunkIndex, count, level, best);
      }
      if (this.#model.problem.parallelIndependent && cut.independent) {
        this.#pushWindow(heap, cut, itemsIndex, 0, level, best);
      }
    }
    while (heap.length > 0) {
      const candidate = pop(heap);
      if (candidate.bound >= best) break;
      if (root) row.lower[level] = Math.max(row.lower[level]!, candidate.bound);
      this.candidates++;
      if ((this.candidates & 63) === 0) this.#checkDeadline();
      if (candidate.low < candidate.high) {
        const middle = (candidate.low + candidate.high) >> 1;
        this.#pushRange(heap, candidate, candidate.low, middle, best);
        this.#pushRange(heap, candidate, middle + 1, candidate.high, best);
        continue;
      }
      if (candidate.open) {
        this.#extend(heap, candidate, best);
        continue;
      }
      const stages = stagesOf(candidate);
      candidate.bound = this.#settle(candidate, stages, best, heap[0]?.bound ?? Number.POSITIVE_INFINITY);
      if (candidate.bound >= best) continue;
      if (stages.some((stage) => this.#bounds.row(stage.set, candidate.itemsIndex).exact[stage.level] === 0)) {
        push(heap, candidate);
        continue;
      }
      best = candidate.bound;
      choice = candidate;
      if (root) this.#incumbent = { time: best, choice };
    }
    return choice;
  }

  /** A function for the least total of one cut, chunk and prefix, of the most levels its two parts have. */
  #rangeBound(
    cut: Cut,
    itemsIndex: number,
    count: number,
    before: readonly Stage[],
    open: boolean,
  ): (first: number, second: number) => number {
    const a = this.#bounds.row(cut.first, itemsIndex).lower;
    const b = this.#bounds.row(cut.second, itemsIndex).lower;
    let sum = 0;
    let max = Number.NEGATIVE_INFINITY;
    const { objective } = this.#model;
    for (const stage of before) {
      const seconds = this.#bounds.row(stage.set, itemsIndex).lower[stage.level]!;
      sum += seconds;
      max = Math.max(max, seconds);
    }
    if (!open) {
      return (first, second) =>
        totalSeconds(objective, sum + a[first]! + b[second]!, Math.max(max, a[first]!, b[second]!), count, 0);
    }
    const tail = this.#bounds.tails.tail(cut.second, itemsIndex, count);
    const { ceilIndex } = this.#bounds.grid;
    return (first, second) => tailBound(sum + a[first]!, Math.max(max, a[first]!), tail, ceilIndex[second]!, count);
  }

  /**
   * The splits of one cut and chunk that can beat `best`: two ranges that meet at the crossing, where the first part
   * becomes the faster one. Left of it the first part is the bottleneck and right of it the second, so that each range's
   * bound is near its best split.
   */
  #pushWindow(heap: Candidate[], cut: Cut, itemsIndex: number, count: number, level: number, best: number): void {
    if (mayHaveMoreStages(this.#model, cut.second, count)) {
      this.#pushStages(heap, cut, itemsIndex, count, level, best, noStages);
      return;
    }
    const { objective } = this.#model;
    this.candidates++;
    const each = cut.free ? level : level - 1;
    const aLeast = this.#bounds.lowerAt(cut.first, itemsIndex, each);
    const bLeast = this.#bounds.lowerAt(cut.second, itemsIndex, each);
    if (spatialSeconds(objective, aLeast, bLeast, count) >= best) return;
    const a = this.#bounds.row(cut.first, itemsIndex).lower;
    const b = this.#bounds.row(cut.second, itemsIndex).lower;
    if (cut.free) {
      this.#pushSplits(heap, cut, itemsIndex, count, level, level, level, best);
      return;
    }
    let [from, to] = [1, level];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (a[middle]! <= b[level - middle]!) to = middle;
      else from = middle + 1;
    }
    const crossing = from;
    if (crossing > 1 && spatialSeconds(objective, a[crossing - 1]!, bLeast, count) < best) {
      [from, to] = [1, crossing - 1];
      while (from < to) {
        const middle = (from + to) >> 1;
        if (spatialSeconds(objective, a[middle]!, bLeast, count) < best) to = middle;
        else from = middle + 1;
      }
      this.#pushSplits(heap, cut, itemsIndex, count, level, from, crossing - 1, best);
    }
    if (crossing < level && spatialSeconds(objective, aLeast, b[level - crossing]!, count) < best) {
      [from, to] = [crossing, level - 1];
      while (from < to) {
        const middle = (from + to + 1) >> 1;
        if (spatialSeconds(objective, aLeast, b[level - middle]!, count) < best) from = middle;
        else to = middle - 1;
      }
      this.#pushSplits(heap, cut, itemsIndex, count, level, crossing, from, best);
    }
  }

  /** A range of splits of two stages. Where both are components, all of a small one are looked at, for all are exact. */
  #pushSplits(
    heap: Candidate[],
    cut: Cut,
    itemsIndex: number,
    count: number,
    level: number,
    low: number,
    high: number,
    best: number,
  ): void {
    const { objective } = this.#model;
    const a = this.#bounds.row(cut.first, itemsIndex).lower;
    const b = this.#bounds.row(cut.second, itemsIndex).lower;
    const before = noStages;
    const open = false;
    const bound = spatialSeconds(objective, a[high]!, b[restOf(cut, level, low)]!, count);
    if (bound >= best) return;
    if (high - low >= fewSplits || !cut.first.single || !cut.second.single) {
      push(heap, { bound, cut, itemsIndex, count, level, low, high, before, open });
      return;
    }
    let least = best;
    let share = 0;
    for (let i = low; i <= high; i++) {
      const seconds = spatialSeconds(objective, a[i]!, b[restOf(cut, level, i)]!, count);
      if (seconds >= least) continue;
      least = seconds;
      share = i;
    }
    if (share > 0) push(heap, { bound: least, cut, itemsIndex, count, level, low: share, high: share, before, open });
  }

  /** The same for a pipeline with stages before the cut, or with a second part that may be cut further. */
  #pushStages(
    heap: Candidate[],
    cut: Cut,
    itemsIndex: number,
    count: number,
    level: number,
    best: number,
    before: readonly Stage[],
  ): void {
    const open = mayHaveMoreStages(this.#model, cut.second, count);
    const least = this.#rangeBound(cut, itemsIndex, count, before, open);
    this.candidates++;
    if (cut.free) {
      const whole = least(level, level);
      if (whole < best)
        push(heap, { bound: whole, cut, itemsIndex, count, level, low: level, high: level, before, open });
      return;
    }
    if (least(level - 1, level - 1) >= best) return;
    const low = firstLevel(1, level, (first) => least(first, level - 1) < best);
    const high = level - firstLevel(1, level, (second) => least(level - 1, second) < best);
    if (low > high) return;
    const bound = least(high, level - low);
    if (bound < best) push(heap, { bound, cut, itemsIndex, count, level, low, high, before, open });
  }

  #pushRange(heap: Candidate[], candidate: Candidate, low: number, high: number, best: number): void {
    const { cut, itemsIndex, count, level, before, open } = candidate;
    this.candidates++;
    if (before.length === 0 && !open) {
      this.#pushSplits(heap, cut, itemsIndex, count, level, low, high, best);
      return;
    }
    const bound = this.#rangeBound(cut, itemsIndex, count, before, open)(high, level - low);
    if (bound < best) push(heap, { bound, cut, itemsIndex, count, level, low, high, before, open });
  }

  /** With its first part fixed, the second is either one stage or is cut again. */
  #extend(heap: Candidate[], candidate: Candidate, best: number): void {
    const { cut, itemsIndex, count, level, low, before } = candidate;
    const rest = restOf(cut, level, low);
    const bound = this.#rangeBound(cut, itemsIndex, count, before, false)(low, rest);
    if (bound < best) push(heap, { ...candidate, bound, open: false });
    const stages = [...before, { set: cut.first, level: low }];
    for (const next of cut.second.cuts) {
      if (next.beside && (rest >= 2 || next.free)) this.#pushStages(heap, next, itemsIndex, count, rest, best, stages);
    }
  }

  /** Asks the parts of a single split until all are exact, it is no better than `best`, or it falls behind `next`. */
  #settle(candidate: Candidate, stages: readonly Stage[], best: number, next: number): number {
    const { cut, itemsIndex, count } = candidate;
    const { objective } = this.#model;
    const swap = swapAt(cut, candidate.level);
    for (;;) {
      let sum = 0;
      let max = Number.NEGATIVE_INFINITY;
      let ask: Stage | undefined;
      for (const stage of stages) {
        const row = this.#bounds.row(stage.set, itemsIndex);
        const seconds = row.lower[stage.level]!;
        sum += seconds;
        max = Math.max(max, seconds);
        // The smallest subgraph first: it costs least and may already rule the split out.
        if (row.exact[stage.level] === 0 && (ask === undefined || bitCount(stage.set.mask) < bitCount(ask.set.mask)))
          ask = stage;
      }
      const bound = totalSeconds(objective, sum, max, count, swap);
      if (ask === undefined || bound >= best || bound > next) return bound;
      sum = 0;
      max = Number.NEGATIVE_INFINITY;
      for (const stage of stages) {
        if (stage === ask) continue;
        const seconds = this.#bounds.row(stage.set, itemsIndex).lower[stage.level]!;
        sum += seconds;
        max = Math.max(max, seconds);
      }
      this.#solve(ask.set, ask.level, itemsIndex, largestUseful(objective, best, sum, max, count, swap), false);
      // Not exact means at least the limit, so the split cannot win, up to rounding.
      if (this.#bounds.row(ask.set, itemsIndex).exact[ask.level] === 0) return best;
    }
  }

  #key(set: PlanSet, level: number, itemsIndex: number): number {
    return (set.index * this.#model.items.length + itemsIndex) * (this.#model.levels + 1) + level;
  }

  #size(level: number, itemsIndex: number): { devices: number; items: number } {
    return { devices: level * this.#model.step, items: this.#model.items[itemsIndex]! };
  }

  /** The least seconds of a subgraph, where they are below `limit`; `schedule` then has what takes them. */
  secondsBelow(set: PlanSet, level: number, itemsIndex: number, limit: number): number | undefined {
    this.#solve(set, level, itemsIndex, limit, false);
    const { exact, lower } = this.#bounds.row(set, itemsIndex);
    return exact[level] === 1 && lower[level]! < limit ? lower[level]! : undefined;
  }

  schedule(set: PlanSet, level: number, itemsIndex: number): Schedule {
    if (set.single) return nodeSchedule(this.#model, set.leaf, level, itemsIndex);
    return this.#compose(this.#choices.get(this.#key(set, level, itemsIndex))!, set, level, itemsIndex);
  }

  #compose(choice: Choice, set: PlanSet, level: number, itemsIndex: number): Schedule {
    if ("asOne" in choice) return nodeSchedule(this.#model, set.leaf, level, itemsIndex);
    const size = this.#size(level, itemsIndex);
    const parts = stagesOf(choice).map((stage) => this.schedule(stage.set, stage.level, choice.itemsIndex));
    const [first, second] = [parts[0]!, parts[1]!];
    if (choice.count < 0) return { op: "temporal", ...size, first, second };
    if (choice.count === 0) return { op: "parallel", ...size, first, second };
    const chunk = this.#model.items[choice.itemsIndex]!;
    if (parts.length > 2) return { op: "pipeline", ...size, chunk, stages: parts };
    return { op: "pipeline", ...size, chunk, first, second };
  }

  /** A schedule that is at most `Row.upper`, found again by redoing the choice that set it. */
  scheduleAt(set: PlanSet, level: number, itemsIndex: number): Schedule {
    if (set.single) return nodeSchedule(this.#model, set.leaf, level, itemsIndex);
    const { levels } = this.#bounds.grid;
    if (this.#choices.has(this.#key(set, level, itemsIndex))) return this.schedule(set, level, itemsIndex);
    let best = Number.POSITIVE_INFINITY;
    let compose: (() => Schedule) | undefined;
    const offer = (time: number, make: () => Schedule): void => {
      if (time < best) [best, compose] = [time, make];
    };
    const size = this.#size(level, itemsIndex);
    if (leafOf(set, this.#operations) >= 0) {
      const seconds = this.#model.leafSeconds(set.leaf, itemsIndex)[level]!;
      offer(seconds, () => nodeSchedule(this.#model, set.leaf, level, itemsIndex));
    }
    for (const cut of set.cuts) {
      if (this.#operations.temporal && cut.turns) {
        const a = this.#bounds.upperAt(cut.turnFirst, itemsIndex, level);
        const b = this.#bounds.upperAt(cut.turnSecond, itemsIndex, level);
        offer(a + b + swapAt(cut, level), () => ({
          op: "temporal",
          ...size,
          first: this.scheduleAt(cut.turnFirst, level, itemsIndex),
          second: this.scheduleAt(cut.turnSecond, level, itemsIndex),
        }));
      }
      if (!this.#operations.spatial || !cut.beside) continue;
      const chunkings = this.#model.chunkings[itemsIndex]!;
      const parallel = this.#model.problem.parallelIndependent && cut.independent;
      for (const chunking of parallel ? [...chunkings, { ...chunkings[0]!, count: 0 }] : chunkings) {
        for (const share of cut.free ? [level] : levels) {
          if (share >= level && !cut.free) break;
          const rest = restOf(cut, level, share);
          const a = this.#bounds.upperAt(cut.first, chunking.itemsIndex, share);
          const b = this.#bounds.upperAt(cut.second, chunking.itemsIndex, rest);
          offer(spatialSeconds(this.#model.objective, a, b, chunking.count), () => {
            const first = this.scheduleAt(cut.first, share, chunking.itemsIndex);
            const second = this.scheduleAt(cut.second, rest, chunking.itemsIndex);
            if (chunking.count === 0) return { op: "parallel", ...size, first, second };
            return { op: "pipeline", ...size, chunk: chunking.items, first, second };
          });
        }
      }
    }
    // Only flat pipelines of several stages made this state's bound; nothing is lost but a better last answer.
    if (compose === undefined) throw new DeadlinePassed();
    return compose();
  }
}

function firstLevel(low: number, high: number, holds: (level: number) => boolean): number {
  let [from, to] = [low, high];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (holds(middle)) to = middle;
    else from = middle + 1;
  }
  return from;
}

/** F never grows with devices, so what is proven for a level holds for all below it. */
function raiseLower(row: Row, level: number, value: number): void {
  for (let i = level; i >= 1 && row.lower[i]! < value; i--) row.lower[i] = value;
}
