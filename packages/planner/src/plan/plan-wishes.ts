/**
 * What users want of a schedule, by the cuts that it may have. A set of components says all that is needed: of components
 * to be kept together, one that is without the other has been told from it by a turn, and has to keep all of its devices.
 */

import { exactSeconds, leastSeconds, usedDevices } from "./component-time.ts";
import type { Component, Dag } from "./graph.ts";
import type { PlanNode, PlanProblem, Schedule } from "./problem.ts";
import { modeAmong } from "./schedule-mode.ts";
import { limitsIn } from "./turn-swap.ts";

export type CompiledWishes = {
  mayTakeTurns(first: number, second: number): boolean;
  mayOwnDevices(first: number, second: number): boolean;
  /** whether the members of a component that runs as one may do so */
  mayBeOne(component: Component): boolean;
};

/** Devices that a schedule may use. */
export const usableDevices = ({ devices, reserved }: Pick<PlanProblem, "devices" | "reserved">): number =>
  devices - reserved;

export function compileWishes({ nodes, together, apart }: PlanProblem, dag: Dag): CompiledWishes {
  const poolOf = new Map(nodes.map(({ id, pool }) => [id, pool]));
  /** Nodes of different pools have no device in common, whatever they do. */
  const byPool = (ids: readonly string[]): (readonly string[])[] =>
    [...new Set(ids.map((id) => poolOf.get(id)))].map((pool) => ids.filter((id) => poolOf.get(id) === pool));
  const maskOf = (ids: readonly string[]): number =>
    dag.components.reduce(
      (mask, { members }, i) => (members.some(({ id }) => ids.includes(id)) ? mask | (1 << i) : mask),
      0,
    );
  const parted = apart.flatMap(byPool).map(maskOf);
  const joined = together.map((ids) => {
    const pool = poolOf.get(ids[0]!);
    return { group: maskOf(ids), pool: maskOf(nodes.filter((node) => node.pool === pool).map(({ id }) => id)) };
  });
  const separates = (group: number, first: number, second: number): boolean =>
    (group & first) !== 0 && (group & second) !== 0;
  return {
    mayTakeTurns: (first, second) => !parted.some((group) => separates(group, first, second)),
    mayOwnDevices: (first, second) =>
      joined.every(({ group, pool }) => {
        const here = group & (first | second);
        if (here === 0) return true;
        // Those that are not here had their turn on all devices of this part; a part without any of the pool takes none.
        const others = (group & first) === 0 ? first : second;
        return !separates(group, first, second) && (here === group || (others & pool) === 0);
      }),
    mayBeOne: ({ members }) => apart.every((group) => members.filter(({ id }) => group.includes(id)).length < 2),
  };
}

/** What a schedule leaves idle, a sentence each; a node uses as many of its devices as take it least, the most of those. */
export function idleIn(problem: PlanProblem, schedule: Schedule): string[] {
  const used = new Map<string | undefined, number>();
  const visit = (part: Schedule): Map<string | undefined, number> => {
    if (part.op === "node") {
      const members = part.node.split("+").map((id) => problem.nodes.find((node) => node.id === id)!);
      const { pool } = members[0]!;
      return new Map([[pool, usedOf(problem, members, part)]]);
    }
    const parts = ("stages" in part ? part.stages : [part.first, part.second]).map(visit);
    const join = part.op === "temporal" ? Math.max : (a: number, b: number): number => a + b;
    const sum = new Map<string | undefined, number>();
    for (const each of parts) for (const [pool, count] of each) sum.set(pool, join(sum.get(pool) ?? 0, count));
    return sum;
  };
  for (const [pool, count] of visit(schedule)) used.set(pool, count);
  const pools: (readonly [string | undefined, number])[] = [
    [undefined, usableDevices(problem)],
    ...Object.entries(problem.pools).map(([name, { devices }]) => [name, devices] as const),
  ];
  return pools.flatMap(([pool, devices]) => {
    const count = used.get(pool) ?? 0;
    const where = pool === undefined ? "" : ` of pool '${pool}'`;
    const mode = modeAmong(problem, schedule);
    return used.has(pool) && count < devices
      ? [
          `the best ${mode} schedule leaves ${devices - count} of ${devices} devices${where} idle, and all are to be used`,
        ]
      : [];
  });
}

/** Of so many devices, those that a component uses. */
export function usedOf(
  problem: PlanProblem,
  members: readonly PlanNode[],
  { devices, items }: Pick<Schedule, "devices" | "items">,
): number {
  const limits = limitsIn(problem, members[0]!.pool);
  const least = leastSeconds(members, devices, items, limits);
  let most = 0;
  for (let count = devices; count >= 1 && most === 0; count--) {
    if (exactSeconds(members, count, items, limits) <= least * (1 + 1e-9))
      most = Math.max(...members.map((node) => usedDevices(node, count)));
  }
  return most;
}
