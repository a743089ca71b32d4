import { type Elastic, elasticOn, type QueuedAction } from "../decide/queued-action.ts";
import type { ActionHistory, Expectation } from "../formulation/action-history.ts";
import { type ActionSpec, allowedUnits, leastUnits } from "../formulation/action-spec.ts";
import { demandsOf, durationsOf, Shapes } from "../formulation/formulate.ts";
import type { ResourceManager } from "../managers/manager.ts";

/** Durations follow their history in steps of this share: fewer would not change a decision. */
const noticeableChange = 0.05;

/** Least units of one resource. */
export type Demand = {
  readonly resource: string;
  readonly units: number;
  readonly manager: ResourceManager;
  /** in a decision, the pool of those that are tied to none; of `decision` alone */
  pool: string | undefined;
  decision: number;
};

/** What is asked for; shared by all that ask for the same. */
export type Cost = {
  readonly demands: readonly Demand[];
  /** of every resource that it names, also where that is nothing */
  readonly least: readonly (readonly [resource: string, units: number])[];
  /** where trajectories reserve, which the cost does not name */
  readonly reservedElsewhere: readonly ResourceManager[];
  /** the last decision that saw an action of it */
  decision: number;
  numAlike: number;
};

export type Formulated = Pick<QueuedAction, "elastic" | "seconds"> & {
  /** what it was made from */
  readonly expected: Expectation;
  /** the most that its key could give to one action */
  readonly mostUnits: number;
  /** by units of its key, of a service as things stood */
  readonly preparations: ReadonlyMap<number, number>;
  /** its elastic side, with a pool in place of its resource, by pool */
  readonly elasticIn: Map<string, Elastic>;
};

/** Unsettled actions of one tenant and kind that differ in nothing but their names, trajectories and order. */
export type Alike = {
  /** of the first of them */
  readonly spec: ActionSpec;
  readonly cost: Cost;
  readonly about: string;
  numActions: number;
  /** something was learned of its kind since it was formulated */
  isStale: boolean;
  formulated: Formulated | undefined;
  /** that formulated it last, where that depends on more than what was learned */
  decision: number;
};

/**
 * Formulates actions (§4.1) once for all that are alike, and again only where what is expected of them has changed noticeably. Pure
 * state.
 */
export class AlikeActions {
  readonly #managers: ReadonlyMap<string, ResourceManager>;
  readonly #history: ActionHistory;
  /** by tenant and kind, then by what else they have in common */
  readonly #kinds = new Map<string, Map<string, Alike>>();
  readonly #costs = new Map<string, Cost>();
  readonly #shapes = new Shapes();
  #numFunctions = 0;
  #numForgotten = 0;

  constructor(managers: ReadonlyMap<string, ResourceManager>, history: ActionHistory) {
    this.#managers = managers;
    this.#history = history;
  }

  /** One more action of this spec, until `leave`. */
  join(spec: ActionSpec): Alike {
    const { key, cost, elasticity, duration, service } = spec;
    // Nothing tells one function from another.
    const shape = elasticity?.type === "function" ? this.#numFunctions++ : elasticity;
    const about = JSON.stringify([key, cost, shape, duration, service]);
    const kind = kindOf(spec);
    let own = this.#kinds.get(kind);
    if (own === undefined) {
      own = new Map();
      this.#kinds.set(kind, own);
    }
    let alike = own.get(about);
    if (alike === undefined) {
      const shared = this.#costOf(spec);
      shared.numAlike++;
      alike = { spec, cost: shared, about, numActions: 0, isStale: true, formulated: undefined, decision: 0 };
      own.set(about, alike);
    }
    alike.numActions++;
    return alike;
  }

  leave(alike: Alike): void {
    if (--alike.numActions > 0) return;
    const kind = kindOf(alike.spec);
    const own = this.#kinds.get(kind)!;
    own.delete(alike.about);
    if (own.size === 0) this.#kinds.delete(kind);
    if (--alike.cost.numAlike === 0) this.#costs.delete(costKey(alike.spec));
  }

