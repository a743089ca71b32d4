/** The rules written once more, plainly: every action enumerated, every state copied, nothing cut off. */
import type { MultiplexProblem } from "../src/index.ts";

export type Move = { readonly start: readonly (readonly [number, number])[]; readonly split: number };
type Decide = (world: World, worker: number) => Move;

export class World {
  readonly input: MultiplexProblem;
  now = 0;
  left: number[];
  readyAt: number[];
  option: number[];
  done: boolean[];
  ready: Set<number>;
  /** by worker; the last list is the CPU's */
  running: number[][];
  split: number[];
  due: Set<number>;

  constructor(input: MultiplexProblem) {
    this.input = input;
    this.left = input.substages.map(({ dur }) => dur);
    this.readyAt = input.substages.map(() => 0);
    this.option = input.substages.map(() => 0);
    this.done = input.substages.map(() => false);
    this.ready = new Set();
    this.running = Array.from({ length: input.workers + 1 }, () => []);
    this.split = Array.from({ length: input.workers }, () => 0);
    this.due = new Set();
    this.makeReady();
  }

  copy(): World {
    const copy = Object.assign(Object.create(World.prototype) as World, this);
    copy.left = [...this.left];
    copy.readyAt = [...this.readyAt];
    copy.option = [...this.option];
    copy.done = [...this.done];
    copy.ready = new Set(this.ready);
    copy.running = this.running.map((list) => [...list]);
    copy.split = [...this.split];
    copy.due = new Set(this.due);
    return copy;
  }

  options(i: number): readonly (readonly [number, number])[] {
    const { worker, mem, memOptions } = this.input.substages[i]!;
    return worker === null ? [[0, 1]] : (memOptions ?? [[mem ?? 0, 1]]);
  }

  leastFactor(i: number): number {
    return Math.min(...this.options(i).map(([, factor]) => factor));
  }

  readyOn(worker: number): number[] {
    return [...this.ready].filter((i) => this.input.substages[i]!.worker === worker).sort((a, b) => a - b);
  }

  makeReady(): void {
    for (const [i, { deps, worker }] of this.input.substages.entries()) {
      const started = this.ready.has(i) || this.done[i]! || this.running.some((list) => list.includes(i));
      const met = deps.every((id) => this.done[this.input.substages.findIndex((other) => other.id === id)]);
      if (started || !met) continue;
      this.readyAt[i] = this.now;
      if (worker === null) this.running.at(-1)!.push(i);
      else {
        this.ready.add(i);
        this.due.add(worker);
      }
    }
  }

  pace(worker: number, i: number): number {
    const { substages, pair, splits } = this.input;
    if (worker === this.input.workers) return 1;
    const factor = this.options(i)[this.option[i]!]![1];
    const list = this.running[worker]!;
    if (list.length === 1) return factor;
    const isFirst = list[0] === i;
    const other = list[isFirst ? 1 : 0]!;
    const k = isFirst ? this.split[worker]! : splits.length - 1 - this.split[worker]!;
    return factor * pair[substages[i]!.type]![substages[other]!.type]![k]!;
  }

  nextDue(): number {
    const due = [...this.due].filter((w) => this.running[w]!.length > 0 || this.readyOn(w).length > 0);
    return due.length === 0 ? -1 : Math.min(...due);
  }

  apply(worker: number, { start, split }: Move): void {
    for (const [i, option] of start) {
      this.ready.delete(i);
      this.option[i] = option;
      this.running[worker]!.push(i);
    }
    this.split[worker] = split;
    this.due.delete(worker);
  }

  advance(): boolean {
    const all = this.running.flatMap((list, worker) => list.map((i) => ({ worker, i, pace: this.pace(worker, i) })));
    if (all.length === 0) return false;
    const seconds = Math.min(...all.map(({ i, pace }) => this.left[i]! * pace));
    this.due.clear();
    this.now += seconds;
    for (const { i, pace } of all) this.left[i]! -= seconds / pace;
    for (const { worker, i } of all) {
      if (this.left[i]! > 1e-9 * Math.max(1, this.input.substages[i]!.dur)) continue;
      this.done[i] = true;
      this.running[worker] = this.running[worker]!.filter((other) => other !== i);
      if (worker < this.input.workers) this.due.add(worker);
    }
    this.makeReady();
    return true;
  }

  get isDone(): boolean {
    return this.done.every(Boolean);
  }

  chain(): number {
    const { substages } = this.input;
    const known = new Map<number, number>();
    const after = (i: number): number => {
      const chains = substages.flatMap(({ deps }, j) => (deps.includes(substages[i]!.id) ? [from(j)] : []));
      return Math.max(0, ...chains);
    };
    const from = (i: number): number => {
      if (!known.has(i)) known.set(i, (this.done[i] ? 0 : this.left[i]! * this.leastFactor(i)) + after(i));
      return known.get(i)!;
    };
    return Math.max(0, ...substages.map((_, i) => from(i)));
  }
}

