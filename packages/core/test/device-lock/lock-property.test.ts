import { ReleasableTag } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LockEffect } from "../../src/device-lock/lock-messages.ts";
import { findCycle } from "../../src/device-lock/wait-for.ts";

const capacityBytes = 100;
const timeoutMs = 50;

/** All of a worker that tells no tags, or what has one. */
type PartModel = {
  readonly tag: ReleasableTag | undefined;
  readonly bytes: number;
  inMemory: "no" | "coming" | "yes" | "going";
};
type WorkerModel = {
  readonly name: string;
  readonly devices: readonly string[];
  /** of its parts, and what stays when they are gone */
  readonly bytes: number;
  readonly residual: number;
  readonly parts: readonly PartModel[];
  /** what stays now: with tags from the first load on, else from the first release on */
  left: number;
  isDead: boolean;
};
type CallModel = {
  readonly id: string;
  readonly sink: { readonly channel: string; readonly stream: number };
  readonly worker: WorkerModel;
  readonly gang: string | undefined;
  /** what it needs of its worker; undefined: all */
  readonly tags: readonly ReleasableTag[] | undefined;
  token: number | undefined;
  oldToken: number | undefined;
  requests: Set<number>;
  isLent: boolean;
  isOpen: boolean;
};

/** Arbitrary inputs in arbitrary order against a ledger of who holds and who is loaded. */
class RandomLock {
  readonly lock = new DeviceLockState({
    devices: ["d0", "d1", "d2"].map((device) => ({ device, capacityBytes })),
    timeoutMs,
    maxBypass: 3,
  });
  readonly workers: WorkerModel[];
  readonly calls: CallModel[] = [];
  readonly swaps: { readonly worker: WorkerModel; readonly parts: PartModel[]; readonly kind: "onload" | "offload" }[] =
    [];
  nowMs = 0;
  #lastRequest = 0;
  #lastToken = 0;

  constructor(specs: readonly WorkerSpec[], useGangs: boolean) {
    this.workers = specs.map(({ devices, bytes, residual, shares }, i) => {
      const movable = Math.max(0, bytes - residual);
      const whole = [{ tag: undefined, bytes: movable, inMemory: "no" as const }];
      return {
        name: `w${i}`,
        devices: [...new Set(devices.map((d) => `d${d}`))],
        bytes,
        residual: Math.min(residual, bytes),
        parts: shares ? partsOf(movable, shares) : whole,
        left: 0,
        isDead: false,
      };
    });
    for (const [i, worker] of this.workers.entries()) {
      this.#join(worker);
      for (const half of [0, 1]) {
        // Two calls a worker; neighbours may form gangs if they fit together.
        const mate = this.workers[i ^ 1];
        const fits = mate !== undefined && mate.bytes + worker.bytes <= capacityBytes;
        const gang = useGangs && half === 0 && fits ? `gang ${i >> 1}` : undefined;
        const id = `${worker.name}#${half}`;
        const sink = { channel: `c${i}`, stream: half };
        this.lock.openCall({
          call: id,
          worker: worker.name,
          sequence: half * 10 + i,
          consumes: i > 0 ? [{ channel: `c${i - 1}`, stream: half }] : [],
          produces: [sink],
          gang,
        });
        this.calls.push({
          id,
          sink,
          worker,
          gang,
          tags: specs[i]?.asks[half],
          token: undefined,
          oldToken: undefined,
          requests: new Set(),
          isLent: false,
          isOpen: true,
        });
      }
    }
  }

