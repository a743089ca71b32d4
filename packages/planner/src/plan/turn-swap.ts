/**
 * What taking turns costs in swaps, pool by pool.
 *
 * `swap`, as in RLinf §3.4: the slowest offload of what ends the first part, then the slowest onload of what starts the
 * second. `lazy`, as the device lock does it (L4): nothing is swapped while all fit in memory together; otherwise small
 * components that fit beside any other stay loaded throughout, and a part whose components fit together is loaded one
 * component after the other, each at its turn, and freed at once. Where parts that each fit have components with tags, what costs least
 * leaves each for the other (MT2).
 */
import { chooseLeaving } from "@treadle/contracts";
import { type Limits, memorySlack, residentMemory, residualShare, usedDevices } from "./component-time.ts";
import { bitsOf, type Dag, swappedTogether, swapSeconds } from "./graph.ts";
import type { PlanNode, PlanProblem } from "./problem.ts";

export type TurnSwap = { readonly swap: number; readonly swapBack: number };

/**
 * Between two parts of one pool that do not fit in memory together. `devicesOf`: all that a component may have, for what
 * stays loaded is judged where memory is least short; so a turn on fewer devices never costs less.
 */
export function turnSwap(
  { problem, dag }: { readonly problem: PlanProblem; readonly dag: Dag },
  first: number,
  second: number,
  comesRound: boolean,
  devicesOf: (node: PlanNode) => number,
): TurnSwap {
  const both = first | second;
  if (problem.residency === "swap") {
    return { swap: swapSeconds(dag, first, second), swapBack: comesRound ? swapSeconds(dag, both, both) : 0 };
  }
  const memoryOf = (mask: number): number => {
    let memory = 0;
    for (const bit of bitsOf(mask)) {
      for (const node of dag.components[bit]!.members) {
        const used = usedDevices(node, devicesOf(node));
        memory += used === 0 ? Number.POSITIVE_INFINITY : residentMemory(node, used, problem.batch);
      }
    }
    return memory;
  };
  const { pool } = dag.components[[...bitsOf(both)][0]!]!.members[0]!;
  const limit = memoryOfPool(problem, pool) * (1 + memorySlack);
  const byTags = turnSwapByTags({ problem, dag, devicesOf, memoryOf, limit }, first, second, comesRound);
  if (byTags) return byTags;
  const stays = staying(dag, both, memoryOf, limit);
  const moving = (part: number): number => part & ~stays;
  const isTogether = (part: number): boolean => memoryOf(part | stays) <= limit;
  /** What stays loaded while such a part takes its turns, and so is swapped with the part as a whole. */
  const kept = (part: number): number => staying(dag, part, memoryOf, limit) & moving(part);
  const offloadOf = (mask: number): number =>
    Math.max(0, ...[...swappedTogether(dag, mask, "offload")].map(({ seconds }) => seconds));
  const onloadOf = (mask: number): number =>
    [...swappedTogether(dag, mask, "onload")].reduce((sum, { seconds }) => sum + seconds, 0);
  const out = (part: number): number => {
    if (isTogether(part)) return offloadOf(moving(part));
    return Math.max(swapSeconds(dag, moving(part), 0), offloadOf(kept(part)));
  };
  const into = (part: number): number => {
    if (isTogether(part)) return onloadOf(moving(part));
    return swapSeconds(dag, 0, moving(part)) + onloadOf(kept(part) & ~sourcesOf(dag, moving(part)));
  };
  // Of a first part within others, whoever takes it in counts what starts it; the rest is loaded at its turns.
  const later = comesRound || !isTogether(first) ? 0 : onloadOf(moving(first) & ~sourcesOf(dag, moving(first)));
  return { swap: out(first) + into(second) + later, swapBack: comesRound ? out(second) + into(first) : 0 };
}

type Sizes = {
  readonly problem: PlanProblem;
  readonly dag: Dag;
  readonly devicesOf: (node: PlanNode) => number;
  readonly memoryOf: (mask: number) => number;
  readonly limit: number;
};

/** Infinite where what stays of one part leaves the other no room; undefined where nothing has tags, or a part takes turns within itself. */
function turnSwapByTags(sizes: Sizes, first: number, second: number, comesRound: boolean): TurnSwap | undefined {
  const { dag, memoryOf, limit } = sizes;
  const both = first | second;
  if (![...bitsOf(both)].some((bit) => dag.components[bit]!.members.some(({ tags }) => tags))) return undefined;
  if (hasNoRoom(sizes, first, second) || hasNoRoom(sizes, second, first))
    return { swap: Number.POSITIVE_INFINITY, swapBack: 0 };
  if (memoryOf(first) > limit || memoryOf(second) > limit) return undefined;
  const [ofFirst, ofSecond] = [first, second].map((part) => leavingOf(sizes, part, memoryOf(both) - limit));
  if (!ofFirst || !ofSecond) return { swap: Number.POSITIVE_INFINITY, swapBack: 0 };
  const sources = sourcesOf(dag, first);
  const onloads = (parts: readonly NodePart[]): number => parts.reduce((sum, { onload }) => sum + onload, 0);
  const later = comesRound ? 0 : onloads(ofFirst.filter(({ bit }) => (sources & (1 << bit)) === 0));
  return {
    swap: slowestOffload(ofFirst) + onloads(ofSecond) + later,
    swapBack: comesRound ? slowestOffload(ofSecond) + onloads(ofFirst) : 0,
  };
}