export function moves(world: World, worker: number, idling = false): Move[] {
  const { splits, memory, substages } = world.input;
  const ks = splits.map((_, k) => k);
  const list = world.running[worker]!;
  if (list.length === 2) return ks.map((split) => ({ start: [], split }));
  const fits = (...shares: number[]): boolean => shares.reduce((a, b) => a + b, 0) <= memory * (1 + 1e-9);
  const ready = world.readyOn(worker);
  const others = (i: number): number[] => ready.filter((j) => substages[j]!.pipeline !== substages[i]!.pipeline);
  const found: Move[] = [];
  if (list.length === 1) {
    const share = world.options(list[0]!)[world.option[list[0]!]!]![0];
    for (const j of others(list[0]!)) {
      for (const [o, [mem]] of world.options(j).entries()) {
        if (fits(share, mem)) for (const split of ks) found.push({ start: [[j, o]], split });
      }
    }
    return [...found, { start: [], split: 0 }];
  }
  for (const i of ready) {
    for (const j of others(i).filter((other) => other > i)) {
      for (const [p, [memI]] of world.options(i).entries()) {
        for (const [q, [memJ]] of world.options(j).entries()) {
          if (!fits(memI, memJ)) continue;
          for (const split of ks) {
            found.push({
              start: [
                [i, p],
                [j, q],
              ],
              split,
            });
          }
        }
      }
    }
  }
  for (const i of ready) {
    for (const [o, [mem]] of world.options(i).entries()) if (fits(mem)) found.push({ start: [[i, o]], split: 0 });
  }
  return idling ? [...found, { start: [], split: 0 }] : found;
}

const wait: Move = { start: [], split: 0 };

export const temporal: Decide = (world, worker) => {
  if (world.running[worker]!.length > 0) return wait;
  const [i] = world.readyOn(worker).sort((a, b) => world.readyAt[a]! - world.readyAt[b]! || a - b) as [number];
  const fitting = world.options(i).flatMap(([mem, factor], o) => (mem <= world.input.memory ? [{ factor, o }] : []));
  return { start: [[i, fitting.sort((a, b) => a.factor - b.factor || a.o - b.o)[0]!.o]], split: 0 };
};

export const mux: Decide = (world, worker) => {
  const { rolloutTypes, splits, substages } = world.input;
  const found = moves(world, worker).find(({ start, split }) => {
    const result = [...world.running[worker]!, ...start.map(([i]) => i)];
    const areRollouts = result.every((i) => rolloutTypes.includes(substages[i]!.type));
    return result.length === 2 && areRollouts && split === Math.floor((splits.length - 1) / 2);
  });
  return found ?? temporal(world, worker);
};

export const greedy: Decide = (world, worker) => {
  const isPair = world.running[worker]!.length === 2;
  let best = isPair ? Number.POSITIVE_INFINITY : 1;
  let chosen: Move | undefined;
  for (const move of moves(world, worker)) {
    const next = world.copy();
    next.apply(worker, move);
    const list = next.running[worker]!;
    if (list.length < 2) continue;
    const [a, b] = list as [number, number];
    const solo = world.left[a]! * world.leastFactor(a) + world.left[b]! * world.leastFactor(b);
    const [paceA, paceB] = [next.pace(worker, a), next.pace(worker, b)];
    const both = Math.min(world.left[a]! * paceA, world.left[b]! * paceB);
    const alone = (i: number, pace: number): number =>
      (world.left[i]! - both / pace) * world.options(i)[next.option[i]!]![1];
    const ratio = (both + Math.max(alone(a, paceA), alone(b, paceB))) / solo;
    if (ratio >= best - 1e-12) continue;
    best = ratio;
    chosen = move;
  }
  return chosen ?? temporal(world, worker);
};

export function finish(world: World, decide: Decide): number {
  do {
    for (let worker = world.nextDue(); worker >= 0; worker = world.nextDue())
      world.apply(worker, decide(world, worker));
  } while (world.advance());
  if (!world.isDone) throw new Error("not everything has ended");
  return world.now;
}

function leastOf(world: World, worker: number, value: (next: World) => number): Move {
  let best = Number.POSITIVE_INFINITY;
  let chosen = wait;
  for (const move of moves(world, worker)) {
    const next = world.copy();
    next.apply(worker, move);
    const here = value(next);
    if (here >= best - 1e-9) continue;
    best = here;
    chosen = move;
  }
  return chosen;
}

export const playout: Decide = (world, worker) => leastOf(world, worker, (next) => finish(next, greedy));

export const lookahead =
  (window: number): Decide =>
  (world, worker) => {
    const toNext = (at: World): boolean => {
      for (;;) {
        for (let other = at.nextDue(); other >= 0; other = at.nextDue()) at.apply(other, greedy(at, other));
        if (!at.advance()) return false;
        if (at.due.has(worker) && (at.running[worker]!.length > 0 || at.readyOn(worker).length > 0)) return true;
      }
    };
    const value = (next: World, depth: number): number => {
      if (!toNext(next) || depth === 1) return next.now + next.chain();
      const after = moves(next, worker).map((move) => {
        const copy = next.copy();
        copy.apply(worker, move);
        return value(copy, depth - 1);
      });
      return Math.min(...after);
    };
    return leastOf(world, worker, (next) => value(next, window));
  };

/** The least makespan of every action at every decision point, idling included. */
export function bruteForce(input: MultiplexProblem): number {
  let best = Number.POSITIVE_INFINITY;
  const visit = (world: World): void => {
    let worker = world.nextDue();
    while (worker < 0) {
      if (!world.advance()) {
        if (world.isDone) best = Math.min(best, world.now);
        return;
      }
      worker = world.nextDue();
    }
    for (const move of moves(world, worker, true)) {
      const next = world.copy();
      next.apply(worker, move);
      visit(next);
    }
  };
  visit(new World(input));
  return best;
}
