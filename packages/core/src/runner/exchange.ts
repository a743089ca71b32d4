/**
 * What calls hold and wait for: the channels of a run and its device lock, as one machine.
 *
 * Owner of: the state of every channel, the lock, and, for each open call, its ends, its token, and whether it holds
 * items. What an input changes on several of them, it changes in the same turn, so no death can come between.
 *
 * - EX1 a call's ends and its place in the lock's order are registered before its callee runs.
 * - EX2 (C6) before a call's next take, what it holds is acknowledged and what it put is committed, on all its channels.
 *   Or item by item: what a commit acknowledges, and what was made of it, changes hands in the one turn of its input.
 * - EX3 (L2) a call that begins to wait for data or credit lends its devices, and goes on only when it has them again. One
 *   whose engine computes meanwhile keeps them until it says that the engine is idle, and is still as it was when it said so;
 *   one that waits in several places says so again after each answer, while anything of it still waits.
 * - EX4 a request is answered once; what a call waited for when it started over is rejected.
 * - EX5 (L3) a worker knows the token of its first grant. When its devices were lent and came back under a new token,
 *   that first one still stands for them, as long as the call is the same and its process lives.
 * - EX6 (L1) the ranks of a group that load for the first time get their devices together, and give them back loaded.
 */
import { type DeviceLease, type KeptItem, TreadleError, type WaitTerms } from "@treadle/contracts";
import { type CallOutcome, type ChannelEffect, type ChannelSnapshot, runnerName } from "../channel/channel-messages.ts";
import { ChannelState } from "../channel/channel-state.ts";
import { KeptPayloads, type PayloadEffect } from "../channel/kept-payloads.ts";
import { type PolicyName, pickPolicies, policyOfUser, type UserPolicy } from "../channel/pick-policy.ts";
import { StreamShares } from "../channel/stream-shares.ts";
import { DeviceLockState } from "../device-lock/device-lock-state.ts";
import type { LockEffect, LockSnapshot } from "../device-lock/lock-messages.ts";
import type { WaitEdge } from "../device-lock/wait-for.ts";
import { channelWaits } from "../standstill.ts";
import type { Answer, ChannelEnd, Emit, RunnerInput } from "./runner-messages.ts";

/** What became of a load: its devices are granted, or refused with the reason. */
export type LoadOutcome = { readonly call: string; readonly error: TreadleError | undefined };

export type ExchangeOptions = {
  readonly lockTimeoutMs: number;
  /** its devices are shared with other runs */
  readonly isLeased?: boolean | undefined;
  readonly emit: Emit;
  /** something has moved */
  readonly onProgress: () => void;
  /** a user's policy cannot be relied on */
  readonly onPolicyFailed: (error: TreadleError) => void;
  /** the process of a worker is to load or free its memory */
  readonly onSwap: (worker: string, swap: "onload" | "offload") => void;
};

type OpenCall = {
  readonly call: string;
  worker: string;
  readonly ends: readonly ChannelEnd[];
  /** it has delivered items that it has not acknowledged */
  holds: boolean;
  /** channels of which it commits item by item */
  readonly streamed: Set<string>;
  /** undefined for the workflow's own, which asks for no devices */
  readonly lock: LockPart | undefined;
  /** those that wait */
  readonly requests: Set<number>;
  /** puts and takes, since it began */
  numAnswered: number;
};

type LockPart = {
  readonly sequence: number;
  readonly gang: string | undefined;
  /** False while nothing can depend on the call: it has no part in the order before it asks for devices. */
  isOrdered: boolean;
  firstToken: number | undefined;
  token: number | undefined;
  isLent: boolean;
};

type Outcome = { readonly answer: Answer } | { readonly error: unknown };
type Request = {
  readonly open: OpenCall;
  readonly on: "put" | "take" | "acquire";
  /** its call keeps its devices meanwhile */
  readonly keeps: boolean;
  /** it was not answered at once */
  hasWaited: boolean;
  /** set while the call waits for the devices that it lent */
  outcome: (Outcome & { readonly servedMs: number }) | undefined;
};

