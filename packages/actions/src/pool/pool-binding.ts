import { TreadleError } from "@treadle/contracts";
import type { QueuedAction } from "../decide/queued-action.ts";
import type { ActionHistory, Expectation } from "../formulation/action-history.ts";
import { leastUnits } from "../formulation/action-spec.ts";
import { demandsOf, durationsOf } from "../formulation/formulate.ts";
import type { ResourceManager, ResourceRequest } from "../managers/manager.ts";
import type { ActionRecord } from "./action-record.ts";
import { probing } from "./probe.ts";

/** Durations follow their history in steps of this share: fewer would not change a decision. */
const noticeableChange = 0.05;

/**
 * What one decision sees: actions with pools (the cores of one node) in place of resources (cores). Lives for one
 * decision, during which no manager changes but for the homes that `bind` gives to trajectories.
 */
export class PoolBinding {
  readonly #managers: ReadonlyMap<string, ResourceManager>;
  readonly #history: ActionHistory;
  readonly #statesMemory: (trajectory: string) => boolean;
  readonly #nowMs: number;
  /** resources in which an earlier action found no pool: first come, first served among those who look for one, too */
  readonly #full = new Set<string>();
  /** by pool, the least units of trajectories that got their home in this decision */
  readonly #promised = new Map<string, number>();
  /** where actions without a trajectory go, by resource and least units */
  readonly #homeless = new Map<string, string | undefined>();
  /** by what they depend on: where one is formulated anew, most often all of its kind are */
  readonly #durations = new Map<string, Pick<QueuedAction, "elastic" | "seconds">>();

  constructor(
    managers: ReadonlyMap<string, ResourceManager>,
    history: ActionHistory,
    statesMemory: (trajectory: string) => boolean,
    nowMs: number,
  ) {
    this.#managers = managers;
    this.#history = history;
    this.#statesMemory = statesMemory;
    this.#nowMs = nowMs;
  }

  /** Undefined when a resource has no pool that can serve the action now. */
  bind(record: ActionRecord): QueuedAction | undefined {
    const base = this.#formulated(record);
    let pools = "";
    const poolOf = new Map<string, string>();
    for (const [resource, units] of base.demands) {
      const pool = this.#poolFor(record, resource, units);
      if (pool === undefined) {
        this.#full.add(resource);
        return undefined;
      }
      poolOf.set(resource, pool);
      pools += `${pool}\n`;
    }
    if (!this.#hasMemory(record)) return undefined;
    if (record.bound?.base !== base || record.bound.pools !== pools) {
      const { elastic } = base;
      const queued: QueuedAction = {
        ...base,
        demands: base.demands.map(([resource, units]) => [poolOf.get(resource)!, units]),
        elastic: elastic && { ...elastic, resource: poolOf.get(elastic.resource)! },
      };
      record.bound = { base, pools, queued };
    }
    const { queued } = record.bound;
    return probing(record, queued, (pool) => this.#freeIn(record.spec.key!, pool)) ?? queued;
  }

  #freeIn(resource: string, pool: string): number {
    return this.#managers.get(resource)!.pools(this.#nowMs).get(pool)!.free;
  }

  /**
   * What a trajectory stated is reserved at its first action, also of one whose cost names nothing there, but not of a request to a
   * service, which needs no sandbox.
   */
  #hasMemory(record: ActionRecord): boolean {
    const { trajectory, service } = record.spec;
    if (trajectory === undefined || service !== undefined || !this.#statesMemory(trajectory)) return true;
    for (const [resource, { reservedShare }] of this.#managers) {
      if (reservedShare === undefined || this.#poolFor(record, resource, 0) !== undefined) continue;
      this.#full.add(resource);
      return false;
    }
    return true;
  }

  #poolFor(record: ActionRecord, resource: string, units: number): string | undefined {
    const manager = this.#managers.get(resource)!;
    const { trajectory, service } = record.spec;
    const home = trajectory === undefined ? undefined : manager.home(trajectory);
    if (home !== undefined || this.#full.has(resource)) return home;
    if (trajectory !== undefined || service !== undefined) {
      const pool = manager.bind(requestOf(record, units), this.#nowMs, this.#promised);
      if (pool !== undefined) this.#promised.set(pool, (this.#promised.get(pool) ?? 0) + units);
      return pool;
    }
    const key = `${resource}/${units}`;
    if (!this.#homeless.has(key)) this.#homeless.set(key, manager.bind(requestOf(record, units), this.#nowMs));
    return this.#homeless.get(key);
  }

  #formulated(record: ActionRecord): QueuedAction {
    const { spec, id, formulated } = record;
    const expected = this.#history.expect(spec);
    // The residency of a service changes from decision to decision.
    if (formulated !== undefined && spec.service === undefined && isNear(expected, formulated.expected))
      return formulated.queued;
    const queued = { id, demands: demandsOf(spec), ...this.#durationsOf(record, expected) };
    record.formulated = { expected, queued };
    return queued;
  }

  #durationsOf(record: ActionRecord, expected: Expectation): Pick<QueuedAction, "elastic" | "seconds"> {
    const { spec } = record;
    const { key = "", service, cost } = spec;
    const { elasticity, oneUnitSeconds } = expected;
    const manager = this.#managers.get(key);
    const preparation = (units: number): number => manager?.preparationSeconds?.(requestOf(record, units), units) ?? 0;
    const make = () => durationsOf(spec, expected, () => manager!.capacity, preparation);
    // Nothing tells one function from another.
    if (elasticity === undefined || elasticity.type === "function") return make();
    const about = JSON.stringify([key, cost[key], service, elasticity, oneUnitSeconds]);
    const durations = this.#durations.get(about) ?? make();
    this.#durations.set(about, durations);
    return durations;
  }
}

function isNear({ elasticity, oneUnitSeconds: now }: Expectation, before: Expectation): boolean {
  const { oneUnitSeconds: then } = before;
  if (elasticity !== before.elasticity) return false;
  return now === then || (now !== undefined && then !== undefined && Math.abs(now - then) <= noticeableChange * then);
}

export function requestOf({ id, spec }: ActionRecord, minimum: number): ResourceRequest {
  return { actionId: id, trajectory: spec.trajectory, minimum, service: spec.service };
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
