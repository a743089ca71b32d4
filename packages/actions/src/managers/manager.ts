import type { Chunk } from "../arrange/buddy.ts";
import type { ResourceState } from "../decide/resource-state.ts";

/** What a manager needs to know of an action. */
export type ResourceRequest = {
  readonly actionId: string;
  readonly trajectory?: string | undefined;
  /** least units of this resource */
  readonly minimum: number;
  /** the service a GPU action needs */
  readonly service?: string | undefined;
};

/** Units that an action holds until `release`. */
export type Grant = {
  readonly resource: string;
  readonly pool: string;
  readonly units: number;
  /** exclusive core numbers on `node` */
  readonly cores?: readonly number[] | undefined;
  /** NUMA nodes of those cores */
  readonly numaNodes?: readonly number[] | undefined;
  readonly node?: string | undefined;
  /** exclusive devices, and what must happen on them before the action may start */
  readonly devices?: DeviceGrant | undefined;
};

export type ServiceInstance = { readonly service: string; readonly dop: number; readonly chunk: Chunk };

export type DeviceGrant = {
  readonly chunk: Chunk;
  /** instances to remove from memory, least recently used first */
  readonly evict: readonly ServiceInstance[];
  /** whether the service has to be restored after that */
  readonly restore: boolean;
  /** memory that must be free on every device before the restore */
  readonly neededBytes: number;
};

export type Spending = { readonly share: number; readonly forMs: number };

/**
 * One resource type. A manager divides it into pools that are scheduled apart (the nodes of a CPU cluster), says what
 * each has free, and turns a number of units into particular ones. Pure state: time comes in as `nowMs`.
 *
 * MG1 what is granted and not released is granted to nobody else.
 * MG2 `acquire` of at most what `pools` said is free succeeds, when larger requests of one decision come first.
 */
export interface ResourceManager {
  readonly resource: string;
  /** the most units one action can ever get */
  readonly capacity: number;
  /** units that may be held at once, all together; what is free at the beginning when absent */
  readonly mostHeld?: number | undefined;
  /** What it grants cannot be divided: who asks for a part of a unit gets, and is charged, a whole one. */
  readonly grantsWholeUnits?: boolean | undefined;
  /**
   * The pool that serves the action; undefined when none can at the moment, whatever becomes free in a pool. `promised`: by pool,
   * the least units of those that this decision has bound before, and that have no units yet.
   */
  bind(request: ResourceRequest, nowMs: number, promised?: ReadonlyMap<string, number>): string | undefined;
  /** the pool that a trajectory is tied to already */
  home(trajectory: string): string | undefined;
  pools(nowMs: number): ReadonlyMap<string, Pick<ResourceState, "free" | "chunks">>;
  acquire(pool: string, request: ResourceRequest, units: number, nowMs: number): Grant | undefined;
  release(actionId: string, nowMs: number): void;
  /** States what a trajectory will need, before its first action, and where it has to be. Throws `action.impossible` when that never exists. */
  openTrajectory?(trajectory: string, memoryBytes?: number, node?: string): void;
  /** the node that a trajectory is on from now on, whether there is room or not; undefined when none is there */
  place?(trajectory: string): string | undefined;
  /** why the action will never get its least units where its trajectory is or could be, in words */
  whyNever?(request: ResourceRequest): string | undefined;
  /** of what may be reserved in all, the part that the trajectory takes from its first action, when it gets a home, to its end */
  reservedShare?(trajectory: string): number;
  /** what so many units use up of rates, whatever is released: of all that may begin in a period, which part, and that period */
  spends?(units: number): readonly Spending[];
  endTrajectory(trajectory: string): void;
  /**
   * Ms until something becomes free without a release, where it comes bit by bit until there are `units`; undefined when only a
   * release can do it.
   */
  nextChangeMs(nowMs: number, units?: number): number | undefined;
  /** seconds that an action needs on top of its execution, at this number of units, as things stand */
  preparationSeconds?(request: ResourceRequest, units: number): number;
  /** the service answered, or refused because of too many calls */
  succeeded?(): void;
  throttled?(nowMs: number, retryAfterMs?: number): number;
}
