/**
 * How much each tenant was served: dominant resource fairness (Ghodsi et al., NSDI 2011) over time. Pure state.
 *
 * At any moment a tenant's dominant share is the largest, over all resources, of what it holds of one as a part of what
 * exists: cores, memory, devices, quotas alike. Its *service* is the integral of that over time by its weight, so that who
 * holds one core for 300 ms was served thirty times what 10 ms cost.
 *
 * FS1 service is charged while units are held, and ends with their release: what an action was expected to take orders the
 *    queue, and is gone from it when the action has ended.
 * FS2 a tenant that comes back starts level with the least served one that is active: idling saves nothing up.
 */

/** Of what one action is given, while it runs. */
export type Claim = { readonly tenant: string; readonly share: number; readonly expectedSeconds: number };

type Tenant = {
  readonly held: Map<string, number>;
  readonly claims: Map<string, { readonly claim: Claim; readonly sinceMs: number }>;
  service: number;
  dominant: number;
  sinceMs: number;
  numWaiting: number;
};

/** Clients choose the names, so there may be any number. Beyond this many, tenants with nothing waiting or running are forgotten. */
const mostTenants = 4096;

export class FairShares {
  readonly #weights: ReadonlyMap<string, number>;
  readonly #capacities: ReadonlyMap<string, number>;
  readonly #tenants = new Map<string, Tenant>();

  /** `capacities` are all units of each resource; what is not among them costs nothing. */
  constructor(capacities: ReadonlyMap<string, number>, weights: ReadonlyMap<string, number> = new Map()) {
    this.#capacities = capacities;
    this.#weights = weights;
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
    if (change === 1 && !isActive(state)) state.service = Math.max(state.service, this.#leastActive(nowMs));
    state.numWaiting += change;
  }

  /** The tenant holds so many units more, or fewer. */
  change(tenant: string, resource: string, units: number, nowMs: number): void {
    const state = this.#of(tenant, nowMs);
    this.#advance(tenant, state, nowMs);
    const held = (state.held.get(resource) ?? 0) + units;
    // Sums of grants and releases of fractions leave a rest.
    if (held > 1e-9) state.held.set(resource, held);
    else state.held.delete(resource);
    state.dominant = this.shareOf(state.held);
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

  /** Its service with what its running actions are still expected to take. */
  levelOf(tenant: string, nowMs: number): number {
    let level = this.serviceOf(tenant, nowMs);
    for (const { claim, sinceMs } of this.#of(tenant, nowMs).claims.values()) {
      const elapsed = (nowMs - sinceMs) / 1000;
      // Late already: as long again as it has taken so far.
      const rest = claim.expectedSeconds > elapsed ? claim.expectedSeconds - elapsed : elapsed;
      level += (claim.share * rest) / this.weightOf(tenant);
    }
    return level;
  }

  #advance(name: string, state: Tenant, nowMs: number): void {
    state.service += (state.dominant * (nowMs - state.sinceMs)) / 1000 / this.weightOf(name);
    state.sinceMs = nowMs;
  }

  /** FS2 */
  #leastActive(nowMs: number): number {
    let least = Number.POSITIVE_INFINITY;
    for (const [name, state] of this.#tenants)
      if (isActive(state)) least = Math.min(least, this.serviceOf(name, nowMs));
    return Number.isFinite(least) ? least : 0;
  }

  #of(tenant: string, nowMs: number): Tenant {
    let state = this.#tenants.get(tenant);
    if (state === undefined) {
      if (this.#tenants.size >= mostTenants)
        for (const [name, one] of this.#tenants) if (!isActive(one)) this.#tenants.delete(name);
      state = { held: new Map(), claims: new Map(), service: 0, dominant: 0, sinceMs: nowMs, numWaiting: 0 };
      this.#tenants.set(tenant, state);
    }
    return state;
  }

  #capacityOf(resource: string): number {
    return this.#capacities.get(resource) ?? Number.POSITIVE_INFINITY;
  }
}

const isActive = ({ numWaiting, held }: Tenant): boolean => numWaiting > 0 || held.size > 0;
