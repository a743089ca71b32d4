import fc from "fast-check";
import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect } from "../../src/device-lock/lock-messages.ts";

const devices = ["d0", "d1", "d2", "d3"];

type Call = {
  readonly id: string;
  readonly worker: number;
  isOpen: boolean;
  isLent: boolean;
  token: number | undefined;
  request: number | undefined;
};
type WorkerSpec = {
  readonly devices: readonly number[];
  readonly bytes: number;
  readonly sources: readonly number[];
  readonly sinks: readonly number[];
  readonly isInGang: boolean;
  readonly lateness: number;
};

/**
 * Two locks that are told the same. The lock remembers which parties may not go, and by what is told which of them it has
 * to look at again; the second one is made to look at all of them each time.
 */
class Twins {
  readonly #lock: DeviceLockState;
  readonly #thorough: DeviceLockState;
  readonly #specs: readonly WorkerSpec[];
  readonly #calls: Call[] = [];
  readonly #swaps: { readonly worker: string; readonly type: "onload" | "offload" }[] = [];
  #lastRequest = 0;
  #nowMs = 0;

  constructor(specs: readonly WorkerSpec[], maxBypass: number) {
    const options = { devices: devices.map((device) => ({ device, capacityBytes: 100 })), timeoutMs: 500, maxBypass };
    this.#lock = new DeviceLockState(options);
    this.#thorough = new DeviceLockState(options);
    this.#specs = specs;
    const idle = { call: "idle", worker: "idle", sequence: 1000, consumes: [], produces: [] };
    for (const lock of [this.#lock, this.#thorough]) {
      lock.addWorker({ worker: "idle", devices: ["d0"], residentBytes: 0 });
      lock.openCall(idle);
    }
    for (const i of specs.keys()) this.#addWorker(i);
    for (const i of specs.keys()) this.#open(i);
  }

  step(op: number, at: number): void {
    const call = this.#calls[at % this.#calls.length] as Call;
    const { id, worker, token } = call;
    this.#nowMs += at % 3;
    if (op < 28) {
      if (!call.isOpen || token !== undefined || call.request !== undefined) return;
      const input = { request: ++this.#lastRequest, call: id, nowMs: this.#nowMs };
      call.request = input.request;
      const isReclaim = call.isLent;
      this.#tell((lock) => (isReclaim ? lock.reclaim(input) : lock.acquire(input)));
    } else if (op < 38 && token !== undefined) {
      call.token = undefined;
      this.#tell((lock) => lock.release({ token }));
    } else if (op < 48 && token !== undefined) {
      call.token = undefined;
      call.isLent = true;
      this.#tell((lock) => lock.lend({ token }));
    } else if (op < 70) this.#swap(at);
    else if (op < 80) {
      const on = at % 3 === 0 ? ("put" as const) : ("take" as const);
      this.#tell((lock) => lock.park({ call: id, stream: streamOf(at % 4), on }));
    } else if (op < 85) {
      this.#tell((lock) => {
        lock.unpark({ call: id });
        return [];
      });
    } else if (op < 89) this.#tell((lock) => lock.enqueued({ call: id, stream: streamOf(at % 4) }));
    else if (op < 92) {
      call.isOpen = false;
      letGo(call);
      this.#tell((lock) => lock.closeCall({ call: id }));
      this.#open(worker);
    } else if (op < 94) this.#die(worker);
    else if (op < 96 && call.request !== undefined) {
      const { request } = call;
      letGo(call);
      this.#tell((lock) => lock.cancel({ request }));
    } else this.#tell((lock) => lock.tick({ nowMs: this.#nowMs }));
  }