  step(op: number, at: number): void {
    const call = this.calls[at % this.calls.length] as CallModel;
    const { id, worker } = call;
    this.nowMs += at % 3;
    const canAsk = call.isOpen && !worker.isDead && call.token === undefined && call.requests.size === 0;
    if (op < 30) {
      if (!canAsk) return;
      const request = ++this.#lastRequest;
      call.requests.add(request);
      const input = { request, call: id, nowMs: this.nowMs, tags: call.tags };
      this.#apply(call.isLent ? this.lock.reclaim(input) : this.lock.acquire(input));
    } else if (op < 50) this.#release(call);
    else if (op < 58) {
      if (call.token === undefined) return;
      const { token } = call;
      call.oldToken = token;
      call.token = undefined;
      call.isLent = true;
      this.#apply(this.lock.lend({ token }));
    } else if (op < 84) this.#swap(at, true);
    else if (op < 88) this.#swap(at, false);
    else if (op < 91) this.#die(worker);
    else if (op < 93) {
      const [request] = call.requests;
      if (request === undefined) return;
      call.requests.delete(request);
      call.isLent = false;
      this.#apply(this.lock.cancel({ request }));
    } else if (op < 95) {
      if (!call.isOpen || at % 2) return;
      this.#close(call);
    } else if (op < 97) this.#apply(this.lock.enqueued({ call: id, stream: call.sink }));
    else if (op < 98 && call.isOpen) {
      this.#apply(
        this.lock.park({
          call: id,
          stream: { channel: `c${at % this.workers.length}`, stream: 0 },
          on: at % 2 ? "take" : "put",
        }),
      );
    } else this.#apply(this.lock.tick({ nowMs: this.nowMs }));
    this.check();
  }

  #release(call: CallModel): void {
    if (call.token === undefined) return;
    const { token } = call;
    call.token = undefined;
    call.oldToken = token;
    this.#apply(this.lock.release({ token }));
    expect(this.lock.validate(token)?.code).toBe("lock.stale-token");
  }

  #close(call: CallModel): void {
    call.isOpen = false;
    call.oldToken = call.token ?? call.oldToken;
    call.token = undefined;
    call.isLent = false;
    call.requests.clear();
    this.#apply(this.lock.closeCall({ call: call.id }));
  }

  #swap(at: number, succeeds: boolean): void {
    const [swap] = this.swaps.splice(at % Math.max(1, this.swaps.length), 1);
    if (!swap) return;
    const { worker, parts, kind } = swap;
    for (const part of parts) {
      expect(part.inMemory).toBe(kind === "onload" ? "coming" : "going");
      part.inMemory = (kind === "onload") === succeeds ? "yes" : "no";
    }
    if (kind === "offload" && succeeds) worker.left = worker.residual;
    const residualBytes = occupied(worker);
    const input = { worker: worker.name, residualBytes, error: new Error("no room") };
    if (kind === "onload") this.#apply(succeeds ? this.lock.onloaded(input) : this.lock.onloadFailed(input));
    else this.#apply(succeeds ? this.lock.offloaded(input) : this.lock.offloadFailed(input));
  }

  #join({ name, devices, bytes, parts }: WorkerModel): void {
    this.lock.addWorker({ worker: name, devices, residentBytes: bytes });
    const tags = parts.flatMap(({ tag, bytes }) =>
      tag ? [{ tag, bytes, releaseSeconds: bytes % 3, restoreSeconds: 1 }] : [],
    );
    this.lock.reportMemory({ worker: name, residentBytes: bytes, tags });
  }

  #die(worker: WorkerModel): void {
    worker.isDead = !worker.isDead;
    if (!worker.isDead) {
      this.#join(worker);
      return;
    }
    for (const part of worker.parts) part.inMemory = "no";
    worker.left = 0;
    for (let i = this.swaps.length - 1; i >= 0; i--) if (this.swaps[i]?.worker === worker) this.swaps.splice(i, 1);
    for (const call of this.calls) {
      if (call.worker !== worker) continue;
      call.oldToken = call.token ?? call.oldToken;
      call.token = undefined;
      call.isLent = false;
      call.requests.clear();
    }
    this.#apply(this.lock.workerDied({ worker: worker.name }));
  }

  #apply(effects: readonly LockEffect[]): void {
    for (const effect of effects) {
      if (effect.type === "stale") throw effect.error;
      if (effect.type === "onload" || effect.type === "offload") {
        const worker = this.workers.find(({ name }) => name === effect.worker) as WorkerModel;
        expect(
          this.swaps.some((swap) => swap.worker === worker),
          "one swap at a time",
        ).toBe(false);
        const parts = worker.parts.filter(({ tag }) => tag === undefined || effect.tags?.includes(tag));
        expect(parts).not.toEqual([]);
        for (const part of parts) {
          expect(part.inMemory).toBe(effect.type === "onload" ? "no" : "yes");
          part.inMemory = effect.type === "onload" ? "coming" : "going";
        }
        if (effect.type === "onload" && effect.tags) worker.left = worker.residual;
        this.swaps.push({ worker, parts, kind: effect.type });
        for (const call of this.calls) {
          if (call.worker === worker)
            expect(call.token, "L4: nobody is moved while it holds its devices").toBeUndefined();
        }
        continue;
      }
      if (!("call" in effect)) throw new Error("it shares with no other run");
      const call = this.calls.find(({ id }) => id === effect.call) as CallModel;
      expect(call.requests.delete(effect.request as number), "only who waits is answered").toBe(true);
      if (effect.type === "refuse") {
        call.isLent = false;
        continue;
      }
      expect(effect.token, "L3: tokens rise").toBeGreaterThan(this.#lastToken);
      this.#lastToken = effect.token;
      call.token = effect.token;
      call.isLent = false;
      if (call.worker.devices.length > 0)
        for (const { tag, inMemory } of call.worker.parts)
          if (tag === undefined || (call.tags ?? [tag]).includes(tag))
            expect(inMemory, "MT3, L4: what is asked for is loaded before the grant").toBe("yes");
    }
  }

  check(): void {
    const active = this.calls.filter((call) => call.token !== undefined);
    for (const a of active) {
      for (const b of active) {
        if (a === b || (a.gang !== undefined && a.gang === b.gang)) continue;
        if (a.worker.devices.some((device) => b.worker.devices.includes(device)))
          throw new Error(`L1: ${a.id} and ${b.id} hold the same device`);
      }
    }
    for (const device of ["d0", "d1", "d2"]) {
      let bytes = 0;
      for (const worker of this.workers) if (worker.devices.includes(device)) bytes += occupied(worker);
      if (bytes > capacityBytes) throw new Error(`L1: the memory of ${device} overflows`);
    }
    for (const { oldToken, token } of this.calls) {
      if (oldToken !== undefined && !this.lock.validate(oldToken)) throw new Error("L3: a revoked token is accepted");
      if (token !== undefined && this.lock.validate(token)) throw new Error("L3: a valid token is refused");
    }
  }

  /** Everybody who holds or has lent lets go, swaps succeed, nobody parks: then all requests must be granted. */
  drain(): void {
    for (let round = 0; round < 500; round++) {
      for (const worker of this.workers) if (worker.isDead) this.#die(worker);
      while (this.swaps.length > 0) {
        this.#swap(0, true);
        this.check();
      }
      for (const call of this.calls) this.#release(call);
      for (const call of this.calls) if (call.isOpen && call.requests.size === 0) this.#close(call);
      if (this.calls.every((call) => !call.isOpen)) return;
    }
    throw new Error(
      `no progress: ${JSON.stringify([this.lock.snapshot(), this.lock.edges(), findCycle(this.lock.edges())])}`,
    );
  }
}

