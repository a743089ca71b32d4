/**
 * How much each tenant was served: dominant resource fairness (Ghodsi et al., NSDI 2011) over time. Pure state.
 *
 * At any moment a tenant's dominant share is the largest, over all resources, of what it holds of one as a part of what
 * exists: cores, memory, devices, quotas alike. Its *service* is the integral of that over time by its weight, so that who
 * holds one core for 300 ms was served thirty times what 10 ms cost. A unit of a rate is held for the period of that rate,
 * however short the call was.
 *
 * FS1 service is charged while units are held, and ends with their release: what an action was expected to take orders the
 *    queue, and is gone from it when the action has ended.
 * FS2 a tenant that comes back starts level with the least served one that has actions, and never below where somebody else
 *    started: idling saves nothing up, with a trajectory open or not, and what one was served while it was alone is no debt to
 *    those who come later.
 */

/** Of what one action is given, while it runs. */
export type Claim = { readonly tenant: string; readonly share: number; readonly expectedSeconds: number };

/** A part of a rate, until its period is over. */
type Spent = { readonly what: string; readonly share: number; readonly untilMs: number };

type Tenant = {
  /** shares, by resource and by what else is held */
  readonly held: Map<string, number>;
  /** soonest first */
  readonly spent: Spent[];
  readonly claims: Map<string, { readonly claim: Claim; readonly sinceMs: number }>;
  service: number;
  dominant: number;
  sinceMs: number;
  numWaiting: number;
};

/** Clients choose the names, so there may be any number. Beyond this many, tenants with nothing waiting, running or held are forgotten. */
const mostTenants = 4096;

export class FairShares {
  readonly #weights: ReadonlyMap<string, number>;
  readonly #capacities: Map<string, number>;
  readonly #tenants = new Map<string, Tenant>();
  /** where those who come begin (FS2); never falls */
  #beginning = 0;

  /** `capacities` are all units of each resource; what is not among them costs nothing. */
  constructor(capacities: ReadonlyMap<string, number>, weights: ReadonlyMap<string, number> = new Map()) {
    this.#capacities = new Map(capacities);
    this.#weights = weights;
  }

  /** A resource has more units than before, or fewer: what is held of it is another part of it from now on. */
  resize(resource: string, capacity: number, nowMs: number): void {
    const before = this.#capacities.get(resource);
    if (before === undefined || before === capacity || capacity <= 0) return;
    for (const [name, state] of this.#tenants) {
      this.#advance(name, state, nowMs);
      const held = state.held.get(resource) ?? 0;
      addShare(state, resource, held * (before / capacity - 1));
    }
    this.#capacities.set(resource, capacity);
  }

