/**
 * Who gets how many devices of the pools beside the problem's own devices. Those are the ones that the search splits; the
 * devices of a pool are given out before, in every way there is, and each way is searched by itself.
 */
import { mostDevices, usedDevices } from "./component-time.ts";
import type { PlanNode, PlanProblem } from "./problem.ts";

export type Allocation = {
  /** by node id, of those in pools */
  readonly devices: ReadonlyMap<string, number>;
  /** pairs of ids, both ways, joined by a line break, that have devices in common and so take turns */
  readonly sharing: ReadonlySet<string>;
  /**
   * ids of nodes that have to use all that they are given, where no device of a pool stays idle. Nodes that do not share then
   * take no turns: they would with fewer devices than the same turns on all of them.
   */
  readonly full?: ReadonlySet<string>;
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
  for (const { ids, pool } of poolsWithNodes(problem)) {
    const ways = pool.shared ? [together(ids, pool.devices)] : waysToShare(ids, pool.devices);
    all = all.flatMap((before) => ways.map((way) => join(before, way)));
  }
  return all;
}

/** Those that may leave no device of a pool idle, once for each set of nodes whose full use is enough for that. */
export function fullAllocationsOf(problem: PlanProblem): Allocation[] {
  const nodes = new Map(problem.nodes.map((node) => [node.id, node]));
  let all: Allocation[] = [{ devices: new Map(), sharing: new Set(), full: new Set() }];
  for (const { ids, pool } of poolsWithNodes(problem)) {
    const atLimits = limitsOf(ids.map((id) => nodes.get(id)!));
    const ways = pool.shared ? [together(ids, pool.devices)] : waysToShare(ids, pool.devices, atLimits);
    const usable = (way: Allocation): string[] =>
      ids.filter((id) => usedDevices(nodes.get(id)!, way.devices.get(id)!) === way.devices.get(id));
    const full = ways.flatMap((way) => fullSets(way, usable(way), pool.devices).map((set) => ({ ...way, full: set })));
    all = all.flatMap((before) =>
      full.map((way) => ({ ...join(before, way), full: new Set([...before.full!, ...way.full]) })),
    );
  }
  return all;
}

function poolsWithNodes({ pools, nodes }: PlanProblem) {
  return Object.entries(pools).flatMap(([name, pool]) => {
    const ids = nodes.filter((node) => node.pool === name).map(({ id }) => id);
    return ids.length === 0 ? [] : [{ ids, pool }];
  });
}

/** Sets of `ids` of which no two share, and which have all `devices` together. */
function fullSets({ devices: own, sharing }: Allocation, ids: readonly string[], devices: number): Set<string>[] {
  const found: Set<string>[] = [];
  const extend = (chosen: readonly string[], from: number, left: number): void => {
    if (left === 0) found.push(new Set(chosen));
    for (let i = from; i < ids.length && left > 0; i++) {
      const [id, count] = [ids[i]!, own.get(ids[i]!)!];
      const isBeside = count <= left && chosen.every((other) => !sharing.has(pair(id, other)));
      if (isBeside) extend([...chosen, id], i + 1, left - count);
    }
  };
  extend([], 0, devices);
  return found;
}

/** Devices that some of the nodes can use together. Where limits are why devices stay idle, these are the splits that matter. */
function limitsOf(nodes: readonly PlanNode[]): ReadonlySet<number> {
  let sums = new Set([0]);
  for (const most of nodes.map(mostDevices)) {
    if (Number.isFinite(most)) sums = new Set([...sums, ...[...sums].map((sum) => sum + most)]);
  }
  return sums;
}

/** Whether members of a component may run as one: where none of a pool may be idle, only on the devices that all of them have. */
export function mayRunAsOne({ devices, sharing, full }: Allocation, members: readonly PlanNode[]): boolean {
  const [first, ...others] = members;
  return (
    full === undefined ||
    others.every(({ id }) => sharing.has(pair(first!.id, id)) && devices.get(id) === devices.get(first!.id))
  );
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
function waysToShare(ids: readonly string[], devices: number, more: ReadonlySet<number> = new Set()): Allocation[] {
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
    const within = (side: readonly string[], count: number) => waysToShare(side, count, more);
    for (const a of within(left, devices)) for (const b of within(right, devices)) keep(a, b, crossing);
    for (const share of splitsOf(devices, more)) {
      for (const a of within(left, share)) for (const b of within(right, devices - share)) keep(a, b, []);
    }
  }
  return [...found.values()];
}

/** `more`: shares that are tried as well, and what they leave. */
function splitsOf(devices: number, more: ReadonlySet<number>): number[] {
  if (devices <= mostSplits) return Array.from({ length: devices - 1 }, (_, i) => i + 1);
  const splits = new Set<number>();
  const ratio = devices ** (2 / mostSplits);
  for (let share = 1; share <= devices / 2; share = Math.max(share + 1, Math.round(share * ratio))) {
    splits.add(share).add(devices - share);
  }
  for (const share of more) if (share > 0 && share < devices) splits.add(share).add(devices - share);
  return [...splits.add(Math.floor(devices / 2))];
}
