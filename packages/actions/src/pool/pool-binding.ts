/**
 * What a decision sees: waiting actions with pools (the cores of one node) in place of resources (cores). Lives as long as the
 * pool; what is as at the last decision is not made again.
 *
 * PB1 a decision sees the same as if every action were formulated and bound for it alone.
 */
import { TreadleError } from "@treadle/contracts";
import type { Elastic, QueuedAction } from "../decide/queued-action.ts";
import { type ActionSpec, allowedUnits, leastUnits } from "../formulation/action-spec.ts";
import type { ResourceManager, ResourceRequest } from "../managers/manager.ts";
import type { ActionRecord } from "./action-record.ts";
import { type AlikeActions, type Demand, elasticIn, type Formulated } from "./alike.ts";
import type { Charging } from "./charging.ts";
import { probing } from "./probe.ts";

/** When the last decision was made. */
type Moment = { nowMs: number };

/** An action as the scheduler sees it, with what that was made from. */
export class Bound implements QueuedAction {
  readonly id: string;
  readonly demands: QueuedAction["demands"];
  readonly elastic: Elastic | undefined;
  readonly seconds: number | undefined;
  readonly formulated: Formulated;
  readonly generation: number;
  readonly #submittedMs: number;
  readonly #moment: Moment;

  constructor(
    { id, submittedMs }: ActionRecord,
    demands: QueuedAction["demands"],
    elastic: Elastic | undefined,
    formulated: Formulated,
    generation: number,
    moment: Moment,
  ) {
    this.id = id;
    this.demands = demands;
    this.elastic = elastic;
    this.seconds = formulated.seconds;
    this.formulated = formulated;
    this.generation = generation;
    this.#submittedMs = submittedMs;
    this.#moment = moment;
  }

  /** Of few a decision asks. */
  get waitedSeconds(): number {
    return (this.#moment.nowMs - this.#submittedMs) / 1000;
  }
}

export type Sight = {
  /** those that have a pool, in the order of the queue */
  readonly waiting: readonly QueuedAction[];
  readonly impossible: readonly (readonly [ActionRecord, TreadleError])[];
  /** trajectories that may have got a home */
  readonly settled: ReadonlySet<string>;
};

export class PoolBinding {
  readonly #managers: ReadonlyMap<string, ResourceManager>;
  readonly #alike: AlikeActions;
  readonly #charging: Charging;
  readonly #statesMemory: (trajectory: string) => boolean;
  #generation = 0;
  #decision = 0;
  readonly #moment: Moment = { nowMs: 0 };
  /** resources in which an earlier action found no pool: first come, first served among those who look for one, too */
  readonly #full = new Set<string>();
  /** by pool, the least units of trajectories that got their home in this decision */
  readonly #promised = new Map<string, number>();
  /** where actions go that are tied to no pool, by resource and least units */
  readonly #anyPools = new Map<string, string | undefined>();
  /** by resource, the least that anybody waits for who has a pool */
  #wanted = new Map<string, number>();

  constructor(
    managers: ReadonlyMap<string, ResourceManager>,
    alike: AlikeActions,
    charging: Charging,
    statesMemory: (trajectory: string) => boolean,
  ) {
    this.#managers = managers;
    this.#alike = alike;
    this.#charging = charging;
    this.#statesMemory = statesMemory;
  }

  get wanted(): ReadonlyMap<string, number> {
    return this.#wanted;
  }

  /** Nodes are others than before, maybe under the same names: everything is looked at again. */
  changed(): void {
    this.#generation++;
    this.#alike.changed();
  }

