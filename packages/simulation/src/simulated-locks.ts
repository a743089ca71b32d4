/**
 * The device lock on virtual time: what `LockService` of the runtime does with the same state machine. A call that waits
 * for data or credit lends its devices and asks for them again when it is served; onload and offload take the time that
 * the profile measured.
 */
import { DeviceLockState, type LockEffect } from "@treadle/runtime/state-machines";
import type { EventQueue } from "./event-queue.ts";
import type { Invariants } from "./invariants.ts";
import type { ChannelEnd } from "./simulated-channels.ts";

export type LockedWorker = {
  readonly worker: string;
  readonly devices: readonly string[];
  /** on each of its devices, while loaded */
  readonly bytes: number;
  readonly onloadMs: number;
  readonly offloadMs: number;
};

export type LockedCall = {
  readonly call: string;
  readonly worker: string;
  readonly sequence: number;
  readonly ends: readonly ChannelEnd[];
  /** calls that are granted together, because their ranks work in step */
  readonly gang: string | undefined;
};

export type SimulatedLocksOptions = {
  readonly queue: EventQueue;
  /** bytes by device */
  readonly memory: ReadonlyMap<string, number>;
  readonly workers: readonly LockedWorker[];
  readonly invariants: Invariants;
  readonly onGrant: (call: string) => void;
  readonly onSwap: (worker: string, kind: "onload" | "offload", startMs: number) => void;
};

type OpenCall = { token: number | undefined; isLent: boolean };

export class SimulatedLocks {
  readonly #options: SimulatedLocksOptions;
  readonly #state: DeviceLockState;
  readonly #workers: ReadonlyMap<string, LockedWorker>;
  readonly #calls = new Map<string, OpenCall>();
  #lastRequest = 0;

  constructor(options: SimulatedLocksOptions) {
    this.#options = options;
    const devices = [...options.memory].map(([device, capacityBytes]) => ({ device, capacityBytes }));
    this.#state = new DeviceLockState({ devices });
    this.#workers = new Map(options.workers.map((each) => [each.worker, each]));
    for (const { worker, devices: own, bytes } of options.workers)
      this.#state.addWorker({ worker, devices: own, residentBytes: bytes });
  }

  openCall({ call, worker, sequence, ends, gang }: LockedCall): void {
    const streams = (role: ChannelEnd["role"]) =>
      ends.filter((end) => end.role === role).map(({ channel, stream }) => ({ channel, stream }));
    this.#calls.set(call, { token: undefined, isLent: false });
    this.#state.openCall({ call, worker, sequence, gang, consumes: streams("source"), produces: streams("sink") });
  }

  closeCall(call: string): void {
    if (this.#calls.delete(call)) this.#apply(this.#state.closeCall({ call }));
  }

  /** `onGrant` says when the call's worker holds its devices and is loaded on them; it may be called before this returns. */
  acquire(call: string): void {
    this.#apply(this.#state.acquire({ request: ++this.#lastRequest, call, nowMs: this.#options.queue.nowMs }));
  }

  release(call: string): void {
    const open = this.#calls.get(call);
    if (open?.token === undefined) return;
    const { token } = open;
    open.token = undefined;
    this.#options.invariants.freed(call, true);
    this.#apply(this.#state.release({ token }));
  }

  enqueued(call: string): void {
    this.#options.invariants.enqueued(call);
    this.#apply(this.#state.enqueued({ call }));
  }

  /** The call begins to wait for data or credit: what it holds is lent. */
  waits(call: string, end: Omit<ChannelEnd, "role">, on: "take" | "put"): void {
    const open = this.#calls.get(call);
    if (!open) return;
    if (open.token !== undefined && !open.isLent) {
      open.isLent = true;
      this.#options.invariants.freed(call, false);
      this.#apply(this.#state.lend({ token: open.token }));
    }
    this.#apply(this.#state.park({ call, stream: { channel: end.channel, stream: end.stream }, on }));
  }

  /** The wait is over. False when the call had lent its devices and goes on with the next grant. */
  served(call: string): boolean {
    const open = this.#calls.get(call);
    if (!open) return true;
    this.#state.unpark({ call });
    if (!open.isLent) return true;
    this.#apply(this.#state.reclaim({ request: ++this.#lastRequest, call, nowMs: this.#options.queue.nowMs }));
    return false;
  }

  edges(): ReturnType<DeviceLockState["edges"]> {
    return this.#state.edges();
  }

  #apply(effects: readonly LockEffect[]): void {
    const { queue, invariants, onGrant, onSwap } = this.#options;
    for (const effect of effects) {
      switch (effect.type) {
        case "grant": {
          const open = this.#calls.get(effect.call) as OpenCall;
          invariants.granted(effect.call, effect.token, open.isLent);
          open.token = effect.token;
          open.isLent = false;
          onGrant(effect.call);
          break;
        }
        case "refuse":
          throw effect.error;
        case "stale":
          throw new Error(`L3: ${effect.error.message}`);
        case "onload": {
          const { worker } = effect;
          const { devices, bytes, onloadMs } = this.#workers.get(worker) as LockedWorker;
          const startMs = queue.nowMs;
          invariants.onloads(worker, devices, bytes);
          queue.after(onloadMs, () => {
            invariants.onloaded(worker);
            onSwap(worker, "onload", startMs);
            this.#apply(this.#state.onloaded({ worker }));
          });
          break;
        }
        case "offload": {
          const { worker } = effect;
          const { devices, bytes, offloadMs } = this.#workers.get(worker) as LockedWorker;
          const startMs = queue.nowMs;
          invariants.offloads(worker);
          queue.after(offloadMs, () => {
            invariants.offloaded(devices, bytes);
            onSwap(worker, "offload", startMs);
            this.#apply(this.#state.offloaded({ worker }));
          });
          break;
        }
      }
    }
  }
}