export class Exchange {
  readonly #options: ExchangeOptions;
  readonly #channels = new Map<string, ChannelState>();
  readonly #limits = new Map<string, number>();
  readonly #lock: DeviceLockState;
  readonly #devices = new Set<string>();
  readonly #calls = new Map<string, OpenCall>();
  readonly #requests = new Map<number, Request>();
  readonly #shares = new Map<string, StreamShares>();
  readonly #kept = new KeptPayloads();
  /** channel to the workers that take from it, as of its latest stream */
  readonly #consumers = new Map<string, { stream: string; workers: Set<string> }>();
  readonly #loads: LoadOutcome[] = [];
  /** those of callers count upwards */
  #lastOwnRequest = 0;
  #nowMs = 0;

  constructor(options: ExchangeOptions) {
    this.#options = options;
    this.#lock = new DeviceLockState({ devices: [], timeoutMs: options.lockTimeoutMs, isLeased: options.isLeased });
  }

  set nowMs(nowMs: number) {
    this.#nowMs = nowMs;
  }

  define(name: string, capacity: number, pick: PolicyName | UserPolicy): void {
    if (this.#channels.has(name)) {
      throw new TreadleError("workflow.invalid", `channel '${name}' is defined twice; give each its own name`);
    }
    const limits = this.#limits;
    const state = new ChannelState({
      name,
      capacity: {
        get items(): number {
          return Math.min(capacity, limits.get(name) ?? capacity);
        },
      },
      policy: typeof pick === "string" ? pickPolicies[pick] : policyOfUser(name, pick, this.#options.onPolicyFailed),
    });
    this.#channels.set(name, state);
  }

  limit(capacity: Readonly<Record<string, number>>): void {
    this.#limits.clear();
    for (const [channel, items] of Object.entries(capacity)) this.#limits.set(channel, items);
  }

  /** Nodes say again and again what they have. */
  addDevice(device: string, capacityBytes: number): void {
    if (this.#devices.has(device)) return;
    this.#devices.add(device);
    this.#lock.addDevice({ device, capacityBytes });
  }

  /** Registers a worker, or the process that replaces it, on other devices perhaps. */
  addWorker(worker: string, devices: readonly string[]): void {
    this.#lock.addWorker({ worker, devices, residentBytes: 0 });
  }

  reportMemory(worker: string, residentBytes: number | undefined): void {
    this.#lock.reportMemory({ worker, residentBytes });
  }

  /** EX1. */
  openCall(input: {
    readonly call: string;
    readonly worker: string;
    readonly sequence: number;
    readonly gang?: string | undefined;
    readonly ends: readonly ChannelEnd[];
  }): void {
    const { call, worker, sequence, gang, ends } = input;
    const lock = { sequence, gang, isOrdered: false, firstToken: undefined, token: undefined, isLent: false };
    this.#open({ call, worker, ends, holds: false, streamed: new Set(), lock, requests: new Set(), numAnswered: 0 });
  }

  /** A put or a take of the workflow itself. */
  openOwn(call: string, end: ChannelEnd): void {
    this.#channel(end.channel);
    const own = { call, worker: runnerName, holds: false, streamed: new Set<string>(), lock: undefined };
    this.#open({ ...own, ends: [end], requests: new Set(), numAnswered: 0 });
  }

  #open(open: OpenCall): void {
    const { call, worker, ends, lock } = open;
    this.#calls.set(call, open);
    for (const end of ends) {
      this.#channel(end.channel).open({ call, worker, role: end.role, stream: end.stream });
      this.#sharesOf(end).open(end.role, call);
      if (end.role === "source") this.#noteConsumer(end, worker);
    }
    if (lock !== undefined && (ends.length > 0 || lock.gang !== undefined)) this.#order(open, lock);
  }

  closeCall(call: string, outcome: CallOutcome): void {
    const open = this.#calls.get(call);
    if (!open) return;
    open.streamed.clear();
    if (outcome.ok) this.#settleHoldings(open);
    this.#calls.delete(call);
    for (const end of open.ends) {
      this.#applyChannel(this.#channel(end.channel).close({ call, outcome }));
      const shares = this.#sharesOf(end);
      shares.close(end.role, call);
      const hasFailed = !outcome.ok && end.role === "sink"; // C4: those that wait for all of it fail with its first producer
      this.#serveShares(end, hasFailed);
      if (shares.isUnused) this.#shares.delete(`${end.channel}\n${end.stream}`);
    }
    this.#callOff(open, "take");
    if (open.lock?.isOrdered) this.#applyLock(this.#lock.closeCall({ call }));
    this.#callOff(open, "acquire");
  }

  /** A rank has replied, and its call stays open until its fellow ranks have: these wait for no share of its any more. */
  replied(call: string): void {
    for (const end of this.#calls.get(call)?.ends ?? []) {
      if (end.role !== "source") continue;
      this.#sharesOf(end).done(call);
      this.#serveShares(end);
    }
  }

  /**
   * These calls begin again, since a worker died: what they held goes back, what they put and did not commit vanishes.
   * All of them first let go of everything, or one would be given what another gives back.
   */
  startOver(calls: readonly { readonly call: string; readonly worker: string }[]): void {
    const again: OpenCall[] = [];
    const byChannel = new Map<string, string[]>();
    for (const { call, worker } of calls) {
      const open = this.#calls.get(call);
      if (!open) continue;
      again.push(open);
      open.worker = worker;
      open.holds = false;
      open.streamed.clear();
      for (const on of ["take", "put", "acquire"] as const) this.#callOff(open, on); // EX4
      open.numAnswered = 0; // its process counts from its own first answer
      for (const end of open.ends) {
        this.#sharesOf(end).startOver(call);
        byChannel.set(end.channel, [...(byChannel.get(end.channel) ?? []), call]);
      }
    }
    for (const [channel, ids] of byChannel) this.#applyChannel(this.#channel(channel).abandon({ calls: ids }));
    for (const { call, worker, ends } of again)
      for (const { channel } of ends) this.#channel(channel).retry({ call, worker });
    for (const { call, lock } of again) if (lock?.isOrdered) this.#applyLock(this.#lock.closeCall({ call }));
    for (const open of again) {
      const { lock, ends } = open;
      if (lock === undefined) continue;
      Object.assign(lock, { isOrdered: false, firstToken: undefined, token: undefined, isLent: false });
      if (ends.length > 0 || lock.gang !== undefined) this.#order(open, lock);
    }
  }

  put(input: Extract<RunnerInput, { type: "put" }>): void {
    const { request, call, channel, items, kept } = input;
    const open = this.#requireCall(call, channel);
    const state = this.#channel(channel);
    for (const item of kept ?? []) this.#kept.entered(item as KeptItem, open.worker);
    this.#options.onProgress();
    this.#asks(request, open, "put", input);
    const fromCaller = open.lock === undefined;
    const nowMs = this.#nowMs;
    this.#applyChannel(state.put({ call, put: request, items, staged: open.holds, fromCaller, nowMs }));
    this.#awaitsRoom(request, open, channel);
  }

  /** A put may wait for room. Then consumers that wait for all of its stream get their shares of what is there, which makes some. */
  #awaitsRoom(request: number, open: OpenCall, channel: string): void {
    const isFull = this.#requests.has(request);
    if (isFull) for (const end of open.ends) if (end.channel === channel) this.#serveShares(end, true);
    this.#applyLock(this.#lock.enqueued({ call: open.call }));
    this.#waits(request, open, channel, "put");
  }