type WorkerSpec = {
  readonly devices: readonly number[];
  readonly bytes: number;
  readonly residual: number;
  /** of tags; undefined: it is one piece */
  readonly shares: readonly [number, number, number] | undefined;
  /** the tags that each of its calls needs */
  readonly asks: readonly (readonly ReleasableTag[] | undefined)[];
};

function partsOf(movable: number, shares: readonly [number, number, number]): PartModel[] {
  const total = Math.max(1, shares[0] + shares[1] + shares[2]);
  const [weights, cache] = shares.map((share) => Math.floor((movable * share) / total)) as [number, number, number];
  const parts = { weights, cache, optimiser: movable - weights - cache };
  return ReleasableTag.options.map((tag) => ({ tag, bytes: parts[tag], inMemory: "no" }));
}

/** What a worker has on its devices, and may have before a swap is over. */
function occupied({ parts, bytes: all, left }: WorkerModel): number {
  const there = parts.filter(({ inMemory }) => inMemory !== "no");
  if (there.some(({ tag }) => tag === undefined)) return all;
  return there.reduce((sum, { bytes }) => sum + bytes, left);
}

test("any order of requests, loans, deaths, failed swaps and timeouts keeps L1, L3, L4 and MT3, and nobody waits for ever", () => {
  const workers = fc.array(
    fc.record({
      devices: fc.array(fc.nat(2), { minLength: 1, maxLength: 3 }),
      bytes: fc.integer({ min: 5, max: 95 }),
      residual: fc.oneof(fc.constant(0), fc.nat(30)),
      shares: fc.option(fc.tuple(fc.nat(3), fc.nat(3), fc.nat(3)), { nil: undefined }),
      asks: fc.array(fc.option(fc.subarray([...ReleasableTag.options], { minLength: 1 }), { nil: undefined }), {
        minLength: 2,
        maxLength: 2,
      }),
    }),
    { minLength: 2, maxLength: 6 },
  );
  const script = fc.array(fc.tuple(fc.nat(99), fc.nat(1000)), { minLength: 5, maxLength: 120 });
  fc.assert(
    fc.property(workers, fc.boolean(), script, (specs, useGangs, steps) => {
      const run = new RandomLock(specs, useGangs);
      for (const [op, at] of steps) run.step(op, at);
      run.drain();
      expect(run.lock.snapshot()).toMatchObject({ holds: [], waiting: [] });
      expect(run.lock.snapshot().devices.every(({ holders }) => holders.length === 0)).toBe(true);
    }),
    { numRuns: 1500 },
  );
});
