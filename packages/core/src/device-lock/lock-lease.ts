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
 */
import type { DeviceLease } from "@treadle/contracts";
import type { LockEffect } from "./lock-messages.ts";

type Lease = {
  readonly token: number;
  readonly devices: ReadonlySet<string>;
  isWanted: boolean;
  drains: boolean;
};

export class LockLease {
  readonly #isNeeded: boolean;
  readonly #leases = new Map<number, Lease>();
  readonly #leaseOf = new Map<string, Lease>();
  /** what was asked for, and not granted yet */
  readonly #asked = new Set<ReadonlySet<string>>();
  /** devices of each party that could have gone on, if it were not for leases */
  #missing: (readonly string[])[] = [];

  constructor(isNeeded: boolean) {
    this.#isNeeded = isNeeded;
  }

  /** Some of the run waits for other runs. */
  get isAwaited(): boolean {
    return this.#asked.size > 0;
  }

  granted({ token, devices }: DeviceLease): void {
    const asked = [...this.#asked].find((each) => each.size === devices.length && devices.every((id) => each.has(id)));
    if (asked === undefined) return;
    this.#asked.delete(asked);
    const lease = { token, devices: asked, isWanted: false, drains: false };
    this.#leases.set(token, lease);
    for (const device of devices) this.#leaseOf.set(device, lease);
  }

  wanted(token: number, drains: boolean): void {
    const lease = this.#leases.get(token);
    if (lease === undefined) return;
    lease.isWanted = true;
    lease.drains ||= drains;
  }

  /** LL1, LL3. Remembers what was refused until `settle`. */
  mayReserve(devices: readonly string[]): boolean {
    if (!this.#isNeeded) return true;
    const mayGo = devices.every((device) => this.#leaseOf.get(device)?.drains === false);
    if (!mayGo) this.#missing.push(devices);
    return mayGo;
  }

  /** LL2: once all that can be reserved is. */
  settle(holders: ReadonlyMap<string, unknown>, out: LockEffect[]): void {
    const missing = this.#missing;
    this.#missing = [];
    // What is released now may be missing to a party that has leases of its other devices.
    this.#releaseFree(holders, out);
    for (const devices of missing) {
      const leases = devices.map((device) => this.#leaseOf.get(device));
      if (leases.includes(undefined)) for (const lease of leases) if (lease) lease.drains = true;
    }
    this.#releaseFree(holders, out);
    for (const devices of missing) if (devices.every((device) => this.#isFree(device))) this.#ask(devices, out);
  }

  #releaseFree(holders: ReadonlyMap<string, unknown>, out: LockEffect[]): void {
    for (const lease of this.#leases.values()) {
      if (!lease.drains && !lease.isWanted) continue;
      if ([...lease.devices].every((device) => !holders.has(device))) this.#release(lease, out);
    }
  }

  #isFree(device: string): boolean {
    return !this.#leaseOf.has(device) && ![...this.#asked].some((asked) => asked.has(device));
  }

  #release(lease: Lease, out: LockEffect[]): void {
    this.#leases.delete(lease.token);
    for (const device of lease.devices) this.#leaseOf.delete(device);
    out.push({ type: "release-lease", token: lease.token });
  }

  #ask(devices: readonly string[], out: LockEffect[]): void {
    this.#asked.add(new Set(devices));
    out.push({ type: "ask-lease", devices });
  }
}
