/**
 * The device lock of a run: a thin shell around `DeviceLockState`, in the runner's process.
 *
 * Owner of: the state machine, the promises of waiting requests, and the token that each call holds now. A worker is told
 * the token of its first grant; when its devices were lent while it waited for data and came back under a new token, that
 * first one still stands for them, as long as the call is the same and its process lives (L3).
 */
import { TreadleError } from "@treadle/contracts";
import type { ChannelEnd } from "../channel/channel-homes.ts";
import { DeviceLockState } from "./device-lock-state.ts";
import type { LockEffect } from "./lock-messages.ts";
import type { WaitEdge } from "./wait-for.ts";

export type LockServiceOptions = {
  readonly timeoutMs: number;
  readonly onProgress: () => void;
  /** moves a worker onto its devices; answers with the bytes that it occupies on each */
  readonly onload: (worker: string) => Promise<number>;
  readonly offload: (worker: string) => Promise<unknown>;
  /** who waits for whom outside of the lock */
  readonly channelWaits: () => readonly WaitEdge[];
};

type OpenCall = {
  readonly input: LockCall;
  /** False while nothing can depend on the call: it has no part in the order before it asks for devices. */
  isOrdered: boolean;
  firstToken: number | undefined;
  token: number | undefined;
  isLent: boolean;
};

export type LockCall = {
  readonly call: string;
  readonly worker: string;
  readonly sequence: number;
  readonly ends: readonly ChannelEnd[];
  /** calls that are granted together, because their ranks work in step */
  readonly gang?: string | undefined;
};

type Waiting = { resolve: (token: number) => void; reject: (error: unknown) => void };

export class LockService {
  readonly #state: DeviceLockState;
  readonly #options: LockServiceOptions;
  readonly #calls = new Map<string, OpenCall>();
  readonly #waiting = new Map<number, Waiting>();
  #lastRequest = 0;

  constructor(options: LockServiceOptions) {
    this.#options = options;
    this.#state = new DeviceLockState({ devices: [], timeoutMs: options.timeoutMs });
  }

  addDevice(device: string, capacityBytes: number): void {
    this.#state.addDevice({ device, capacityBytes });
  }

  addWorker(worker: string, devices: readonly string[]): void {
    this.#state.addWorker({ worker, devices, residentBytes: 0 });
  }

  /** What a worker occupies on each of its devices while loaded. */
  reportMemory(worker: string, residentBytes: number): void {
    this.#state.reportMemory({ worker, residentBytes });
  }

  openCall(input: LockCall): void {
    const open = { input, isOrdered: false, firstToken: undefined, token: undefined, isLent: false };
    this.#calls.set(input.call, open);
    if (input.ends.length > 0 || input.gang !== undefined) this.#order(open);
  }

  closeCall(call: string): void {
    const open = this.#calls.get(call);
    if (!open) return;
    this.#calls.delete(call);
    if (open.isOrdered) this.#apply(this.#state.closeCall({ call }));
  }

  /** The call begins again, on a new process or after a peer's death; it holds nothing any more. */
  startOver(call: string): void {
    const open = this.#calls.get(call);
    if (!open) return;
    this.closeCall(call);
    this.openCall(open.input);
  }

  workerDied(worker: string): void {
    this.#apply(this.#state.workerDied({ worker }));
  }

