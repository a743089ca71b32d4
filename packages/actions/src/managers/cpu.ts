import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { Grant, ResourceManager, ResourceRequest } from "./manager.ts";

export const CpuNode = z.strictObject({
  id: z.string().min(1),
  /** core numbers by NUMA node */
  numa: z
    .array(z.array(z.int().nonnegative()).min(1))
    .min(1)
    .refine((numa) => new Set(numa.flat()).size === numa.flat().length, { message: "a core is in one NUMA node" }),
  memoryBytes: z.number().positive(),
});

export const CpuCluster = z.strictObject({
  /** those that are there at first */
  nodes: z
    .array(CpuNode)
    .refine((nodes) => new Set(nodes.map((n) => n.id)).size === nodes.length, { message: "ids of nodes are distinct" }),
  /** memory that may be reserved, as a multiple of what exists: peaks rarely coincide */
  overcommit: z.number().min(1).default(1),
  /** reserved for a trajectory that states nothing */
  trajectoryMemoryBytes: z
    .number()
    .nonnegative()
    .default(256 * 2 ** 20),
});
export type CpuCluster = z.input<typeof CpuCluster>;

type Node = {
  readonly id: string;
  readonly pool: string;
  readonly numaOf: ReadonlyMap<number, number>;
  readonly free: Set<number>;
  readonly memoryBytes: number;
  reservedBytes: number;
  isAway: boolean;
};
type Trajectory = {
  node: Node | undefined;
  readonly bytes: number;
  /** the only node that it may go to, while that is there */
  readonly only: string | undefined;
};

/**
 * The CPU manager, allocate-on-execution (§5.2): cores belong to an action only while it runs, memory to a trajectory
 * from its first action to its end, and a trajectory stays on the node its first action went to.
 *
 * A node is chosen among those with enough cores free, and not promised to others, and enough memory to reserve: the one with the
 * least share of its memory reserved. Cores come from as few NUMA nodes as possible, from the fullest that suffices.
 *
 * CN1 a node that has left grants nothing, and is the home of no trajectory: what was there goes elsewhere. It may come back, so
 *    that what only it can serve waits.
 */
export class CpuManager implements ResourceManager {
  readonly resource: string;
  readonly grantsWholeUnits = true;
  readonly #nodes = new Map<string, Node>();
  readonly #overcommit: number;
  readonly #defaultBytes: number;
  readonly #trajectories = new Map<string, Trajectory>();
  readonly #held = new Map<string, { node: Node; cores: readonly number[] }>();

  constructor(cluster: CpuCluster, resource = "cpu") {
    const { nodes, overcommit, trajectoryMemoryBytes } = CpuCluster.parse(cluster);
    this.resource = resource;
    this.#overcommit = overcommit;
    this.#defaultBytes = trajectoryMemoryBytes;
    for (const node of nodes) this.join(node);
  }