/** Whether what stays of a component leaves one of the other part no room: of each two, since parts may have devices of their own within. */
function hasNoRoom({ dag, memoryOf, limit }: Sizes, part: number, other: number): boolean {
  const largest = Math.max(...[...bitsOf(part)].map((bit) => memoryOf(1 << bit)));
  const stays = [...bitsOf(other)].map((bit) => {
    const { members } = dag.components[bit]!;
    return members.length === 1 ? memoryOf(1 << bit) * residualShare(members[0]!) : 0;
  });
  return largest + Math.max(...stays) > limit;
}

type NodePart = {
  readonly bit: number;
  readonly node: PlanNode;
  readonly devices: readonly string[];
  readonly bytes: number;
  readonly seconds: number;
  readonly offload: number;
  readonly onload: number;
};

/** What of a part leaves so that so much more memory is free; undefined where it does not have as much to give. */
function leavingOf({ problem, dag, devicesOf }: Sizes, part: number, missing: number): readonly NodePart[] | undefined {
  const movables: NodePart[] = [];
  for (const bit of bitsOf(part)) {
    for (const node of dag.components[bit]!.members) {
      const memory = residentMemory(node, usedDevices(node, devicesOf(node)), problem.batch);
      for (const { share, offload, onload } of node.tags ?? [{ ...node, share: 1 }])
        movables.push({
          bit,
          node,
          devices: ["one"],
          bytes: share * memory,
          seconds: offload + onload,
          offload,
          onload,
        });
    }
  }
  const left = new Map([["one", missing]]);
  const chosen = [...chooseLeaving(left, movables, "seconds")];
  return left.get("one")! <= memorySlack * Math.abs(missing) ? chosen : undefined;
}

/** Components are freed at the same time, the tags of one after the other. */
function slowestOffload(parts: readonly NodePart[]): number {
  const seconds = new Map<PlanNode, number>();
  for (const { node, offload } of parts) seconds.set(node, (seconds.get(node) ?? 0) + offload);
  return Math.max(0, ...seconds.values());
}

/** Those of a part that need nothing of it. */
function sourcesOf(dag: Dag, part: number): number {
  return [...bitsOf(part)].reduce((all, bit) => ((dag.predecessors[bit]! & part) === 0 ? all | (1 << bit) : all), 0);
}

/** The smallest components, as many as fit beside the largest; of a split cycle all or none. */
function staying(dag: Dag, set: number, memoryOf: (mask: number) => number, limit: number): number {
  const bySize = [...bitsOf(set)]
    .map((bit) => ({ mask: 1 << bit, memory: memoryOf(1 << bit) }))
    .sort((a, b) => a.memory - b.memory);
  const largest = bySize.at(-1)!.memory;
  let [stays, memory] = [0, largest];
  for (const each of bySize.slice(0, -1)) {
    memory += each.memory;
    if (memory > limit) break;
    stays |= each.mask;
  }
  for (const { mask } of dag.cycles) if ((mask & set & ~stays) !== 0) stays &= ~mask;
  return stays;
}

/** Whether components fit in memory side by side, each with the whole batch on all the devices it can use of those it has. */
export function fitTogether(
  problem: PlanProblem,
  members: readonly PlanNode[],
  devicesOf: (node: PlanNode) => number,
): boolean {
  let memory = 0;
  for (const node of members) {
    const used = usedDevices(node, devicesOf(node));
    if (used === 0) return false;
    memory += residentMemory(node, used, problem.batch);
  }
  return memory <= memoryOfPool(problem, members[0]?.pool) * (1 + memorySlack);
}

/** Of what runs in a pool. */
export const limitsIn = (problem: PlanProblem, pool: string | undefined): Limits => ({
  batch: problem.batch,
  memoryPerDevice: memoryOfPool(problem, pool),
  cycleMemory: problem.cycleMemory,
});

export function memoryOfPool(problem: PlanProblem, pool: string | undefined): number {
  const { memoryPerDevice } = pool === undefined ? problem : problem.pools[pool]!;
  return memoryPerDevice ?? Number.POSITIVE_INFINITY;
}
