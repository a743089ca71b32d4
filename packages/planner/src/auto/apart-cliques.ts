/** Components that are all apart from each other, and the devices that they need at least. Pure. */
import type { PlanProblem } from "../plan/problem.ts";
import { joinedGroups } from "../wishes.ts";

export type ApartClique = { readonly ids: readonly string[]; readonly needed: number; readonly devices: number };

/** Steps of the search for the one that needs most; wishes of people are far below. */
const mostSteps = 20_000;

/**
 * Some that need more devices of their pool than there are, so that no schedule keeps them apart. Those to be kept together count
 * once, by the one that needs most. Of very many wishes not every clique is looked at.
 */
export function crowdedClique({
  nodes,
  pools,
  devices,
  reserved,
  together,
  apart,
}: PlanProblem): ApartClique | undefined {
  const groups = joinedGroups(together);
  const groupOf = (id: string): ReadonlySet<string> => groups.find((group) => group.has(id)) ?? new Set([id]);
  const isApart = (a: string, b: string): boolean => {
    const [ofA, ofB] = [groupOf(a), groupOf(b)];
    return apart.some((ids) => ids.some((id) => ofA.has(id)) && ids.some((id) => ofB.has(id)));
  };
  for (const pool of [undefined, ...Object.keys(pools)]) {
    const available = pool === undefined ? devices - reserved : pools[pool]!.devices;
    const isPinned = pool !== undefined && pools[pool]!.shared;
    const least = new Map(
      nodes
        .filter((node) => node.pool === pool)
        .map(({ id, minDevices, unit }) => [id, isPinned ? available : Math.ceil(minDevices / unit) * unit] as const),
    );
    const heads = [...least.keys()].filter((id) => [...groupOf(id)].find((each) => least.has(each)) === id);
    const needOf = (id: string): number => Math.max(...[...groupOf(id)].map((each) => least.get(each) ?? 0));
    let steps = 0;
    const crowded = (ids: readonly string[], needed: number, others: readonly string[]): ApartClique | undefined => {
      if (needed > available && ids.length > 1) return { ids, needed, devices: available };
      let rest = others.reduce((sum, id) => sum + needOf(id), 0);
      for (const [i, id] of others.entries()) {
        if (needed + rest <= available || ++steps > mostSteps) return undefined;
        rest -= needOf(id);
        const beside = others.slice(i + 1).filter((other) => isApart(id, other));
        const found = crowded([...ids, id], needed + needOf(id), beside);
        if (found) return found;
      }
      return undefined;
    };
    const found = crowded([], 0, heads);
    if (found) return found;
  }
  return undefined;
}
