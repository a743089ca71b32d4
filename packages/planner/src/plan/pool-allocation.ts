/**
 * Who gets how many devices of the pools beside the problem's own devices. Those are the ones that the search splits; the
 * devices of a pool are given out before, in every way there is, and each way is searched by itself.
 */
import type { PlanProblem } from "./problem.ts";

export type Allocation = {
  /** by node id, of those in pools */
  readonly devices: ReadonlyMap<string, number>;
  /** pairs of ids, both ways, joined by a line break, that have devices in common and so take turns */
  readonly sharing: ReadonlySet<string>;
};

/** Everyone all of its pool, and nobody in the way: what no allocation can beat. */
export function wholePools(problem: PlanProblem): Allocation {
  const devices = new Map<string, number>();
  for (const { id, pool } of problem.nodes) if (pool !== undefined) devices.set(id, problem.pools[pool]!.devices);
  return { devices, sharing: new Set() };
}

/** Splits of a pool larger than this are tried on about as many points, closer together where parts are small. */
const mostSplits = 24;

/** Every allocation; of large pools not every split. */
export function allocationsOf(problem: PlanProblem): Allocation[] {
  let all: Allocation[] = [{ devices: new Map(), sharing: new Set() }];
  for (const [name, pool] of Object.entries(problem.pools)) {
    const ids = problem.nodes.filter((node) => node.pool === name).map(({ id }) => id);
    if (ids.length === 0) continue;
    const ways = pool.shared ? [together(ids, pool.devices)] : waysToShare(ids, pool.devices);
    all = all.flatMap((before) => ways.map((way) => join(before, way)));
  }
  return all;
}

/** Whether `allocationsOf` has every split there is. */
export function hasEverySplit(problem: PlanProblem): boolean {
  return Object.entries(problem.pools).every(
    ([name, pool]) =>
      pool.shared || pool.devices <= mostSplits || problem.nodes.filter((node) => node.pool === name).length < 2,
  );
}

const pair = (a: string, b: string): string => `${a}\n${b}`;

function together(ids: readonly string[], devices: number): Allocation {
  const sharing = ids.flatMap((a) => ids.filter((b) => b !== a).map((b) => pair(a, b)));
  return { devices: new Map(ids.map((id) => [id, devices])), sharing: new Set(sharing) };
}

function join(a: Allocation, b: Allocation): Allocation {
  return { devices: new Map([...a.devices, ...b.devices]), sharing: new Set([...a.sharing, ...b.sharing]) };
}

/** In two groups, which take turns or own devices, and so on within the groups. */
function waysToShare(ids: readonly string[], devices: number): Allocation[] {
  if (ids.length === 1) return [{ devices: new Map([[ids[0]!, devices]]), sharing: new Set() }];
  const found = new Map<string, Allocation>();
  const [head, ...rest] = ids;
  // The first id stays on the left, so that no division is seen twice.
  for (let mask = 0; mask < 2 ** rest.length - 1; mask++) {
    const left = [head!, ...rest.filter((_, i) => (mask >> i) & 1)];
    const right = rest.filter((_, i) => !((mask >> i) & 1));
    const crossing = left.flatMap((a) => right.flatMap((b) => [pair(a, b), pair(b, a)]));
    const keep = (a: Allocation, b: Allocation, sharing: readonly string[]): void => {
      const way = join(join(a, b), { devices: new Map(), sharing: new Set(sharing) });
      const counts = ids.map((id) => way.devices.get(id));
      found.set(`${counts.join(" ")}|${[...way.sharing].sort().join("|")}`, way);
    };
    for (const a of waysToShare(left, devices)) {
      for (const b of waysToShare(right, devices)) keep(a, b, crossing);
    }
    for (const share of splitsOf(devices)) {
      for (const a of waysToShare(left, share)) for (const b of waysToShare(right, devices - share)) keep(a, b, []);
    }
  }
  return [...found.values()];
}

function splitsOf(devices: number): number[] {
  if (devices <= mostSplits) return Array.from({ length: devices - 1 }, (_, i) => i + 1);
  const splits = new Set<number>();
  const ratio = devices ** (2 / mostSplits);
  for (let share = 1; share <= devices / 2; share = Math.max(share + 1, Math.round(share * ratio))) {
    splits.add(share).add(devices - share);
  }
  return [...splits.add(Math.floor(devices / 2))];
}
