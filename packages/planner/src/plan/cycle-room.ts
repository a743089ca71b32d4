/** Cycles whose members find no room: neither in memory together, nor on devices of their own. Pure. */
import { memorySlack, residentMemory, usedDevices } from "./component-time.ts";
import { collapseCycles, type Dag } from "./graph.ts";
import { usableDevices } from "./plan-wishes.ts";
import type { PlanNode, PlanProblem } from "./problem.ts";
import { memoryOfPool } from "./turn-swap.ts";

export type CrampedCycle = {
  readonly members: readonly string[];
  /** those that there are */
  readonly devices: number;
  /** what all members need of each of these at least, and what one has, in the unit of the problem */
  readonly neededMemory: number;
  readonly memory: number;
  /** that members need in sum; undefined where they are pinned to the same devices */
  readonly neededDevices: number | undefined;
};

/** Of cycles that may be split: members share devices, and are then all loaded, or each has its own. Either is proven to be impossible. */
export function crampedCycles(problem: PlanProblem, dag: Dag = collapseCycles(problem)): CrampedCycle[] {
  if (problem.cycleMemory === "by-turns") return [];
  const { granularities, batch } = problem;
  const items = granularities === "divisors" ? 1 : Math.min(batch, ...granularities);
  return dag.cycles.flatMap(({ component }) => {
    if (component === undefined) return [];
    const { members } = component;
    const { pool } = members[0]!;
    const devices = pool === undefined ? usableDevices(problem) : problem.pools[pool]!.devices;
    const memory = memoryOfPool(problem, pool);
    /** of one member on up to so many devices; never more on more of them */
    const memoryOn = (node: PlanNode, count: number): number => {
      const used = usedDevices(node, count);
      return used === 0 ? Number.POSITIVE_INFINITY : residentMemory(node, used, node.stream ? batch : items);
    };
    const isRoom = (needed: number): boolean => needed <= memory * (1 + memorySlack);
    const neededMemory = members.reduce((sum, node) => sum + memoryOn(node, devices), 0);
    if (isRoom(neededMemory)) return [];
    const fewest = members.map((node) =>
      Array.from({ length: devices }, (_, i) => i + 1).find((count) => isRoom(memoryOn(node, count))),
    );
    // One that cannot run alone is told by itself.
    if (fewest.includes(undefined)) return [];
    const sum = fewest.reduce<number>((total, count) => total + count!, 0);
    const isPinned = pool !== undefined && problem.pools[pool]!.shared;
    if (!isPinned && sum <= devices) return [];
    const neededDevices = isPinned ? undefined : sum;
    return [{ members: members.map(({ id }) => id), devices, neededMemory, memory, neededDevices }];
  });
}

/** In a sentence; `amount`: memory in words. */
export function describeCramped(
  { members, devices, neededMemory, memory, neededDevices }: CrampedCycle,
  amount: (memory: number) => string,
): string {
  const names = members.map((id) => `'${id}'`).join(" and ");
  const apart =
    neededDevices === undefined ? "" : `; on devices of their own they need ${neededDevices}, and there are ${devices}`;
  return `${names} answer each other, so they are loaded together where they share devices, and need ${amount(neededMemory)} on each of ${devices}, which have ${amount(memory)}: ${amount(neededMemory - memory)} too little${apart}; add devices, use larger ones or smaller models`;
}
