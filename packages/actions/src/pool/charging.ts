import type { FairShares } from "../decide/fair-shares.ts";
import { type ActionSpec, leastUnits } from "../formulation/action-spec.ts";
import type { Grant, ResourceManager, Spending } from "../managers/manager.ts";

type Charged = { readonly id: string; readonly tenant: string };

/** of an action of which nothing is known yet */
export const unknownSeconds = 1;

/**
 * What counts against a tenant's share (FS1), in the words of `FairShares`: units while an action holds them, memory from the
 * first action of a trajectory to its end, a part of a rate for the rate's period. Pure state.
 */
export class Charging {
  readonly #managers: ReadonlyMap<string, ResourceManager>;
  readonly #shares: FairShares;
  /** what open trajectories have reserved, by what it is */
  readonly #reserved = new Map<string, { readonly tenant: string; readonly shares: ReadonlyMap<string, number> }>();

  constructor(managers: ReadonlyMap<string, ResourceManager>, shares: FairShares) {
    this.#managers = managers;
    this.#shares = shares;
  }

  /** The dominant share of an action at its least units, with what its trajectory will reserve for it. */
  shareOf({ cost, trajectory, service }: ActionSpec): number {
    const least = Object.entries(cost).map(([resource, amount]) => [resource, leastUnits(amount)] as const);
    return Math.max(this.#shares.shareOf(least), this.#shareToReserve(service === undefined ? trajectory : undefined));
  }

  /** Share-seconds that it is expected to cost. */
  demandOf({ cost }: ActionSpec, share: number, seconds = unknownSeconds): number {
    const spent = Object.entries(cost).flatMap(([resource, amount]) =>
      this.#spendingOf(resource, leastUnits(amount)).map((one) => (one.share * one.forMs) / 1000),
    );
    return Math.max(share * seconds, ...spent);
  }

  began({ id, tenant }: Charged, grants: readonly Grant[], expectedSeconds: number | undefined, nowMs: number): void {
    const held = grants.map((grant) => [grant.resource, heldUnits(grant)] as const);
    for (const [resource, units] of held) {
      this.#shares.change(tenant, resource, units, nowMs);
      for (const [n, { share, forMs }] of this.#spendingOf(resource, units).entries())
        this.#shares.spend(tenant, `rate ${n} of ${resource}`, share, nowMs + forMs, nowMs);
    }
    const share = this.#shares.shareOf(held);
    this.#shares.begins(id, { tenant, share, expectedSeconds: expectedSeconds ?? unknownSeconds }, nowMs);
  }

  ended({ id, tenant }: Charged, grants: readonly Grant[], nowMs: number): void {
    for (const grant of grants) this.#shares.change(tenant, grant.resource, -heldUnits(grant), nowMs);
    this.#shares.ends(id, tenant);
  }

  /** To be called when the trajectory may have got a home; its reservation counts from then on. */
  reserves(trajectory: string, tenant: string, nowMs: number): void {
    if (this.#reserved.has(trajectory)) return;
    const shares = new Map<string, number>();
    for (const [resource, manager] of this.#managers) {
      const share = manager.home(trajectory) === undefined ? 0 : (manager.reservedShare?.(trajectory) ?? 0);
      if (share > 0) shares.set(`memory of ${resource}`, share);
    }
    if (shares.size === 0) return;
    this.#reserved.set(trajectory, { tenant, shares });
    for (const [what, share] of shares) this.#shares.hold(tenant, what, share, nowMs);
  }

  gaveBack(trajectory: string, nowMs: number): void {
    const reserved = this.#reserved.get(trajectory);
    this.#reserved.delete(trajectory);
    for (const [what, share] of reserved?.shares ?? []) this.#shares.hold(reserved!.tenant, what, -share, nowMs);
  }

  #spendingOf(resource: string, units: number): readonly Spending[] {
    return this.#managers.get(resource)!.spends?.(units) ?? [];
  }

  #shareToReserve(trajectory: string | undefined): number {
    if (trajectory === undefined || this.#reserved.has(trajectory)) return 0;
    return Math.max(0, ...[...this.#managers.values()].map((manager) => manager.reservedShare?.(trajectory) ?? 0));
  }
}

/** Of its resource, what is nobody else's while it lasts: three devices take an interval of four. */
export const heldUnits = ({ units, devices }: Grant): number => devices?.chunk.size ?? units;
