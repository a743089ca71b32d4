/**
 * What calls ask for, while it is on its way: it may be as large as a message gets, and is in memory until it has come in full.
 *
 * HM1 of one tenant at most `most` come at once. Its further calls are not read, and wait until one of those has come or its call
 *    has ended: a tenant whose clients send halves keeps nobody waiting but itself.
 */
export class Arrivals {
  readonly #most: number;
  readonly #byTenant = new Map<string, { numComing: number; readonly waiting: Set<() => void> }>();

  constructor(most: number) {
    this.#most = most;
  }

  /** `read` is called when it may be read, perhaps at once. To be called when it has come, or its call is over: what is returned. */
  enter(tenant: string, read: () => void): () => void {
    const one = this.#byTenant.get(tenant) ?? { numComing: 0, waiting: new Set() };
    this.#byTenant.set(tenant, one);
    let state: "waits" | "comes" | "came" = "waits";
    const begin = (): void => {
      one.waiting.delete(begin);
      one.numComing++;
      state = "comes";
      read();
    };
    if (one.numComing < this.#most) begin();
    else one.waiting.add(begin);
    return () => {
      one.waiting.delete(begin);
      if (state === "comes") one.numComing--;
      state = "came";
      const [next] = one.waiting;
      if (one.numComing < this.#most) next?.();
      if (one.numComing === 0 && one.waiting.size === 0 && this.#byTenant.get(tenant) === one)
        this.#byTenant.delete(tenant);
    };
  }
}