  /** Of these, for one decision, during which no manager changes but for the homes that this gives to trajectories. */
  see(records: readonly ActionRecord[], nowMs: number): Sight {
    this.#decision++;
    this.#moment.nowMs = nowMs;
    this.#full.clear();
    this.#promised.clear();
    this.#anyPools.clear();
    this.#wanted = new Map();
    const waiting: QueuedAction[] = [];
    const impossible: [ActionRecord, TreadleError][] = [];
    const settled = new Set<string>();
    for (const record of records) {
      if (!this.#isBound(record)) {
        record.bound = undefined;
        const bound = this.#bind(record);
        if (record.spec.trajectory !== undefined) settled.add(record.spec.trajectory);
        if (bound === undefined) continue;
        const why = whyNever(this.#managers, record);
        if (why !== undefined) {
          impossible.push([record, why]);
          continue;
        }
        record.bound = bound;
        record.demand = this.#charging.demandOf(record.spec, record.share, bound.seconds);
      }
      this.#wants(record);
      const bound = record.bound!;
      waiting.push(record.probeUnits === undefined ? bound : this.#probing(record, bound));
    }
    return { waiting, impossible, settled };
  }

  #wants({ alike: { cost } }: ActionRecord): void {
    if (cost.decision === this.#decision) return;
    cost.decision = this.#decision;
    for (const [resource, units] of cost.least)
      this.#wanted.set(resource, Math.min(this.#wanted.get(resource) ?? Number.POSITIVE_INFINITY, units));
  }

  #probing(record: ActionRecord, queued: QueuedAction): QueuedAction {
    const freeIn = (pool: string): number =>
      this.#managers.get(record.spec.key!)!.pools(this.#moment.nowMs).get(pool)!.free;
    const probe = probing(record, queued, freeIn);
    record.demand = this.#charging.demandOf(record.spec, record.share, (probe ?? queued).seconds);
    return probe ?? queued;
  }

  /** PB1: whether it would be bound to the same now. */
  #isBound({ alike, bound, spec }: ActionRecord): boolean {
    if (bound === undefined || bound.generation !== this.#generation) return false;
    if (this.#alike.formulated(alike, this.#decision) !== bound.formulated) return false;
    const { demands, reservedElsewhere } = alike.cost;
    const { trajectory } = spec;
    for (let i = 0; i < demands.length; i++) {
      const demand = demands[i]!;
      const pool = this.#isTied(spec, demand)
        ? trajectory && demand.manager.home(trajectory)
        : this.#anyPool(spec, demand);
      if (pool === undefined || pool !== bound.demands[i]![0]) return false;
    }
    if (trajectory === undefined || reservedElsewhere.length === 0) return true;
    return reservedElsewhere.every((m) => m.home(trajectory) !== undefined) || !this.#statesMemory(trajectory);
  }

  /** Undefined when a resource has no pool that can serve the action now. */
  #bind(record: ActionRecord): Bound | undefined {
    const formulated = this.#alike.formulated(record.alike, this.#decision);
    record.formulated = formulated;
    const demands: [pool: string, units: number][] = [];
    let elastic: Elastic | undefined;
    for (const demand of record.alike.cost.demands) {
      const pool = this.#poolFor(record, demand);
      if (pool === undefined) {
        this.#full.add(demand.resource);
        return undefined;
      }
      demands.push([pool, demand.units]);
      if (demand.resource === record.spec.key) elastic = elasticIn(pool, formulated);
    }
    if (!this.#hasMemory(record)) return undefined;
    return new Bound(record, demands, elastic, formulated, this.#generation, this.#moment);
  }

  /**
   * What a trajectory stated is reserved at its first action, also of one whose cost names nothing there, but not of a request to a
   * service, which needs no sandbox.
   */
  #hasMemory(record: ActionRecord): boolean {
    const { trajectory, service } = record.spec;
    if (trajectory === undefined || service !== undefined || !this.#statesMemory(trajectory)) return true;
    for (const manager of record.alike.cost.reservedElsewhere) {
      const { resource } = manager;
      if (this.#tiedPool(record, { resource, units: 0, manager }) !== undefined) continue;
      this.#full.add(resource);
      return false;
    }
    return true;
  }

  #poolFor(record: ActionRecord, demand: Demand): string | undefined {
    return this.#isTied(record.spec, demand) ? this.#tiedPool(record, demand) : this.#anyPool(record.spec, demand);
  }

  /** Whether where it goes depends on more than what it asks for. */
  #isTied({ trajectory, service }: ActionSpec, { manager }: Demand): boolean {
    return manager.place !== undefined && (trajectory !== undefined || service !== undefined);
  }

  #tiedPool(record: ActionRecord, { resource, units, manager }: Pick<Demand, "resource" | "units" | "manager">) {
    const { trajectory } = record.spec;
    const home = trajectory === undefined ? undefined : manager.home(trajectory);
    if (home !== undefined || this.#full.has(resource)) return home;
    const pool = manager.bind(requestOf(record, units), this.#moment.nowMs, this.#promised);
    if (pool !== undefined) this.#promised.set(pool, (this.#promised.get(pool) ?? 0) + units);
    return pool;
  }

  #anyPool({ trajectory, service, kind }: ActionSpec, demand: Demand): string | undefined {
    if (this.#full.size > 0 && this.#full.has(demand.resource)) return undefined;
    if (demand.decision !== this.#decision) {
      const { resource, units, manager } = demand;
      const name = `${resource}/${units}`;
      if (!this.#anyPools.has(name))
        this.#anyPools.set(
          name,
          manager.bind({ actionId: kind, trajectory, minimum: units, service }, this.#moment.nowMs),
        );
      demand.decision = this.#decision;
      demand.pool = this.#anyPools.get(name);
    }
    return demand.pool;
  }
}

export function requestOf({ id, spec }: Pick<ActionRecord, "id" | "spec">, minimum: number): ResourceRequest {
  return { actionId: id, trajectory: spec.trajectory, minimum, service: spec.service };
}

/** Where its trajectory is or could be it will never fit, or its service does not run on as much as it asks for. */
export function whyNever(
  managers: ReadonlyMap<string, ResourceManager>,
  record: Pick<ActionRecord, "id" | "spec">,
): TreadleError | undefined {
  const { trajectory, service, key, cost } = record.spec;
  if (trajectory === undefined && service === undefined) return undefined;
  for (const [resource, amount] of Object.entries(cost)) {
    const manager = managers.get(resource)!;
    // A service has to run on whatever it may be given.
    const units =
      service !== undefined && resource === key
        ? allowedUnits(amount).filter((count) => count <= manager.capacity)
        : [leastUnits(amount)];
    for (const count of units) {
      const why = manager.whyNever?.(requestOf(record, count));
      if (why !== undefined) return new TreadleError("action.impossible", why, { details: { id: record.id } });
    }
  }
  return undefined;
}

/** Why no resource that it names can ever give what it asks for at least. */
export function beyondCapacity(
  managers: ReadonlyMap<string, ResourceManager>,
  cost: ActionRecord["spec"]["cost"],
): TreadleError | undefined {
  for (const [resource, amount] of Object.entries(cost)) {
    const manager = managers.get(resource);
    const known = [...managers.keys()].map((r) => `'${r}'`).join(", ");
    if (manager === undefined)
      return new TreadleError(
        "action.impossible",
        `resource '${resource}' is not managed; managed are ${known || "none"}`,
      );
    const least = leastUnits(amount);
    if (least > manager.capacity)
      return new TreadleError(
        "action.impossible",
        `'${least}' units of '${resource}' were asked for, one action can get ${manager.capacity}; ask for less or add capacity`,
      );
  }
  return undefined;
}