  #addWorker(i: number): void {
    const spec = this.#specs[i] as WorkerSpec;
    const input = {
      worker: `w${i}`,
      devices: [...new Set(spec.devices)].map((d) => `d${d}`),
      residentBytes: spec.bytes,
    };
    for (const lock of [this.#lock, this.#thorough]) lock.addWorker(input);
  }

  #open(worker: number): void {
    const { sources, sinks, isInGang, lateness } = this.#specs[worker] as WorkerSpec;
    const id = `c${this.#calls.length}`;
    const input = {
      call: id,
      worker: `w${worker}`,
      sequence: this.#calls.length + lateness,
      consumes: [...new Set(sources)].map(streamOf),
      produces: [...new Set(sinks)].map(streamOf),
      gang: isInGang ? "gang" : undefined,
    };
    for (const lock of [this.#lock, this.#thorough]) lock.openCall(input);
    this.#calls.push({ id, worker, isOpen: true, isLent: false, token: undefined, request: undefined });
  }

  #swap(at: number): void {
    const [swap] = this.#swaps.splice(at % Math.max(1, this.#swaps.length), 1);
    if (!swap) return;
    const input = { worker: swap.worker, error: new Error("no room") };
    const fails = at % 11 === 0;
    this.#tell((lock) => {
      if (swap.type === "onload") return fails ? lock.onloadFailed(input) : lock.onloaded(input);
      return fails ? lock.offloadFailed(input) : lock.offloaded(input);
    });
  }

  #die(worker: number): void {
    for (const call of this.#calls) if (call.worker === worker) letGo(call);
    for (let i = this.#swaps.length - 1; i >= 0; i--)
      if (this.#swaps[i]?.worker === `w${worker}`) this.#swaps.splice(i, 1);
    this.#tell((lock) => lock.workerDied({ worker: `w${worker}` }));
    this.#addWorker(worker);
  }

  #tell(input: (lock: DeviceLockState) => LockEffect[]): void {
    // Whoever has an open call has moved: the lock must look at everybody again.
    this.#thorough.addWorker({ worker: "idle", devices: ["d0"], residentBytes: 0 });
    const effects = input(this.#lock);
    expect(effects.map(inWords)).toEqual(input(this.#thorough).map(inWords));
    expect(this.#lock.snapshot().waiting).toEqual(this.#thorough.snapshot().waiting);
    for (const effect of effects) {
      if (effect.type === "stale") throw effect.error;
      if (effect.type === "onload" || effect.type === "offload") this.#swaps.push(effect);
      else if (effect.type === "grant" || effect.type === "refuse") {
        const call = this.#calls.find(({ id }) => id === effect.call) as Call;
        letGo(call);
        if (effect.type === "grant") call.token = effect.token;
      }
    }
  }
}

const streamOf = (channel: number) => ({ channel: `channel ${channel}`, stream: 0 });

const inWords = (effect: LockEffect) =>
  "error" in effect ? { ...effect, error: `${effect.error.code}: ${effect.error.message}` } : effect;

function letGo(call: Call): void {
  call.token = undefined;
  call.isLent = false;
  call.request = undefined;
}

test("a lock that looks at few parties grants what one that looks at all of them grants, circles through data included (L2)", () => {
  const ends = fc.array(fc.nat(3), { maxLength: 2 });
  const workers = fc.array(
    fc.record({
      devices: fc.array(fc.nat(3), { minLength: 1, maxLength: 2 }),
      bytes: fc.integer({ min: 5, max: 45 }),
      sources: ends,
      sinks: ends,
      isInGang: fc.nat(4).map((n) => n === 0),
      lateness: fc.nat(4),
    }),
    { minLength: 3, maxLength: 9 },
  );
  const script = fc.array(fc.tuple(fc.nat(99), fc.nat(1000)), { minLength: 20, maxLength: 200 });
  fc.assert(
    fc.property(workers, script, fc.integer({ min: 1, max: 4 }), (specs, steps, maxBypass) => {
      const twins = new Twins(specs, maxBypass);
      for (const [op, at] of steps) twins.step(op, at);
    }),
    { numRuns: 600 },
  );
});
