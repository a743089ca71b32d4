import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { Grant, ResourceManager, ResourceRequest } from "./manager.ts";

export const CpuNode = z.strictObject({
  id: z.string().min(1),
  /** core numbers by NUMA node */
  numa: z.array(z.array(z.int().nonnegative()).min(1)).min(1),
  memoryBytes: z.number().positive(),
});

export const CpuCluster = z.strictObject({
  nodes: z
    .array(CpuNode)
    .min(1)
    .refine((nodes) => new Set(nodes.map((n) => n.id)).size === nodes.length, { message: "ids of nodes are distinct" })
    .refine((nodes) => nodes.every((n) => new Set(n.numa.flat()).size === n.numa.flat().length), {
      message: "a core is in one NUMA node",
    }),
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
  readonly numaOf: ReadonlyMap<number, number>;
  readonly free: Set<number>;
  readonly memoryBytes: number;
  reservedBytes: number;
};

/**
 * The CPU manager, allocate-on-execution (§5.2): cores belong to an action only while it runs, memory to a trajectory
 * from its first action to its end, and a trajectory stays on the node its first action went to.
 *
 * A node is chosen among those with enough cores free and enough memory to reserve: the one with the least share of its
 * memory reserved. Cores come from as few NUMA nodes as possible, from the fullest that suffices.
 */
export class CpuManager implements ResourceManager {
  readonly resource: string;
  readonly capacity: number;
  readonly grantsWholeUnits = true;
  readonly #nodes: readonly Node[];
  readonly #overcommit: number;
  readonly #defaultBytes: number;
  readonly #trajectories = new Map<string, { node: Node | undefined; bytes: number }>();
  readonly #held = new Map<string, { node: Node; cores: readonly number[] }>();

  constructor(cluster: CpuCluster, resource = "cpu") {
    const { nodes, overcommit, trajectoryMemoryBytes } = CpuCluster.parse(cluster);
    this.resource = resource;
    this.#overcommit = overcommit;
    this.#defaultBytes = trajectoryMemoryBytes;
    this.#nodes = nodes.map(({ id, numa, memoryBytes }) => ({
      id,
      numaOf: new Map(numa.flatMap((cores, n) => cores.map((core) => [core, n] as const))),
      free: new Set(numa.flat()),
      memoryBytes,
      reservedBytes: 0,
    }));
    this.capacity = Math.max(...this.#nodes.map((n) => n.numaOf.size));
  }

  /** States what a trajectory will need; without it the default is reserved at its first action. */
  openTrajectory(trajectory: string, memoryBytes: number = this.#defaultBytes): void {
    if (this.#trajectories.has(trajectory)) return;
    const most = Math.max(...this.#nodes.map((node) => this.#reservable(node)));
    if (memoryBytes > most)
      throw new TreadleError(
        "action.impossible",
        `trajectory '${trajectory}' reserves ${memoryBytes} bytes of memory, a node has ${most}; ask for less, or raise overcommit`,
        { details: { trajectory, memoryBytes, most } },
      );
    this.#trajectories.set(trajectory, { node: undefined, bytes: memoryBytes });
  }

  whyNever({ trajectory, minimum, actionId }: ResourceRequest): string | undefined {
    const home = trajectory === undefined ? undefined : this.#trajectories.get(trajectory);
    if (home === undefined) return undefined;
    const possible = home.node ? [home.node] : this.#nodes.filter((node) => home.bytes <= this.#reservable(node));
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
    return home.bytes / this.#nodes.reduce((sum, node) => sum + this.#reservable(node), 0);
  }

  home(trajectory: string): string | undefined {
    return this.#poolOf(this.#trajectories.get(trajectory)?.node);
  }

  bind({ trajectory, minimum }: ResourceRequest): string | undefined {
    if (trajectory === undefined) return this.#poolOf(this.#emptiest(minimum, 0) ?? this.#emptiest(0, 0, minimum));
    this.openTrajectory(trajectory);
    const home = this.#trajectories.get(trajectory)!;
    if (home.node === undefined) {
      home.node = this.#emptiest(minimum, home.bytes);
      if (home.node !== undefined) home.node.reservedBytes += home.bytes;
    }
    return this.#poolOf(home.node);
  }

  pools(): ReadonlyMap<string, { free: number }> {
    return new Map(this.#nodes.map((node) => [this.#poolOf(node)!, { free: node.free.size }]));
  }

  acquire(pool: string, request: ResourceRequest, units: number): Grant | undefined {
    const node = this.#nodes.find((n) => this.#poolOf(n) === pool);
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
    const node = this.#nodes.find((n) => n.id === nodeId);
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

  #poolOf(node: Node | undefined): string | undefined {
    return node === undefined ? undefined : `${this.resource}@${node.id}`;
  }

  /** Least share of memory reserved; ties by most free cores, then by order. */
  #emptiest(cores: number, bytes: number, everCores = 0): Node | undefined {
    let best: Node | undefined;
    const share = (n: Node): number => n.reservedBytes / n.memoryBytes;
    for (const node of this.#nodes) {
      if (node.free.size < cores || node.numaOf.size < everCores) continue;
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

function pickCores(node: Node, count: number): number[] {
  const byNuma = new Map<number, number[]>();
  for (const core of [...node.free].sort((a, b) => a - b)) {
    const numa = node.numaOf.get(core)!;
    byNuma.set(numa, [...(byNuma.get(numa) ?? []), core]);
  }
  const groups = [...byNuma].sort((a, b) => a[1].length - b[1].length || a[0] - b[0]).map(([, cores]) => cores);
  const sufficient = groups.find((cores) => cores.length >= count);
  if (sufficient !== undefined) return sufficient.slice(0, count);
  // No single one suffices: whole NUMA nodes, largest first, leave the fewest of them involved.
  const picked: number[] = [];
  for (const cores of groups.reverse()) picked.push(...cores.slice(0, count - picked.length));
  return picked;
}