  /** Resolves with the fencing token once the call's worker holds its devices and is loaded on them. */
  async acquire(request: { call: string; worker: string }): Promise<{ token: number }> {
    const open = this.#calls.get(request.call);
    if (!open || open.input.worker !== request.worker) {
      throw new TreadleError(
        "lock.stale-token",
        `'${request.worker}' asked for its devices in call '${request.call}', which is not open there any more`,
      );
    }
    if (!open.isOrdered) this.#order(open);
    const token = await this.#ask((id) =>
      this.#state.acquire({ request: id, call: request.call, nowMs: performance.now() }),
    );
    open.firstToken = token;
    open.token = token;
    return { token };
  }

  /** Throws `lock.stale-token` for a grant that has been revoked (L3). */
  release(request: { call: string; worker: string; token: number }): void {
    const open = this.#calls.get(request.call);
    const current = open && open.firstToken === request.token ? open.token : undefined;
    if (!open || current === undefined) {
      throw new TreadleError(
        "lock.stale-token",
        `'${request.worker}' released its devices with token '${request.token}', which has been revoked`,
      );
    }
    open.token = undefined;
    open.firstToken = undefined;
    open.isLent = false;
    this.#apply(this.#state.release({ token: current }));
  }

  enqueued(call: string): void {
    this.#apply(this.#state.enqueued({ call }));
  }

  /**
   * A call begins to wait for data or credit. Devices that it holds are lent meanwhile: without that, the producer it
   * waits for could never have them. Await the returned function when the wait is over: then they are held again.
   */
  waits(call: string, end: ChannelEnd, on: "take" | "put"): () => Promise<void> {
    const open = this.#calls.get(call);
    if (!open) return () => Promise.resolve();
    const lends = open.token !== undefined && !open.isLent;
    if (lends) {
      open.isLent = true;
      this.#apply(this.#state.lend({ token: open.token as number }));
    }
    this.#apply(this.#state.park({ call, stream: { channel: end.channel, stream: end.stream }, on }));
    return async () => {
      this.#state.unpark({ call });
      if (!lends || this.#calls.get(call) !== open || !open.isLent) return;
      open.token = await this.#ask((id) => this.#state.reclaim({ request: id, call, nowMs: performance.now() }));
      open.isLent = false;
    };
  }

  /** L5. */
  tick(nowMs: number): void {
    this.#apply(this.#state.tick({ nowMs, edges: this.#options.channelWaits() }));
  }

  edges(): WaitEdge[] {
    return this.#state.edges();
  }

  snapshot(): ReturnType<DeviceLockState["snapshot"]> {
    return this.#state.snapshot();
  }

  /** Refuses everybody who waits; used when the run ends. */
  fail(error: unknown): void {
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }

  #order(open: OpenCall): void {
    const { call, worker, sequence, gang, ends } = open.input;
    const streams = (role: ChannelEnd["role"]) =>
      ends.filter((end) => end.role === role).map(({ channel, stream }) => ({ channel, stream }));
    this.#state.openCall({ call, worker, sequence, gang, consumes: streams("source"), produces: streams("sink") });
    open.isOrdered = true;
  }

  #ask(start: (request: number) => LockEffect[]): Promise<number> {
    const request = ++this.#lastRequest;
    return new Promise((resolve, reject) => {
      this.#waiting.set(request, { resolve, reject });
      this.#apply(start(request));
    });
  }

  #apply(effects: readonly LockEffect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "grant":
          this.#options.onProgress();
          this.#settle(effect.request)?.resolve(effect.token);
          break;
        case "refuse":
          this.#settle(effect.request)?.reject(effect.error);
          break;
        case "onload": {
          const { worker } = effect;
          this.#options.onload(worker).then(
            (residentBytes) => {
              this.#state.reportMemory({ worker, residentBytes });
              this.#apply(this.#state.onloaded({ worker }));
            },
            (error: unknown) => this.#swapFailed(error, () => this.#state.onloadFailed({ worker, error })),
          );
          break;
        }
        case "offload": {
          const { worker } = effect;
          this.#options.offload(worker).then(
            () => this.#apply(this.#state.offloaded({ worker })),
            (error: unknown) => this.#swapFailed(error, () => this.#state.offloadFailed({ worker, error })),
          );
          break;
        }
        case "stale":
          break; // the holder died or lost the call; whoever asks with that token is told by release
      }
    }
  }

  /** When the worker went away meanwhile, its death is what counts: it frees the memory, and whoever waits goes on. */
  #swapFailed(error: unknown, refuse: () => LockEffect[]): void {
    const isGone = error instanceof TreadleError && error.disposition === "retryable";
    if (!isGone) this.#apply(refuse());
  }

  #settle(request: string | number): Waiting | undefined {
    const waiting = this.#waiting.get(request as number);
    this.#waiting.delete(request as number);
    return waiting;
  }
}
