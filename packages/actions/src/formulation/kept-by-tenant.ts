/** of a tenant: what is known of further ones goes with those that it has not used longest */
export const mostKinds = 1024;
const mostTenants = 1024;

/** Values by tenant and name. Names are clients' words: beyond `most` of a tenant, the one that was not used longest is forgotten. */
export class KeptByTenant<Value> {
  readonly #most: number;
  readonly #tenants = new Map<string, Map<string, Value>>();
  #numForgotten = 0;

  constructor(most: number) {
    this.#most = most;
  }

  /** values and whole tenants that are kept no longer */
  get numForgotten(): number {
    return this.#numForgotten;
  }

  get(tenant: string, name: string): Value | undefined {
    return this.#tenants.get(tenant)?.get(name);
  }

  /** The value, which is used now, or what `make` gives in its place. */
  use(tenant: string, name: string, make: () => Value): Value {
    const own = this.#tenants.get(tenant) ?? new Map<string, Value>();
    this.#numForgotten += renew(this.#tenants, tenant, own, mostTenants);
    const value = own.has(name) ? (own.get(name) as Value) : make();
    this.#numForgotten += renew(own, name, value, this.#most);
    return value;
  }

  /** Of all, with those that were not used longest first: who uses them in turn has the same. */
  *inTurn(): Iterable<[tenant: string, name: string, value: Value]> {
    for (const [tenant, own] of this.#tenants) for (const [name, value] of own) yield [tenant, name, value];
  }

  /** Of one tenant, or of all. */
  *entries(tenant?: string): Iterable<[name: string, value: Value]> {
    for (const [one, own] of this.#tenants) if (tenant === undefined || one === tenant) yield* own;
  }
}

/** The last of its map, which keeps `most`; how many it forgets for that. */
function renew<Value>(map: Map<string, Value>, key: string, value: Value, most: number): number {
  map.delete(key);
  map.set(key, value);
  if (map.size <= most) return 0;
  map.delete(map.keys().next().value!);
  return 1;
}
