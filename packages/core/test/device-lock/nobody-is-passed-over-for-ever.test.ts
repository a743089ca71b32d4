import fc from "fast-check";
import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect, LockSnapshot } from "../../src/device-lock/lock-messages.ts";
import { acquire, lockOf, open, settle } from "./told-lock.ts";

/** Two calls that take turns on each device, so that it is never free for longer than an instant, and one that wants all devices. */
class Crossing {
  readonly #lock: DeviceLockState;
  readonly #numDevices: number;
  #lastRequest = 0;

  constructor(numDevices: number) {
    this.#numDevices = numDevices;
    const devices = Array.from({ length: numDevices }, (_, i) => `d${i}`);
    this.#lock = new DeviceLockState({
      devices: devices.map((device) => ({ device, capacityBytes: 100 })),
      maxBypass: 1000,
    });
    this.#join("wide", devices, 0);
    for (const [i, device] of devices.entries())
      for (const half of ["a", "b"]) {
        this.#join(`${half}${i}`, [device], 1);
        this.ask(`${half}${i}`);
      }
  }

  ask(call: string): void {
    this.#follow(this.#lock.acquire({ request: ++this.#lastRequest, call, nowMs: 0 }));
  }

  /** Whoever has the device gives it back and asks again; says who has it then. */
  turn(device: number): string {
    const { call, token } = this.#holding(device)!;
    this.#follow(this.#lock.release({ token }));
    this.ask(call);
    return this.holderOf(device);
  }

  holderOf(device: number): string {
    return this.#holding(device)?.call ?? "nobody";
  }

  #holding(device: number): LockSnapshot["holds"][number] | undefined {
    return this.#lock.snapshot().holds.find(({ call }) => ["wide", `a${device}`, `b${device}`].includes(call));
  }

  get holders(): string[] {
    return Array.from({ length: this.#numDevices }, (_, i) => this.holderOf(i));
  }

  #join(worker: string, devices: readonly string[], sequence: number): void {
    this.#lock.addWorker({ worker, devices, residentBytes: 1 });
    this.#lock.openCall({ call: worker, worker, sequence, consumes: [], produces: [] });
  }

  #follow(effects: LockEffect[]): void {
    for (const effect of effects)
      if (effect.type === "onload") this.#follow(this.#lock.onloaded({ worker: effect.worker }));
  }
}

test("who wants many devices waits until each of them was free once, not until all are free at one instant", () => {
  fc.assert(
    fc.property(fc.integer({ min: 2, max: 5 }), fc.infiniteStream(fc.nat()), (numDevices, turns) => {
      const lock = new Crossing(numDevices);
      lock.ask("wide");
      const freed = new Set<number>();
      const next = (): number => (turns.next().value as number) % numDevices;
      while (freed.size < numDevices) {
        const device = next();
        freed.add(device);
        expect(lock.turn(device), "nothing is kept idle before").toMatch(/^[ab]/);
      }
      const left = new Set(freed);
      while (left.size > 0) {
        const device = next();
        if (!left.delete(device)) continue;
        expect(lock.turn(device)).toBe(left.size > 0 ? "nobody" : "wide");
      }
      expect(new Set(lock.holders)).toEqual(new Set(["wide"]));
      expect(lock.turn(0), "and again only after the others").toMatch(/^[ab]/);
    }),
  );
});

test("a call that re-acquires in rounds passes a later call at most maxBypass times", () => {
  const lock = lockOf({ p: [["0"], 10], q: [["0"], 10], c: [["0"], 10] }, { maxBypass: 2 });
  open(lock, "p", 1);
  open(lock, "q", 2);
  open(lock, "c", 3);
  settle(lock, lock.acquire({ request: 1, call: "p", nowMs: 0 }));
  acquire(lock, "c");
  const order: string[] = [];
  let holder = "p";
  for (let turn = 0; turn < 4; turn++) {
    const next = holder === "p" ? "q" : "p";
    acquire(lock, next);
    const token = lock.snapshot().holds[0]?.token as number;
    settle(lock, lock.release({ token }));
    holder = lock.snapshot().holds[0]?.call as string;
    order.push(holder);
    if (holder === "c") break;
  }
  expect(order).toEqual(["q", "p", "c"]);
});