  /** The dominant share of an allocation. */
  shareOf(units: Iterable<readonly [resource: string, units: number]>): number {
    let dominant = 0;
    for (const [resource, count] of units) dominant = Math.max(dominant, count / this.#capacityOf(resource));
    return dominant;
  }

  weightOf(tenant: string): number {
    return this.#weights.get(tenant) ?? 1;
  }

  /** One more action of the tenant waits, or one fewer. */
  waits(tenant: string, change: 1 | -1, nowMs: number): void {
    const state = this.#of(tenant, nowMs);
    this.#advance(tenant, state, nowMs);
    if (change === 1 && !hasActions(state)) {
      this.#beginning = Math.max(this.#beginning, this.#whereToBegin(nowMs));
      state.service = Math.max(state.service, this.#beginning);
    }
    state.numWaiting += change;
  }

  /** The tenant holds so many units more, or fewer. */
  change(tenant: string, resource: string, units: number, nowMs: number): void {
    this.hold(tenant, resource, units / this.#capacityOf(resource), nowMs);
  }

  /** The tenant holds so large a part of something more, or less. */
  hold(tenant: string, what: string, share: number, nowMs: number): void {
    const state = this.#of(tenant, nowMs);
    this.#advance(tenant, state, nowMs);
    addShare(state, what, share);
  }

  /** The tenant used a part of a rate up, which it holds until then whatever it releases. */
  spend(tenant: string, what: string, share: number, untilMs: number, nowMs: number): void {
    const state = this.#of(tenant, nowMs);
    this.#advance(tenant, state, nowMs);
    let at = state.spent.length;
    while (at > 0 && state.spent[at - 1]!.untilMs > untilMs) at--;
    state.spent.splice(at, 0, { what, share, untilMs });
    addShare(state, what, share);
  }

  /** An action began, whose claim counts until `ends`. */
  begins(action: string, claim: Claim, nowMs: number): void {
    this.#of(claim.tenant, nowMs).claims.set(action, { claim, sinceMs: nowMs });
  }

  ends(action: string, tenant: string): void {
    this.#tenants.get(tenant)?.claims.delete(action);
  }

  /** Seconds of all of a resource that the tenant was served, by its weight. */
  serviceOf(tenant: string, nowMs: number): number {
    const state = this.#of(tenant, nowMs);
    this.#advance(tenant, state, nowMs);
    return state.service;
  }

  /** Its service with what its running actions are still expected to take, and what it spent of rates will still cost. */
  levelOf(tenant: string, nowMs: number): number {
    const service = this.serviceOf(tenant, nowMs);
    const { claims, spent } = this.#of(tenant, nowMs);
    let expected = 0;
    for (const { claim, sinceMs } of claims.values()) {
      const elapsed = (nowMs - sinceMs) / 1000;
      // Late already: as long again as it has taken so far.
      const rest = claim.expectedSeconds > elapsed ? claim.expectedSeconds - elapsed : elapsed;
      expected += claim.share * rest;
    }
    const rates = new Map<string, number>();
    for (const { what, share, untilMs } of spent)
      rates.set(what, (rates.get(what) ?? 0) + (share * (untilMs - nowMs)) / 1000);
    return service + Math.max(expected, ...rates.values()) / this.weightOf(tenant);
  }

  #advance(name: string, state: Tenant, nowMs: number): void {
    let over = 0;
    for (; over < state.spent.length && state.spent[over]!.untilMs <= nowMs; over++) {
      const { what, share, untilMs } = state.spent[over]!;
      this.#charge(name, state, untilMs);
      addShare(state, what, -share);
    }
    state.spent.splice(0, over);
    this.#charge(name, state, nowMs);
  }

  #charge(name: string, state: Tenant, untilMs: number): void {
    state.service += (state.dominant * (untilMs - state.sinceMs)) / 1000 / this.weightOf(name);
    state.sinceMs = untilMs;
  }

  /** FS2: level with the least served who has actions; where nobody has, with the most served. */
  #whereToBegin(nowMs: number): number {
    let least = Number.POSITIVE_INFINITY;
    let most = 0;
    for (const [name, state] of this.#tenants) {
      this.#advance(name, state, nowMs);
      if (hasActions(state)) least = Math.min(least, state.service);
      most = Math.max(most, state.service);
    }
    return Math.min(least, most);
  }

  #of(tenant: string, nowMs: number): Tenant {
    let state = this.#tenants.get(tenant);
    if (state === undefined) {
      if (this.#tenants.size >= mostTenants)
        for (const [name, one] of this.#tenants)
          if (!hasActions(one) && one.held.size === 0) this.#tenants.delete(name);
      state = { held: new Map(), spent: [], claims: new Map(), service: 0, dominant: 0, sinceMs: nowMs, numWaiting: 0 };
      this.#tenants.set(tenant, state);
    }
    return state;
  }

  #capacityOf(resource: string): number {
    return this.#capacities.get(resource) ?? Number.POSITIVE_INFINITY;
  }
}

const hasActions = ({ numWaiting, claims }: Tenant): boolean => numWaiting > 0 || claims.size > 0;

function addShare(state: Tenant, what: string, share: number): void {
  const held = (state.held.get(what) ?? 0) + share;
  // Sums of what comes and goes leave a rest.
  if (held > 1e-12) state.held.set(what, held);
  else state.held.delete(what);
  state.dominant = Math.max(0, ...state.held.values());
}