  /** The history has seen an execution of it. */
  learned(spec: ActionSpec): void {
    for (const alike of this.#kinds.get(kindOf(spec))?.values() ?? []) alike.isStale = true;
    // What it forgot for that may be of any kind.
    if (this.#history.numForgotten !== this.#numForgotten) this.changed();
    this.#numForgotten = this.#history.numForgotten;
  }

  /** Resources have more than before, or less. */
  changed(): void {
    for (const own of this.#kinds.values()) for (const alike of own.values()) alike.isStale = true;
  }

  /** As of this decision; the same object for as long as nothing noticeable changes. */
  formulated(alike: Alike, decision: number): Formulated {
    const { spec, formulated: before } = alike;
    if (before !== undefined && !alike.isStale && (spec.service === undefined || alike.decision === decision))
      return before;
    alike.isStale = false;
    alike.decision = decision;
    const expected = this.#history.expect(spec);
    const preparations = this.#preparationsOf(spec);
    // What a service needs until it runs is small, and exact.
    const most = spec.service === undefined ? noticeableChange : 0;
    const mostUnits = spec.key === undefined ? 0 : this.#managers.get(spec.key)!.capacity;
    if (before !== undefined && before.mostUnits === mostUnits && isNear(expected, before.expected, most))
      if (isSame(preparations, before.preparations)) return before;
    const preparation = (units: number): number => preparations.get(units) ?? 0;
    const durations = durationsOf(spec, expected, () => mostUnits, preparation, this.#shapes);
    alike.formulated = { ...durations, expected, mostUnits, preparations, elasticIn: new Map() };
    return alike.formulated;
  }

  /** As things stand, which changes from decision to decision. */
  #preparationsOf({ key, service, cost, kind }: ActionSpec): ReadonlyMap<number, number> {
    const manager = key === undefined || service === undefined ? undefined : this.#managers.get(key);
    if (manager?.preparationSeconds === undefined) return nothing;
    const preparations = allowedUnits(cost[key!]!).map((units) => {
      const request = { actionId: kind, minimum: units, service };
      return [units, manager.preparationSeconds!(request, units)] as const;
    });
    return new Map(preparations);
  }

  #costOf(spec: ActionSpec): Cost {
    const key = costKey(spec);
    let cost = this.#costs.get(key);
    if (cost === undefined) {
      const demands = demandsOf(spec).map(([resource, units]) => {
        return { resource, units, manager: this.#managers.get(resource)!, pool: undefined, decision: 0 };
      });
      const named = new Set(demands.map(({ manager }) => manager));
      cost = {
        demands,
        least: Object.entries(spec.cost).map(([resource, amount]) => [resource, leastUnits(amount)] as const),
        reservedElsewhere: [...this.#managers.values()].filter((m) => m.reservedShare !== undefined && !named.has(m)),
        decision: 0,
        numAlike: 0,
      };
      this.#costs.set(key, cost);
    }
    return cost;
  }
}

const kindOf = ({ tenant, kind }: ActionSpec): string => JSON.stringify([tenant, kind]);

const costKey = ({ key, cost }: ActionSpec): string => JSON.stringify([key, cost]);

/** With the pool in place of the resource. */
export function elasticIn(pool: string, { elastic, elasticIn }: Formulated): Elastic | undefined {
  if (elastic === undefined) return undefined;
  const known = elasticIn.get(pool) ?? elasticOn(pool, elastic);
  elasticIn.set(pool, known);
  return known;
}

const nothing: ReadonlyMap<number, number> = new Map();

const isSame = (a: ReadonlyMap<number, number>, b: ReadonlyMap<number, number>): boolean =>
  a === b || [...a].every(([units, seconds]) => b.get(units) === seconds);

function isNear({ elasticity, oneUnitSeconds: now }: Expectation, before: Expectation, most: number): boolean {
  const { oneUnitSeconds: then } = before;
  if (elasticity !== before.elasticity) return false;
  return now === then || (now !== undefined && then !== undefined && Math.abs(now - then) <= most * then);
}
