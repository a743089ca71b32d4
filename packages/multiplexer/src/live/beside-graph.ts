/**
 * A live decision as a problem of sub-stages: what computes now with what is left of it, what waits, and what each run is likely
 * to do then. The waiter begins now, beside those that have its devices, or when they have ended; both are followed.
 */
import type { SharingVerdict, Work } from "@treadle/contracts";
import { nothing, startOf } from "../action.ts";
import type { Effort } from "../effort.ts";
import { compile, type SubStageGraph } from "../graph.ts";
import { MultiplexState } from "../multiplex-state.ts";
import { greedyMakespan } from "../playout.ts";
import { greedy } from "../policies.ts";
import type { SubStage } from "../substage.ts";
import type { Stage } from "./run-trace.ts";

/** A work on devices, with what is left of it alone on each. */
export type Piece = {
  readonly run: string;
  readonly work: Work;
  readonly leftMs: ReadonlyMap<string, number>;
  readonly next: readonly Stage[];
};

export type BesideProblem = {
  readonly waiter: Piece;
  /** of `running`, those that have some of the waiter's devices */
  readonly holders: readonly Piece[];
  readonly running: readonly Piece[];
  readonly waiting: readonly Piece[];
  /** times as long; of those that are not known, so much that nobody would pair them */
  readonly slowdown: (work: Work, beside: Work) => number;
};

/** Of methods, those that decide one question at a time. */
export const liveMethods = ["greedy", "lookahead", "playout", "temporal"] as const;
export type LiveMethod = (typeof liveMethods)[number];

/** Makespans that differ by less than this part are equal: then what is gained here and now decides. */
const sameWithin = 1e-3;

/** Whether the waiter gains by beginning beside the holders. Past its effort, by what is gained here and now. */
export function gainsBeside(
  problem: BesideProblem,
  method: LiveMethod,
  window: number,
  effort: Effort,
): SharingVerdict {
  if (method === "temporal") return { shares: false, why: "by 'temporal', none computes beside another" };
  const part = pairedPart(problem);
  const now: SharingVerdict = {
    shares: part < 1,
    why: `what is left takes ${Math.round(100 * part)} % as long together as one after the other`,
  };
  if (method === "greedy") return now;
  const ends = [true, false].map((joins) => {
    const { graph, starts } = besideGraph(problem, joins);
    const state = begun(graph, starts);
    if (method === "playout") return greedyMakespan(state, Number.POSITIVE_INFINITY, effort);
    return promise(state, window, effort);
  }) as [number, number];
  if (effort.isSpent || !ends.every(Number.isFinite)) return now;
  const [joining, waiting] = ends;
  if (Math.abs(joining - waiting) <= sameWithin * waiting) return now;
  const [ifJoins, ifWaits] = ends.map((ms) => `${(ms / 1000).toFixed(2)} s`);
  return {
    shares: joining < waiting,
    why: `by '${method}', all end in ${ifJoins} if it begins, in ${ifWaits} if it waits`,
  };
}

/** Of the time that the waiter and the holders take one after the other, the part that they take from now on together. */
function pairedPart({ waiter, holders, slowdown }: BesideProblem): number {
  let [paired, solo] = [0, 0];
  for (const [device, leftMs] of waiter.leftMs) {
    const holder = holders.find((each) => each.leftMs.has(device));
    if (holder === undefined) continue;
    const besideMs = holder.leftMs.get(device) as number;
    const [a, b] = [slowdown(waiter.work, holder.work), slowdown(holder.work, waiter.work)];
    const [endsA, endsB] = [leftMs * a, besideMs * b];
    paired += endsA <= endsB ? endsA + (besideMs - endsA / b) : endsB + (leftMs - endsB / a);
    solo += leftMs + besideMs;
  }
  return solo === 0 ? 1 : paired / solo;
}

/** What begins now on each worker: one sub-stage, or two. */
type Starts = readonly (readonly number[])[];

/** `joins`: the waiter begins now; else once all holders have ended. */
function besideGraph(
  problem: BesideProblem,
  joins: boolean,
): { readonly graph: SubStageGraph; readonly starts: Starts } {
  const { waiter, holders, running, waiting, slowdown } = problem;
  const all = [...running, waiter, ...waiting];
  const devices = [...new Set(all.flatMap(({ leftMs, next }) => [...leftMs.keys(), ...next.flatMap(devicesOf)]))];
  const workerOf = new Map(devices.map((device, i) => [device, i]));
  const substages: SubStage[] = [];
  const starts: number[][] = devices.map(() => []);
  const firstOf = new Map<Piece, string[]>();
  const ended = (piece: Piece): string[] => firstOf.get(piece) ?? [];
  const add = (run: string, work: string, worker: number | null, ms: number, deps: readonly string[]): string => {
    const id = `${substages.length}`;
    substages.push({ ...{ id, pipeline: run, worker, type: work }, dur: Math.max(ms, 1e-3), deps: [...deps] });
    return id;
  };
  for (const piece of all) {
    const begins = running.includes(piece) || (joins && piece === waiter);
    const deps = piece === waiter && !joins ? holders.flatMap(ended) : [];
    let last = [...piece.leftMs].map(([device, ms]) => {
      const worker = workerOf.get(device) as number;
      const id = add(piece.run, piece.work, worker, ms, deps);
      if (begins) starts[worker]?.push(Number(id));
      return id;
    });
    firstOf.set(piece, last);
    for (const { work, gapMs, aloneMs } of piece.next) {
      if (gapMs > 0) last = [add(piece.run, "gap", null, gapMs, last)];
      last = [...aloneMs].map(([device, ms]) => add(piece.run, work, workerOf.get(device) as number, ms, last));
    }
  }
  const works = [...new Set(substages.map(({ type }) => type))];
  const pair = Object.fromEntries(works.map((a) => [a, Object.fromEntries(works.map((b) => [b, [slowdown(a, b)]]))]));
  const limits = { memory: 1, splits: [0.5], rolloutTypes: [], window: 1, limit: 1 };
  return { graph: compile({ workers: devices.length, ...limits, pair, substages }), starts };
}

const devicesOf = ({ aloneMs }: Stage): string[] => [...aloneMs.keys()];

/** As it is now: what computes has begun; of what waits, whatever finds its devices free begins as `greedy` has it. */
function begun(graph: SubStageGraph, starts: Starts): MultiplexState {
  const state = MultiplexState.initial(graph);
  for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
    const [first, second] = starts[worker] ?? [];
    if (first === undefined) state.apply(worker, greedy(state, worker));
    else state.apply(worker, { ...startOf(first, 0), ...(second === undefined ? {} : { beside: second }) });
  }
  return state;
}

/** The end of the longest chain after so many decisions (JigsawRL §4.4). */
function promise(state: MultiplexState, window: number, effort: Effort): number {
  let decisions = 0;
  do {
    for (let worker = state.nextDue(); worker >= 0; worker = state.nextDue()) {
      const action = greedy(state, worker);
      state.apply(worker, action);
      if (action !== nothing) decisions++;
    }
  } while (decisions < window && !effort.take(1) && state.advance());
  return state.now + state.longestChain();
}