  /** Of all nodes that there were: one that is away may come back. */
  get capacity(): number {
    return Math.max(0, ...this.#all.map((node) => node.numaOf.size));
  }

  get mostHeld(): number {
    return this.#all.reduce((sum, node) => sum + node.numaOf.size, 0);
  }

  /** A node that is new, or comes back as it is now; nothing is held there, and nothing reserved. */
  join(node: z.infer<typeof CpuNode>): void {
    this.leave(node.id);
    const { id, numa, memoryBytes } = CpuNode.parse(node);
    this.#nodes.set(id, {
      id,
      pool: `${this.resource}@${id}`,
      numaOf: new Map(numa.flatMap((cores, n) => cores.map((core) => [core, n] as const))),
      free: new Set(numa.flat()),
      memoryBytes,
      reservedBytes: 0,
      isAway: false,
    });
  }

  /** CN1 */
  leave(id: string): void {
    const node = this.#nodes.get(id);
    if (node === undefined) return;
    node.isAway = true;
    node.reservedBytes = 0;
    for (const home of this.#trajectories.values()) if (home.node === node) home.node = undefined;
  }

  /** By node: what it has, and what of it is taken. */
  load(): ReadonlyMap<string, { cores: number; held: number; memoryBytes: number; reservedBytes: number }> {
    const loads = this.#all.map((node) => {
      const { numaOf, free, memoryBytes, reservedBytes, isAway } = node;
      return [
        node.id,
        { cores: numaOf.size, held: isAway ? 0 : numaOf.size - free.size, memoryBytes, reservedBytes },
      ] as const;
    });
    return new Map(loads);
  }

  get #all(): Node[] {
    return [...this.#nodes.values()];
  }

  /** States what a trajectory will need; without it the default is reserved at its first action. */
  openTrajectory(trajectory: string, memoryBytes: number = this.#defaultBytes, only?: string): void {
    if (this.#trajectories.has(trajectory)) return;
    const most = Math.max(0, ...this.#all.map((node) => this.#reservable(node)));
    if (memoryBytes > most)
      throw new TreadleError(
        "action.impossible",
        `trajectory '${trajectory}' reserves ${memoryBytes} bytes of memory, a node has ${most}; ask for less, or raise overcommit`,
        { details: { trajectory, memoryBytes, most } },
      );
    this.#trajectories.set(trajectory, { node: undefined, bytes: memoryBytes, only });
  }

  whyNever({ trajectory, minimum, actionId }: ResourceRequest): string | undefined {
    const home = trajectory === undefined ? undefined : this.#trajectories.get(trajectory);
    if (home === undefined) return undefined;
    const possible = home.node ? [home.node] : this.#all.filter((node) => home.bytes <= this.#reservable(node));
    const most = Math.max(0, ...possible.map((node) => node.numaOf.size));
    if (minimum <= most) return undefined;
    const place = home.node
      ? `its trajectory is on node '${home.node.id}'`
      : `its trajectory needs ${home.bytes} bytes`;
    return `action '${actionId}' needs ${minimum} of '${this.resource}': ${place}, and there are ${most} at most; ask for less`;
  }

  reservedShare(trajectory: string): number {
    const home = this.#trajectories.get(trajectory);
    if (home === undefined) return 0;
    return home.bytes / this.#all.reduce((sum, node) => sum + this.#reservable(node), 0);
  }

  home(trajectory: string): string | undefined {
    return this.#trajectories.get(trajectory)?.node?.pool;
  }

  bind(
    { trajectory, minimum }: ResourceRequest,
    _nowMs = 0,
    promised?: ReadonlyMap<string, number>,
  ): string | undefined {
    if (trajectory === undefined)
      return (this.#emptiest(minimum, 0) ?? this.#emptiest(0, 0, { everCores: minimum }))?.pool;
    this.openTrajectory(trajectory);
    const home = this.#trajectories.get(trajectory)!;
    if (home.node === undefined) settle(home, this.#emptiest(minimum, home.bytes, { only: home.only, promised }));
    return home.node?.pool;
  }

  /** A node for what has to be somewhere at once, such as a file that is written before the first action. */
  place(trajectory: string): string | undefined {
    const home = this.#trajectories.get(trajectory);
    if (home !== undefined && home.node === undefined) settle(home, this.#emptiest(0, home.bytes, { only: home.only }));
    return home?.node?.id;
  }

  pools(): ReadonlyMap<string, { free: number }> {
    const present = this.#all.filter((node) => !node.isAway);
    return new Map(present.map((node) => [node.pool, { free: node.free.size }]));
  }

  acquire(pool: string, request: ResourceRequest, units: number): Grant | undefined {
    const node = this.#all.find((n) => n.pool === pool && !n.isAway);
    if (node === undefined || node.free.size < units) return undefined;
    const cores = pickCores(node, units);
    for (const core of cores) node.free.delete(core);
    this.#held.set(request.actionId, { node, cores });
    const numaNodes = [...new Set(cores.map((core) => node.numaOf.get(core)!))].sort((a, b) => a - b);
    return { resource: this.resource, pool, units, node: node.id, cores, numaNodes };
  }

  release(actionId: string): void {
    const held = this.#held.get(actionId);
    if (held === undefined) return;
    for (const core of held.cores) held.node.free.add(core);
    this.#held.delete(actionId);
  }

  endTrajectory(trajectory: string): void {
    const home = this.#trajectories.get(trajectory);
    if (home?.node !== undefined) home.node.reservedBytes -= home.bytes;
    this.#trajectories.delete(trajectory);
  }

  nextChangeMs(): undefined {
    return undefined;
  }

  /**
   * Who has to go when a node runs out of memory. `usedBytes` is measured, by trajectory. Those furthest above what
   * they reserved go first, until the rest fits into `budgetBytes`, by default the node's memory; nobody goes while it fits.
   */
  outOfMemory(nodeId: string, usedBytes: ReadonlyMap<string, number>, budgetBytes?: number): string[] {
    const node = this.#nodes.get(nodeId);
    if (node === undefined) return [];
    const here = [...usedBytes].filter(([t]) => this.#trajectories.get(t)?.node === node);
    let total = here.reduce((sum, [, bytes]) => sum + bytes, 0);
    const excess = ([t, bytes]: [string, number]): number => bytes - this.#trajectories.get(t)!.bytes;
    const victims: string[] = [];
    for (const entry of here.sort((a, b) => excess(b) - excess(a))) {
      if (total <= (budgetBytes ?? node.memoryBytes)) break;
      victims.push(entry[0]);
      total -= entry[1];
    }
    return victims;
  }

  /** The same figures by the id of the node on which each trajectory is; those that are on none are left out. */
  byNode(ofTrajectories: ReadonlyMap<string, number>): Map<string, Map<string, number>> {
    const nodes = new Map<string, Map<string, number>>();
    for (const [trajectory, figure] of ofTrajectories) {
      const id = this.#trajectories.get(trajectory)?.node?.id;
      if (id !== undefined) nodes.set(id, (nodes.get(id) ?? new Map()).set(trajectory, figure));
    }
    return nodes;
  }

  #reservable({ memoryBytes }: Node): number {
    return memoryBytes * this.#overcommit;
  }

  /**
   * Least share of memory reserved; ties by most free cores, then by order. `only`: no other while that one is there. Where there is
   * one node, nothing is to be spread, and all may wait for it.
   */
  #emptiest(cores: number, bytes: number, { everCores = 0, only, promised }: EmptiestOptions = {}): Node | undefined {
    let best: Node | undefined;
    const share = (n: Node): number => n.reservedBytes / n.memoryBytes;
    const present = this.#all.filter((node) => !node.isAway);
    const bound = present.some(({ id }) => id === only) ? only : undefined;
    for (const node of present) {
      if (bound !== undefined && node.id !== bound) continue;
      const others = present.length > 1 ? (promised?.get(node.pool) ?? 0) : 0;
      if (node.free.size - others < cores || node.numaOf.size < everCores) continue;
      if (node.reservedBytes + bytes > this.#reservable(node)) continue;
      if (
        best === undefined ||
        share(node) < share(best) ||
        (share(node) === share(best) && node.free.size > best.free.size)
      )
        best = node;
    }
    return best;
  }
}

type EmptiestOptions = {
  readonly everCores?: number | undefined;
  readonly only?: string | undefined;
  readonly promised?: ReadonlyMap<string, number> | undefined;
};

function settle(home: Trajectory, node: Node | undefined): void {
  home.node = node;
  if (node !== undefined) node.reservedBytes += home.bytes;
}

function pickCores(node: Node, count: number): number[] {
  const byNuma = new Map<number, number[]>();
  for (const core of node.free) {
    const numa = node.numaOf.get(core)!;
    const cores = byNuma.get(numa);
    if (cores === undefined) byNuma.set(numa, [core]);
    else cores.push(core);
  }
  for (const cores of byNuma.values()) cores.sort((a, b) => a - b);
  const groups = [...byNuma].sort((a, b) => a[1].length - b[1].length || a[0] - b[0]).map(([, cores]) => cores);
  const sufficient = groups.find((cores) => cores.length >= count);
  if (sufficient !== undefined) return sufficient.slice(0, count);
  // No single one suffices: whole NUMA nodes, largest first, leave the fewest of them involved.
  const picked: number[] = [];
  for (const cores of groups.reverse()) picked.push(...cores.slice(0, count - picked.length));
  return picked;
}
