/**
 * The leases under which a run reserves devices that it shares with other runs. A run that shares with nobody needs none.
 *
 * A party asks for a lease of its devices. Leases outlast parties: another one goes as soon as leases cover its devices, whoever
 * asked for them. So a run that has its devices for itself asks for each of them once.
 *
 * - LL1 no device is reserved without a lease that covers it.
 * - LL2 a lease is released only while none of its devices is held or being prepared, and only when others want it, or when a
 *   party asks for some of its devices together with others that no lease covers. Nothing else that the run has or waits for
 *   is a reason to keep it, so what is asked for comes whole, and no two runs wait for a part of what the other has.
 * - LL3 when it is to be drained, none of its devices is reserved until it has been released. Whoever holds devices never waits
 *   for another party's (L2), so they are free in the end.
 * - LL4 while another run computes on its devices, or may, nothing is reserved under it but for the one component that this run
 *   has named. A party of another one has the lease released first, and asks for one of its own.
 */
import type { DeviceLease } from "@treadle/contracts";
import type { LockEffect, LockSnapshot } from "./lock-messages.ts";

type Lease = {
  readonly token: number;
  readonly devices: ReadonlySet<string>;
  isWanted: boolean;
  drains: boolean;
  /** the component that devices were reserved for last, as the pool knows; undefined where it has to be told */
  component: string | undefined;
  /** LL4 */
  only: string | undefined;
};
/** What asks for devices: calls of one component. */
type Asking = { readonly devices: readonly string[]; readonly component: string };

type Holder = Pick<Asking, "component">;

export class LockLease {
  readonly #isNeeded: boolean;
  readonly #leases = new Map<number, Lease>();
  readonly #leaseOf = new Map<string, Lease>();
  /** what was asked for, and not granted yet */
  readonly #asked = new Map<ReadonlySet<string>, string>();
  /** each party that could have gone on, if it were not for leases */
  #missing: Asking[] = [];
  /** leases whose component is another one than the pool knows */
  readonly #changed = new Set<Lease>();

  constructor(isNeeded: boolean) {
    this.#isNeeded = isNeeded;
  }

  /** Some of the run waits for other runs. */
  get isAwaited(): boolean {
    return this.#asked.size > 0;
  }

  shown(): LockSnapshot["leases"] {
    const held = [...this.#leases.values()].map(({ devices, component, drains, isWanted }) => {
      const state = drains ? ("drains" as const) : isWanted ? ("wanted by others" as const) : ("held" as const);
      return { devices: [...devices], component, state };
    });
    const asked = [...this.#asked].map(([devices, component]) => ({ devices: [...devices], component }));
    return [...held, ...asked.map((each) => ({ ...each, state: "asked" as const }))];
  }

  granted({ token, devices, only }: DeviceLease): void {
    const isOf = ([each]: readonly [ReadonlySet<string>, string]) =>
      each.size === devices.length && devices.every((id) => each.has(id));
    const found = [...this.#asked].find(isOf);
    if (found === undefined) return;
    const [asked, component] = found;
    this.#asked.delete(asked);
    const isOnly = only === undefined ? undefined : component;
    const lease = { token, devices: asked, isWanted: false, drains: false, component, only: isOnly };
    this.#leases.set(token, lease);
    for (const device of devices) this.#leaseOf.set(device, lease);
  }

  wanted(token: number, drains: boolean): void {
    const lease = this.#leases.get(token);
    if (lease === undefined) return;
    lease.isWanted = true;
    lease.drains ||= drains;
  }

  /** LL4: says which component computes under it, and lets no other from here on; null where that is not one. */
  share(token: number, holders: ReadonlyMap<string, Holder>, out: LockEffect[]): void {
    const lease = this.#leases.get(token);
    if (lease === undefined) return;
    const components = new Set([...lease.devices].flatMap((device) => holders.get(device)?.component ?? []));
    const component = components.size === 1 ? [...components][0] : undefined;
    lease.component = component;
    lease.only = component;
    out.push({ type: "share-lease", token, component: component ?? null });
  }

  /** LL4: nobody computes beside it any more. */
  isAlone(token: number): void {
    const lease = this.#leases.get(token);
    if (lease) lease.only = undefined;
  }

  /** LL1, LL3, LL4. Remembers what was refused until `settle`. */
  mayReserve(asking: Asking): boolean {
    if (!this.#isNeeded) return true;
    const { devices, component } = asking;
    const leases = devices.map((device) => this.#leaseOf.get(device));
    const mayGo = leases.every((lease) => lease?.drains === false && (lease.only ?? component) === component);
    if (!mayGo) this.#missing.push(asking);
    else for (const lease of leases) if (lease && lease.component !== component) this.#use(lease, component);
    return mayGo;
  }

  #use(lease: Lease, component: string): void {
    lease.component = component;
    this.#changed.add(lease);
  }

  /** LL2: once all that can be reserved is. */
  settle(holders: ReadonlyMap<string, unknown>, out: LockEffect[]): void {
    const missing = this.#missing;
    this.#missing = [];
    for (const { token, component } of this.#changed)
      if (component !== undefined) out.push({ type: "use-lease", token, component });
    this.#changed.clear();
    // What is released may be missing to a party that has leases of its other devices, which then go, too.
    let numLeases: number;
    do {
      for (const { devices, component } of missing) {
        const leases = devices.map((device) => this.#leaseOf.get(device));
        const isPart = leases.includes(undefined);
        for (const lease of leases)
          if (lease && (isPart || (lease.only ?? component) !== component)) lease.drains = true;
      }
      numLeases = this.#leases.size;
      this.#releaseFree(holders, out);
    } while (this.#leases.size < numLeases);
    for (const asking of missing) if (asking.devices.every((device) => this.#isFree(device))) this.#ask(asking, out);
  }

  #releaseFree(holders: ReadonlyMap<string, unknown>, out: LockEffect[]): void {
    for (const lease of this.#leases.values()) {
      if (!lease.drains && !lease.isWanted) continue;
      if ([...lease.devices].every((device) => !holders.has(device))) this.#release(lease, out);
    }
  }

  #isFree(device: string): boolean {
    return !this.#leaseOf.has(device) && ![...this.#asked.keys()].some((asked) => asked.has(device));
  }

  #release(lease: Lease, out: LockEffect[]): void {
    this.#leases.delete(lease.token);
    for (const device of lease.devices) this.#leaseOf.delete(device);
    out.push({ type: "release-lease", token: lease.token });
  }

  #ask({ devices, component }: Asking, out: LockEffect[]): void {
    this.#asked.set(new Set(devices), component);
    out.push({ type: "ask-lease", devices, component });
  }
}
