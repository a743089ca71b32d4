/**
 * The lease under which a run reserves devices that it shares with other runs. A run that shares with nobody needs none.
 *
 * - LL1 no device is reserved without a lease that covers it.
 * - LL2 a lease is released only while no device is held or being prepared, and only when others want it, or when it does not
 *   cover what is asked for.
 * - LL3 when it is to be drained, nothing is reserved until it has been released. Whoever holds devices never waits for
 *   another party's (L2), so they are free in the end.
 */
import type { DeviceLease } from "@treadle/contracts";
import type { LockEffect } from "./lock-messages.ts";

export class LockLease {
  readonly #isNeeded: boolean;
  #isAsked = false;
  #lease: { readonly token: number; readonly devices: ReadonlySet<string> } | undefined;
  #isWanted = false;
  #drains = false;
  /** devices of parties that could have gone on, if it were not for the lease */
  #missing = false;

  constructor(isNeeded: boolean) {
    this.#isNeeded = isNeeded;
  }

  /** All of the run waits for other runs. */
  get isAwaited(): boolean {
    return this.#isAsked;
  }

  granted({ token, devices }: DeviceLease): void {
    if (!this.#isAsked) return;
    this.#isAsked = false;
    this.#lease = { token, devices: new Set(devices) };
    this.#isWanted = false;
    this.#drains = false;
  }

  wanted(token: number, drains: boolean): void {
    if (this.#lease?.token !== token) return;
    this.#isWanted = true;
    this.#drains ||= drains;
  }

  /** LL1, LL3. Remembers what was refused until `settle`. */
  mayReserve(devices: readonly string[]): boolean {
    if (!this.#isNeeded || devices.length === 0) return true;
    const lease = this.#lease;
    if (lease !== undefined && !this.#drains) {
      if (devices.every((device) => lease.devices.has(device))) return true;
      this.#drains = true; // asked for with what it lacks
    }
    this.#missing = true;
    return false;
  }

  /** LL2: once all that can be reserved is. `all`: every device that the run's workers are on. */
  settle(isUnused: boolean, all: () => readonly string[], out: LockEffect[]): void {
    if (!this.#isNeeded) return;
    if (this.#lease !== undefined && isUnused && (this.#drains || this.#isWanted)) {
      out.push({ type: "release-lease", token: this.#lease.token });
      this.#lease = undefined;
    }
    if (this.#missing && this.#lease === undefined && !this.#isAsked) {
      this.#isAsked = true;
      out.push({ type: "ask-lease", devices: all() });
    }
    this.#missing = false;
  }
}
