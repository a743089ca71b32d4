/**
 * The best schedule that leaves no device idle (`useAll`), exactly. Such a schedule is built of parts that use all that they
 * are given: of two that take turns, one of them; of two that own devices, both. So a state is asked once as ever and once
 * for full use. The first is the search's, and bounds the second from below, which rules most of its splits out.
 *
 * Full use knows of the problem's own devices alone. Of those of pools, the allocation says who has to use all of its own
 * (`fullAllocationsOf`).
 */
import { Bounds, DeadlinePassed } from "./bounds.ts";
import { type FastResult, limitsAbove, nothingFound } from "./fast.ts";
import { FullLeaves } from "./full-leaves.ts";
import { type Cut, leafOf, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import type { Schedule } from "./problem.ts";
import { Search } from "./search.ts";

type Choice = { readonly seconds: number; readonly schedule: () => Schedule };
type Stages = { readonly sum: number; readonly max: number; readonly parts: readonly (() => Schedule)[] };
/** `lower`: proven for full use */
type Known = { lower: number; choice: Choice | undefined };

/** Splits that may be looked at, about a second's; then nothing more is proven. */
const mostSplits = 30_000_000;

/** Nothing slower than a few times `least` is looked for first. */
export function solveFullUse(
  model: PlanModel,
  operations: Operations,
  least: number,
  checkDeadline: () => void,
): FastResult {
  for (const limit of limitsAbove(least)) {
    const search = new FullUse(model, operations, limit, checkDeadline);
    const found = search.run();
    if (found.schedule !== null || found.bound < limit || limit === Number.POSITIVE_INFINITY) return found;
  }
  return nothingFound;
}

class FullUse {
  readonly #model: PlanModel;
  readonly #operations: Operations;
  readonly #limit: number;
  readonly #bounds: Bounds;
  readonly #search: Search;
  readonly #leaves: FullLeaves;
  readonly #checkDeadline: () => void;
  readonly #known = new Map<number, Known>();
  #splits = 0;

  constructor(model: PlanModel, operations: Operations, limit: number, checkDeadline: () => void) {
    this.#model = model;
    this.#operations = operations;
    this.#limit = limit;
    this.#checkDeadline = checkDeadline;
    const grid = model.grid(operations.spatial ? { dense: 64, ratio: 1.05 } : undefined);
    this.#bounds = new Bounds(model, operations, grid, checkDeadline, { limit });
    this.#search = new Search(model, this.#bounds, operations, checkDeadline);
    this.#leaves = new FullLeaves(model);
  }

  run(): FastResult {
    const { all, levels } = this.#model;
    const count = (): Pick<FastResult, "states" | "candidates"> => ({
      states: this.#known.size + this.#search.states,
      candidates: this.#splits + this.#search.candidates,
    });
    try {
      const found = this.#part(all, levels, 0, this.#limit * (1 + 1e-9));
      if (found === undefined) return { ...nothingFound, bound: this.#limit, ...count() };
      return { time: found.seconds, schedule: found.schedule(), bound: found.seconds, ...count() };
    } catch (error) {
      if (!(error instanceof DeadlinePassed)) throw error;
      const best = this.#known.get(this.#key(all, levels, 0))?.choice;
      // Bounds that are not made yet would meet the deadline again; without a schedule, whoever asked has a last resort.
      if (best === undefined) throw error;
      const bound = this.#lower();
      return { time: best.seconds, schedule: best.schedule(), bound: Math.min(bound, best.seconds), ...count() };
    }
  }

  /** Seconds that nothing is below; 0 where a deadline comes before the bounds do. */
  #lower(): number {
    try {
      return this.#bounds.lowerAt(this.#model.all, 0, this.#model.levels);
    } catch (error) {
      if (!(error instanceof DeadlinePassed)) throw error;
      return 0;
    }
  }

  #key(set: PlanSet, level: number, itemsIndex: number): number {
    return (set.index * this.#model.items.length + itemsIndex) * (this.#model.levels + 1) + level;
  }

  /** As ever, where that is below `limit`. */
  #any(set: PlanSet, level: number, itemsIndex: number, limit: number): Choice | undefined {
    const seconds = this.#search.secondsBelow(set, level, itemsIndex, limit);
    if (seconds === undefined) return undefined;
    return { seconds, schedule: () => this.#search.schedule(set, level, itemsIndex) };
  }

  /** The best of full use, where that is below `limit`. */
  #full(set: PlanSet, level: number, itemsIndex: number, limit: number): Choice | undefined {
    const key = this.#key(set, level, itemsIndex);
    const known = this.#known.get(key);
    if (known?.choice) return known.choice.seconds < limit ? known.choice : undefined;
    if ((known?.lower ?? this.#bounds.lowerAt(set, itemsIndex, level)) >= limit) return undefined;
    if (!this.#usesDevices(set)) return undefined;
    let best: Choice | undefined;
    const below = (): number => best?.seconds ?? limit;
    const offer = (seconds: number, schedule: () => Schedule): void => {
      if (seconds >= below()) return;
      best = { seconds, schedule };
      // What is found of the whole counts where the search ends early.
      if (set === this.#model.all && itemsIndex === 0) this.#incumbent(key, best);
    };
    const size = { devices: level * this.#model.step, items: this.#model.items[itemsIndex]! };
    const leaf = leafOf(set, this.#operations);
    if (leaf >= 0 && this.#leaves.has(leaf, level, itemsIndex))
      offer(this.#model.leafSeconds(leaf, itemsIndex)[level]!, () =>
        nodeSchedule(this.#model, leaf, level, itemsIndex),
      );
    if (!set.single) {
      for (const cut of set.cuts) {
        if (this.#operations.temporal && cut.turns) this.#turns(cut, level, itemsIndex, size, below, offer);
        if (!this.#operations.spatial || !cut.beside) continue;
        for (const { itemsIndex: chunkIndex, items: chunk, count } of this.#model.chunkings[itemsIndex]!)
          this.#beside(cut, level, chunkIndex, count, { ...size, chunk }, below, offer);
        if (this.#model.problem.parallelIndependent && cut.independent)
          this.#beside(cut, level, itemsIndex, 0, { ...size, chunk: 0 }, below, offer);
      }
    }
    this.#known.set(key, best ? { lower: best.seconds, choice: best } : { lower: limit, choice: undefined });
    return best;
  }

  #incumbent(key: number, choice: Choice): void {
    this.#known.set(key, { lower: 0, choice });
  }

  #turns(
    cut: Cut,
    level: number,
    itemsIndex: number,
    size: { devices: number; items: number },
    below: () => number,
    offer: (seconds: number, schedule: () => Schedule) => void,
  ): void {
    const { turnFirst, turnSecond } = cut;
    const swap = swapAt(cut, level);
    const least = (set: PlanSet): number => this.#bounds.lowerAt(set, itemsIndex, level);
    for (const isFirst of [true, false]) {
      const [full, other] = isFirst ? [turnFirst, turnSecond] : [turnSecond, turnFirst];
      if (least(full) + least(other) + swap >= below()) return;
      const one = this.#full(full, level, itemsIndex, below() - least(other) - swap);
      if (one === undefined) continue;
      const two = this.#any(other, level, itemsIndex, below() - one.seconds - swap);
      if (two === undefined) continue;
      const [first, second] = isFirst ? [one, two] : [two, one];
      offer(first.seconds + second.seconds + swap, () => ({
        op: "temporal",
        ...size,
        first: first.schedule(),
        second: second.schedule(),
      }));
    }
  }

  #beside(
    cut: Cut,
    level: number,
    chunkIndex: number,
    count: number,
    { chunk, ...size }: { devices: number; items: number; chunk: number },
    below: () => number,
    offer: (seconds: number, schedule: () => Schedule) => void,
  ): void {
    const { objective } = this.#model;
    const compose = (first: () => Schedule, second: () => Schedule) => (): Schedule =>
      count === 0
        ? { op: "parallel", ...size, first: first(), second: second() }
        : { op: "pipeline", ...size, chunk, first: first(), second: second() };
    const [a, b] = [cut.first, cut.second];
    const leastOf = (set: PlanSet, at: number): number => this.#bounds.lowerAt(set, chunkIndex, at);
    const isFlat = this.#model.kway && count > 1 && !b.single;
    for (const [left, right] of this.#shares(cut, level)) {
      this.#spend();
      if (!isFlat && spatialSeconds(objective, leastOf(a, left), leastOf(b, right), count) >= below()) continue;
      const first = this.#part(a, left, chunkIndex, below());
      if (first === undefined) continue;
      const second = this.#part(b, right, chunkIndex, below());
      if (second)
        offer(
          spatialSeconds(objective, first.seconds, second.seconds, count),
          compose(first.schedule, second.schedule),
        );
      if (!isFlat) continue;
      const before: Stages = { sum: first.seconds, max: first.seconds, parts: [first.schedule] };
      for (const { sum, max, parts } of this.#flat(before, b, right, chunkIndex, count, below)) {
        if (parts.length > 2)
          offer(sum + (count - 1) * max, () => ({
            op: "pipeline",
            ...size,
            chunk,
            stages: parts.map((part) => part()),
          }));
      }
    }
  }

  /** Rows of stages, each of full use, that may take less than `below` together. */
  *#flat(
    before: Stages,
    rest: PlanSet,
    level: number,
    chunkIndex: number,
    count: number,
    below: () => number,
  ): Generator<Stages> {
    if (before.sum + (count - 1) * before.max >= below()) return;
    const add = (part: Choice): Stages => ({
      sum: before.sum + part.seconds,
      max: Math.max(before.max, part.seconds),
      parts: [...before.parts, part.schedule],
    });
    const last = this.#part(rest, level, chunkIndex, below());
    if (last) yield add(last);
    for (const cut of rest.cuts) {
      if (!cut.beside) continue;
      for (const [left, right] of this.#shares(cut, level)) {
        this.#spend();
        const part = this.#part(cut.first, left, chunkIndex, below());
        if (part) yield* this.#flat(add(part), cut.second, right, chunkIndex, count, below);
      }
    }
  }

  /** What owns devices uses all of them; what has none but its pool's has none to use. */
  #part(set: PlanSet, level: number, itemsIndex: number, limit: number): Choice | undefined {
    return this.#usesDevices(set)
      ? this.#full(set, level, itemsIndex, limit)
      : this.#any(set, level, itemsIndex, limit);
  }

  #usesDevices({ mask }: PlanSet): boolean {
    return (mask & ~this.#model.freeMask) !== 0;
  }

  *#shares(cut: Cut, level: number): Generator<readonly [number, number]> {
    if (cut.free) yield [level, level];
    else for (let share = 1; share < level; share++) yield [share, level - share];
  }

  #spend(): void {
    this.#splits++;
    if ((this.#splits & 1023) === 0) this.#checkDeadline();
    if (this.#splits > mostSplits) throw new DeadlinePassed();
  }
}
