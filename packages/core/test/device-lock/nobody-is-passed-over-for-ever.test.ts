import fc from "fast-check";
import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect, LockSnapshot } from "../../src/device-lock/lock-messages.ts";
import { acquire, lockOf, open, settle, streams } from "./told-lock.ts";

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

  /** The holder of a device gives it back and asks again. Answers who holds it then. */
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

test("L2: who wants many devices waits until each of them was free once, not until all are free at one instant", () => {
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

test("L5: a timeout on a device that is kept for an overdue party names that party, and whom it waits for", () => {
  const first: Record<string, [string[], number]> = { a: [["0"], 10], b: [["1"], 10], wide: [["0", "1"], 10] };
  const lock = lockOf({ ...first, c: [["1"], 10], d: [["0"], 10], late: [["1"], 10] }, { timeoutMs: 5000 });
  for (const [at, call] of ["a", "b", "wide", "c", "d", "late"].entries()) open(lock, call, at);
  const ask = (call: string, nowMs: number) => settle(lock, lock.acquire({ request: call, call, nowMs }));
  const release = (call: string) =>
    settle(lock, lock.release({ token: lock.snapshot().holds.find((each) => each.call === call)!.token }));
  for (const call of ["a", "b", "wide", "c", "d"]) ask(call, 0);
  for (const call of ["b", "a", "c"]) release(call);
  ask("late", 1000);
  expect(lock.snapshot().holds.map(({ call }) => call)).toEqual(["d"]);
  const refused = lock.tick({ nowMs: 6000 }).find((effect) => effect.type === "refuse" && effect.call === "late");
  expect(refused).toMatchObject({
    error: {
      code: "lock.timeout",
      message:
        "device lock on '1' not granted within 5000 ms: device '1' is kept for 'wide', which others have passed and which waits for device '0' held by 'd'; raise supervision.lockTimeoutMs or check that worker",
    },
  });
});

test("L2: who is overdue keeps nobody off for whom a holder waits that lends nothing", () => {
  for (const maxBypass of [4, 1000]) {
    const devices: Record<string, [string[], number]> = { a: [["0"], 10], b: [["1"], 10], wide: [["0", "1"], 10] };
    const lock = lockOf({ ...devices, producer: [["1"], 10], consumer: [["0"], 10] }, { maxBypass });
    open(lock, "a", 0);
    open(lock, "b", 0);
    open(lock, "wide", 1);
    open(lock, "producer", 2, { produces: streams("x") });
    open(lock, "consumer", 3, { consumes: streams("x") });
    const ask = (call: string) => settle(lock, lock.acquire({ request: call, call, nowMs: 0 }));
    const tokenOf = (call: string) => lock.snapshot().holds.find((each) => each.call === call)!.token;
    const release = (call: string) => settle(lock, lock.release({ token: tokenOf(call) }));
    for (const call of ["a", "b", "wide", "producer"]) ask(call);
    release("b");
    lock.enqueued({ call: "producer", stream: { channel: "x", stream: 0 } });
    release("producer");
    // The producer has had its turn, so its consumer may go.
    ask("consumer");
    ask("producer");
    release("a");
    settle(lock, lock.park({ call: "consumer", stream: { channel: "x", stream: 0 }, on: "take" }));
    for (let batch = 0; batch < 12; batch++) {
      expect(
        lock
          .snapshot()
          .holds.map(({ call }) => call)
          .toSorted(),
        `batch ${batch}`,
      ).toEqual(["consumer", "producer"]);
      release("producer");
      ask("producer");
    }
    release("producer");
    settle(lock, lock.closeCall({ call: "producer" }));
    lock.unpark({ call: "consumer" });
    release("consumer");
    expect(lock.snapshot().holds.map(({ call }) => call)).toEqual(["wide"]);
  }
});