  /**
   * EX2 (C6): refuses with `call.cancelled` deliveries that the call does not hold, which nothing then becomes of. Answered
   * when there is credit for the outputs, which count as put from now on.
   */
  commit(input: Extract<RunnerInput, { type: "commit" }>): void {
    const { request, call, channel, deliveries, outputs } = input;
    const open = this.#requireCall(call, channel);
    const source = this.#channel(channel);
    this.#asks(request, open, "put", input);
    if (!source.holds(call, deliveries)) {
      const message = `'${open.worker}' committed items of '${channel}' that call '${call}' does not hold any more; an item is committed once, in the call that took it`;
      this.#answer(request, { error: new TreadleError("call.cancelled", message) });
      return;
    }
    this.#options.onProgress();
    let isRefused = false;
    if (outputs) {
      for (const item of outputs.kept ?? []) this.#kept.entered(item as KeptItem, open.worker);
      const put = { call, put: request, items: outputs.items, committed: true, nowMs: this.#nowMs };
      const effects = this.#channel(outputs.channel).put(put);
      isRefused = effects.some((effect) => effect.type === "put-refused" && effect.put === request);
      this.#applyChannel(effects);
    }
    if (!isRefused) this.#acknowledge(open, source, deliveries);
    if (!outputs) {
      this.#answer(request, { answer: { type: "done" } });
      return;
    }
    this.#awaitsRoom(request, open, outputs.channel);
  }

  /** What the call put beside is committed with the last item that it holds. */
  #acknowledge(open: OpenCall, source: ChannelState, deliveries: readonly number[]): void {
    const { call, ends } = open;
    this.#applyChannel(source.ack({ call, deliveries }));
    if (!ends.some(({ channel }) => this.#channel(channel).numHeld(call) > 0)) this.#settleHoldings(open);
  }

  take(input: Extract<RunnerInput, { type: "take" }>): void {
    const { request, call, channel, maxItems, maxWeight, minItems, key } = input;
    const open = this.#requireCall(call, channel);
    this.#asks(request, open, "take", input);
    if (input.acknowledge) this.#settleHoldings(open); // EX2
    const state = this.#channel(channel);
    const end = open.ends.find((each) => each.channel === channel && each.role === "source");
    if (!end) {
      const message = `'${open.worker}' takes from channel '${channel}', which was passed to it as a sink; pass '.source'`;
      this.#answer(request, { error: new TreadleError("workflow.invalid", message) });
      return;
    }
    if (input.streams) open.streamed.add(channel);
    if (maxItems === undefined && maxWeight === undefined) {
      this.#sharesOf(end).ask({ take: request, call });
      this.#serveShares(end, state.isFull(end.stream));
    } else {
      const max = { items: maxItems, weight: maxWeight };
      this.#applyChannel(state.take({ call, take: request, max, min: minItems, key, nowMs: this.#nowMs }));
    }
    this.#waits(request, open, channel, "take");
  }

  /**
   * EX6: asks for the devices of workers that are to load for the first time, for all of them together. `takeLoads` says what
   * became of each; the load is over when its call is closed.
   */
  load(sequence: number, loads: readonly { readonly call: string; readonly worker: string }[]): void {
    for (const each of loads) this.openCall({ ...each, sequence, gang: `load-${sequence}`, ends: [] });
    for (const { call, worker } of loads) this.acquire(--this.#lastOwnRequest, call, worker);
  }

  takeLoads(): readonly LoadOutcome[] {
    return this.#loads.splice(0);
  }

  acquire(request: number, call: string, worker: string): void {
    const open = this.#calls.get(call);
    const lock = open?.lock;
    if (!open || !lock || open.worker !== worker) {
      throw new TreadleError(
        "lock.stale-token",
        `'${worker}' asked for its devices in call '${call}', which is not open there any more`,
      );
    }
    if (!lock.isOrdered) this.#order(open, lock);
    this.#asks(request, open, "acquire");
    this.#applyLock(this.#lock.acquire({ request, call, nowMs: this.#nowMs }));
  }

  /** EX3: ignored where the call has been answered meanwhile. Its engine may compute again, and its worker says when it is idle. */
  lend(call: string, worker: string, numAnswered: number): void {
    const open = this.#calls.get(call);
    if (!open?.lock || open.worker !== worker || open.numAnswered !== numAnswered) return;
    const waiting = [...open.requests].map((id) => this.#requests.get(id));
    if (waiting.some((request) => request?.hasWaited && request.outcome === undefined)) this.#lend(open.lock);
  }

  /** Throws `lock.stale-token` for a grant that has been revoked (L3, EX5). */
  release(call: string, worker: string, token: number): void {
    const lock = this.#calls.get(call)?.lock;
    const current = lock && lock.firstToken === token ? lock.token : undefined;
    if (!lock || current === undefined) {
      throw new TreadleError(
        "lock.stale-token",
        `'${worker}' released its devices with token '${token}', which has been revoked`,
      );
    }
    Object.assign(lock, { token: undefined, firstToken: undefined, isLent: false });
    this.#applyLock(this.#lock.release({ token: current }));
  }

  leased(lease: DeviceLease): void {
    this.#options.onProgress();
    this.#applyLock(this.#lock.leased({ lease, nowMs: this.#nowMs }));
  }

  leaseWanted(token: number, drains: boolean): void {
    this.#applyLock(this.#lock.leaseWanted({ token, drains }));
  }

  get awaitsLease(): boolean {
    return this.#lock.awaitsLease;
  }

  /** A consumer has let go of the memory of items that their producers keep. */
  read(worker: string, segments: readonly string[]): void {
    for (const segment of segments) this.#free(this.#kept.read(segment, worker));
  }

  onloaded(worker: string, residentBytes: number): void {
    this.#lock.reportMemory({ worker, residentBytes });
    this.#applyLock(this.#lock.onloaded({ worker }));
  }

  offloaded(worker: string, residualBytes = 0): void {
    this.#applyLock(this.#lock.offloaded({ worker, residualBytes }));
  }

  /** Where the worker went away meanwhile its death is what counts: it frees the memory, and whoever waits goes on. */
  swapFailed(worker: string, swap: "onload" | "offload", error: unknown): void {
    if (error instanceof TreadleError && error.disposition === "retryable") return;
    this.#applyLock(
      swap === "onload" ? this.#lock.onloadFailed({ worker, error }) : this.#lock.offloadFailed({ worker, error }),
    );
  }

  /** Its process is gone, with its memory, its devices and whatever it had mapped. Its calls start over or close. */
  workerDied(worker: string): void {
    this.#applyLock(this.#lock.workerDied({ worker }));
    this.#free(this.#kept.workerDied(worker));
  }

  /** L5. */
  tick(): void {
    this.#applyLock(this.#lock.tick({ nowMs: this.#nowMs, edges: () => channelWaits(this.snapshots()) }));
  }

  /** Rejects every request that is open; used when the run ends. */
  fail(error: unknown): void {
    for (const request of this.#requests.keys())
      if (request > 0) this.#options.emit({ type: "reject", request, error });
    this.#requests.clear();
  }

  // What it shows of itself.

  get channels(): string[] {
    return [...this.#channels.keys()];
  }

  /** Items that a channel holds, waiting or in flight. */
  depth(channel: string): number {
    return this.#channel(channel).snapshot().usedItems;
  }

  /** The channels that hold items of a stream, and how many. */
  untaken(stream: string): { channel: string; items: number }[] {
    return [...this.#channels].flatMap(([channel, state]) => {
      const items = state.queuedItems(stream);
      return items > 0 ? [{ channel, items }] : [];
    });
  }

  snapshots(): ChannelSnapshot[] {
    return [...this.#channels.values()].map((state) => state.snapshot());
  }

  /** Those that take from a channel now, or were the last to. */
  consumersOf(channel: string): ReadonlySet<string> {
    return this.#consumers.get(channel)?.workers ?? new Set();
  }

  lockEdges(): WaitEdge[] {
    return this.#lock.edges();
  }

  lockSnapshot(): LockSnapshot {
    return this.#lock.snapshot();
  }

  // How effects of its parts become effects of the run.

  #applyChannel(effects: readonly ChannelEffect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "put-accepted":
          this.#settle(effect.put as number, { answer: { type: "done" } });
          break;
        case "put-refused":
          this.#settle(effect.put as number, { error: effect.error });
          break;
        case "deliver": {
          const { deliveries: items, worker } = effect;
          const open = this.#calls.get(effect.call);
          if (open) open.holds = true;
          for (const { segment } of items) if (segment !== undefined) this.#kept.delivered(segment, worker);
          this.#settle(effect.take as number, { answer: { type: "batch", worker, items } });
          break;
        }
        case "finished":
          for (const segment of effect.segments) this.#free(this.#kept.finished(segment));
          break;
        case "end":
          this.#settle(effect.take as number, { answer: { type: "end-of-stream" } });
          break;
        case "fail":
          this.#settle(effect.take as number, { error: effect.error });
          break;
        case "stale-ack":
          break; // the items went to somebody else when this call's worker was taken for dead
      }
    }
  }

  #applyLock(effects: readonly LockEffect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "grant":
          this.#granted(effect.request as number, effect.token);
          break;
        case "refuse":
          this.#refused(effect.request as number, effect.error);
          break;
        case "onload":
        case "offload":
          this.#options.onSwap(effect.worker, effect.type);
          break;
        case "ask-lease":
        case "release-lease":
          this.#options.emit(effect);
          break;
        case "stale":
          break; // the holder died or lost the call; whoever asks with that token is told by `release`
      }
    }
  }

  #granted(id: number, token: number): void {
    const request = this.#requests.get(id);
    const lock = request?.open.lock;
    if (!request || !lock) return;
    this.#options.onProgress();
    lock.token = token;
    lock.isLent = false;
    if (request.outcome !== undefined) this.#answer(id, request.outcome, request.outcome.servedMs);
    else {
      lock.firstToken = token; // EX5
      this.#answer(id, { answer: { type: "token", token } });
    }
  }

  #refused(id: number, error: TreadleError): void {
    if (this.#requests.has(id)) this.#answer(id, { error });
  }

  /** A put or a take is decided; whoever lent devices meanwhile gets them back first (EX3). */
  #settle(id: number, outcome: Outcome): void {
    const request = this.#requests.get(id);
    if (!request) return;
    if (!request.hasWaited) {
      this.#answer(id, outcome);
      return;
    }
    this.#options.onProgress();
    const { open } = request;
    const { call } = open;
    this.#lock.unpark({ call });
    if (!open.lock?.isLent || this.#calls.get(call) !== open) {
      this.#answer(id, outcome);
      return;
    }
    request.outcome = { ...outcome, servedMs: this.#nowMs };
    this.#applyLock(this.#lock.reclaim({ request: id, call, nowMs: this.#nowMs }));
  }

  #asks(request: number, open: OpenCall, on: Request["on"], { keeps = false, numAnswered }: WaitTerms = {}): void {
    const isUnderWay = numAnswered !== undefined && numAnswered !== open.numAnswered;
    this.#requests.set(request, { open, on, keeps: keeps || isUnderWay, hasWaited: false, outcome: undefined });
    open.requests.add(request);
  }

  #answer(request: number, outcome: Outcome, servedMs?: number): void {
    this.#requests.get(request)?.open.requests.delete(request);
    const known = this.#requests.get(request);
    if (known && known.on !== "acquire") known.open.numAnswered++;
    this.#requests.delete(request); // EX4
    if (request < 0) {
      const error = "error" in outcome ? (outcome.error as TreadleError) : undefined;
      if (known && error?.disposition !== "cancelled") this.#loads.push({ call: known.open.call, error });
      return;
    }
    this.#options.emit(
      "answer" in outcome
        ? { type: "answer", request, answer: outcome.answer, ...(servedMs === undefined ? {} : { servedMs }) }
        : { type: "reject", request, error: outcome.error },
    );
  }

  /** EX3: the request was not answered at once. */
  #waits(id: number, open: OpenCall, channel: string, on: "put" | "take"): void {
    const request = this.#requests.get(id);
    if (!request) return;
    request.hasWaited = true;
    const { call, lock, ends } = open;
    const role = on === "take" ? "source" : "sink";
    const end = ends.find((each) => each.channel === channel && each.role === role);
    if (lock === undefined || end === undefined) return;
    if (!request.keeps) this.#lend(lock);
    // What was lent may have let somebody answer the request already.
    if (!this.#requests.has(id) || request.outcome !== undefined) return;
    this.#applyLock(this.#lock.park({ call, stream: { channel, stream: end.stream }, on }));
  }

  #lend(lock: LockPart): void {
    if (lock.token === undefined || lock.isLent) return;
    lock.isLent = true;
    this.#applyLock(this.#lock.lend({ token: lock.token }));
  }

  /** What a call waited for when it started over or ended is never answered otherwise. */
  #callOff({ call, requests }: OpenCall, on: Request["on"]): void {
    for (const request of requests) {
      if (this.#requests.get(request)?.on !== on) continue;
      const message = `call '${call}' started over or ended while its ${on} waited`;
      this.#answer(request, { error: new TreadleError("call.cancelled", message) });
    }
  }

  /** EX2. */
  #settleHoldings(open: OpenCall): void {
    if (!open.holds) return;
    const { call, streamed } = open;
    const channels = [...new Set(open.ends.map((end) => end.channel))].map((name) => this.#channel(name));
    const effects = channels.flatMap((state) => (streamed.has(state.name) ? [] : state.ack({ call })));
    // What was put beside items that are still in flight may have been made of these.
    open.holds = channels.some((state) => state.numHeld(call) > 0);
    if (!open.holds) effects.push(...channels.flatMap((state) => state.commit({ call })));
    this.#applyChannel(effects);
  }

  #serveShares(end: ChannelEnd, isFull = false): void {
    const state = this.#channel(end.channel);
    this.#sharesOf(end).serve(
      () => state.queuedItems(end.stream),
      ({ take, call }, items, parts) =>
        this.#applyChannel(state.take({ call, take, max: { items }, parts, min: 1, nowMs: this.#nowMs })),
      isFull,
    );
  }

  #order({ call, worker, ends }: OpenCall, lock: LockPart): void {
    const streams = (role: ChannelEnd["role"]) =>
      ends.filter((end) => end.role === role).map(({ channel, stream }) => ({ channel, stream }));
    const { sequence, gang } = lock;
    this.#lock.openCall({ call, worker, sequence, gang, consumes: streams("source"), produces: streams("sink") });
    lock.isOrdered = true;
  }

  #noteConsumer({ channel, stream }: ChannelEnd, worker: string): void {
    let consumers = this.#consumers.get(channel);
    if (consumers?.stream !== stream) {
      consumers = { stream, workers: new Set() };
      this.#consumers.set(channel, consumers);
    }
    consumers.workers.add(worker);
  }

  #free(effects: readonly PayloadEffect[]): void {
    for (const payload of effects) this.#options.emit({ type: "free", payload });
  }

  #channel(name: string): ChannelState {
    const channel = this.#channels.get(name);
    if (channel) return channel;
    const known = this.channels.join(", ") || "none";
    throw new TreadleError("workflow.invalid", `no channel is called '${name}'; this run has ${known}`);
  }

  #requireCall(call: string, channel: string): OpenCall {
    const open = this.#calls.get(call);
    if (open) return open;
    throw new TreadleError(
      "channel.closed",
      `channel '${channel}' was used by call '${call}', which has ended or was not given that channel; await every put within the method`,
    );
  }

  #sharesOf(end: ChannelEnd): StreamShares {
    const key = `${end.channel}\n${end.stream}`;
    let shares = this.#shares.get(key);
    if (!shares) {
      shares = new StreamShares();
      this.#shares.set(key, shares);
    }
    return shares;
  }
}
