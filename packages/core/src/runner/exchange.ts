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
 * - EX7 (L2) streams end with a reply before the devices of its calls are free: who can go on then asks for devices in the same
 *   turn, and the order of calls decides among all of them.
 */
import { type KeptItem, type ReleasableTag, type TagMemory, TreadleError, type WorkerMemory } from "@treadle/contracts";
import { type CallOutcome, type ChannelEffect, type ChannelSnapshot, runnerName } from "../channel/channel-messages.ts";
import type { ChannelState } from "../channel/channel-state.ts";
import { KeptPayloads, type PayloadEffect } from "../channel/kept-payloads.ts";
import type { PolicyName, UserPolicy } from "../channel/pick-policy.ts";
import { DeviceLockState } from "../device-lock/device-lock-state.ts";
import type { LeaseInput, LockEffect, LockSnapshot } from "../device-lock/lock-messages.ts";
import type { WaitEdge } from "../device-lock/wait-for.ts";
import { channelWaits } from "../standstill.ts";
import { ChannelBook } from "./channel-book.ts";
import { notAGang, notASource, notHeld, notOpen, revoked, wasClosed } from "./exchange-refusals.ts";
import { type LoadOutcome, type LockPart, type OpenCall, OpenRequests, type Outcome } from "./open-requests.ts";
import type { ChannelEnd, Emit, RunnerInput } from "./runner-messages.ts";

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
  readonly onSwap: (worker: string, swap: "onload" | "offload", tags: readonly ReleasableTag[] | undefined) => void;
};

export class Exchange {
  readonly #options: ExchangeOptions;
  readonly #channels: ChannelBook;
  readonly #lock: DeviceLockState;
  readonly #devices = new Set<string>();
  readonly #calls = new Map<string, OpenCall>();
  readonly #requests: OpenRequests;
  readonly #kept = new KeptPayloads();
  #nowMs = 0;

  constructor(options: ExchangeOptions) {
    this.#options = options;
    this.#channels = new ChannelBook(options.onPolicyFailed);
    this.#requests = new OpenRequests(options.emit);
    this.#lock = new DeviceLockState({ devices: [], timeoutMs: options.lockTimeoutMs, isLeased: options.isLeased });
  }

  set nowMs(nowMs: number) {
    this.#nowMs = nowMs;
  }

  define(name: string, capacity: number, pick: PolicyName | UserPolicy): void {
    this.#channels.define(name, capacity, pick);
  }

  limit(capacity: Readonly<Record<string, number>>): void {
    this.#channels.limit(capacity);
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

  reportMemory(
    worker: string,
    residentBytes: number | undefined,
    tags: readonly TagMemory[] | undefined = undefined,
  ): void {
    this.#lock.reportMemory({ worker, residentBytes, tags });
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
    this.#open(
      { call, worker, ends, holds: false, streamed: new Set(), lock, requests: new Set(), numAnswered: 0 },
      gang,
    );
  }

  /** A put or a take of the workflow itself. */
  openOwn(call: string, end: ChannelEnd): void {
    this.#channels.get(end.channel);
    const own = { call, worker: runnerName, holds: false, streamed: new Set<string>(), lock: undefined };
    this.#open({ ...own, ends: [end], requests: new Set(), numAnswered: 0 });
  }

  #open(open: OpenCall, gang?: string): void {
    const { call, worker, ends, lock } = open;
    this.#calls.set(call, open);
    for (const end of ends) {
      this.#channels.get(end.channel).open({ call, worker, role: end.role, stream: end.stream, gang });
      this.#channels.sharesOf(end).open(end.role, call);
      if (end.role === "source") this.#channels.noteConsumer(end, worker);
    }
    if (lock !== undefined && (ends.length > 0 || lock.gang !== undefined)) this.#order(open, lock);
  }

  closeCall(call: string, outcome: CallOutcome): void {
    this.closeCalls([{ call, outcome }]);
  }

  /** EX7. */
  closeCalls(calls: readonly { readonly call: string; readonly outcome: CallOutcome }[]): void {
    for (const open of calls.flatMap(({ call, outcome }) => this.#leaveChannels(call, outcome) ?? [])) {
      if (open.lock?.isOrdered) this.#applyLock(this.#lock.closeCall({ call: open.call }));
      this.#requests.callOff(open, "acquire");
    }
  }

  #leaveChannels(call: string, outcome: CallOutcome): OpenCall | undefined {
    const open = this.#calls.get(call);
    if (!open) return undefined;
    open.streamed.clear();
    if (outcome.ok) this.#settleHoldings(open);
    this.#calls.delete(call);
    for (const end of open.ends) {
      this.#applyChannel(this.#channels.get(end.channel).close({ call, outcome }));
      const shares = this.#channels.sharesOf(end);
      shares.close(end.role, call);
      const hasFailed = !outcome.ok && end.role === "sink"; // C4: those that wait for all of it fail with its first producer
      this.#serveShares(end, hasFailed);
      this.#channels.forgetShares(end);
    }
    this.#requests.callOff(open, "take");
    return open;
  }

  /**
   * A rank has replied, and its call stays open until its fellow ranks have: these wait neither for its share nor for it in rounds.
   * What it did not release is free (EX7).
   */
  replied(call: string): void {
    const open = this.#calls.get(call);
    for (const end of open?.ends ?? []) {
      if (end.role !== "source") continue;
      this.#channels.sharesOf(end).done(call);
      this.#serveShares(end);
      this.#applyChannel(this.#channels.get(end.channel).left({ call }));
    }
    if (open?.lock?.token !== undefined) this.#free(open, open.lock, open.lock.token);
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
      for (const on of ["take", "put", "acquire"] as const) this.#requests.callOff(open, on); // EX4
      open.numAnswered = 0; // its process counts from its own first answer
      for (const end of open.ends) {
        this.#channels.sharesOf(end).startOver(call);
        byChannel.set(end.channel, [...(byChannel.get(end.channel) ?? []), call]);
      }
    }
    for (const [channel, ids] of byChannel) this.#applyChannel(this.#channels.get(channel).abandon({ calls: ids }));
    for (const { call, worker, ends } of again)
      for (const { channel } of ends) this.#channels.get(channel).retry({ call, worker });
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
    const state = this.#channels.get(channel);
    for (const item of kept ?? []) this.#kept.entered(item as KeptItem, open.worker);
    this.#options.onProgress();
    this.#requests.asks(request, open, "put", input);
    const fromCaller = open.lock === undefined;
    const nowMs = this.#nowMs;
    this.#applyChannel(state.put({ call, put: request, items, staged: open.holds, fromCaller, nowMs }));
    this.#awaitsRoom(request, open, channel);
  }

  /** A put may wait for room. Then consumers that wait for all of its stream get their shares of what is there, which makes some. */
  #awaitsRoom(request: number, open: OpenCall, channel: string): void {
    const isFull = this.#requests.get(request) !== undefined;
    const ends = open.ends.filter((end) => end.channel === channel);
    if (isFull) for (const end of ends) this.#serveShares(end, true);
    for (const { role, stream } of ends)
      if (role === "sink") this.#applyLock(this.#lock.enqueued({ call: open.call, stream: { channel, stream } }));
    this.#waits(request, open, channel, "put");
  }

  /**
   * EX2 (C6): refuses with `call.cancelled` deliveries that the call does not hold, which nothing then becomes of. Answered
   * when there is credit for the outputs, which count as put from now on.
   */
  commit(input: Extract<RunnerInput, { type: "commit" }>): void {
    const { request, call, channel, deliveries, outputs } = input;
    const open = this.#requireCall(call, channel);
    const source = this.#channels.get(channel);
    this.#requests.asks(request, open, "put", input);
    if (!source.holds(call, deliveries)) {
      this.#requests.answer(request, { error: notHeld(open.worker, channel, call) });
      return;
    }
    this.#options.onProgress();
    let isRefused = false;
    if (outputs) {
      for (const item of outputs.kept ?? []) this.#kept.entered(item as KeptItem, open.worker);
      const put = { call, put: request, items: outputs.items, committed: true, nowMs: this.#nowMs };
      const effects = this.#channels.get(outputs.channel).put(put);
      isRefused = effects.some((effect) => effect.type === "put-refused" && effect.put === request);
      this.#applyChannel(effects);
    }
    if (!isRefused) this.#acknowledge(open, source, deliveries);
    if (!outputs) {
      this.#requests.answer(request, { answer: { type: "done" } });
      return;
    }
    this.#awaitsRoom(request, open, outputs.channel);
  }

  /** What the call put beside is committed with the last item that it holds. */
  #acknowledge(open: OpenCall, source: ChannelState, deliveries: readonly number[]): void {
    const { call, ends } = open;
    this.#applyChannel(source.ack({ call, deliveries }));
    if (!ends.some(({ channel }) => this.#channels.get(channel).numHeld(call) > 0)) this.#settleHoldings(open);
  }

  take(input: Extract<RunnerInput, { type: "take" }>): void {
    const { request, call, channel, maxItems, maxWeight, minItems, key } = input;
    const open = this.#requireCall(call, channel);
    this.#requests.asks(request, open, "take", input);
    if (input.acknowledge) this.#settleHoldings(open); // EX2
    const state = this.#channels.get(channel);
    const end = open.ends.find((each) => each.channel === channel && each.role === "source");
    if (!end) {
      this.#requests.answer(request, { error: notASource(open.worker, channel) });
      return;
    }
    const { streams, inGang } = input;
    if (inGang && open.lock?.gang === undefined) {
      this.#requests.answer(request, { error: notAGang(open.worker, channel) });
      return;
    }
    if (streams) open.streamed.add(channel);
    if (maxItems === undefined && maxWeight === undefined && !inGang) {
      this.#channels.sharesOf(end).ask({ take: request, call });
      this.#serveShares(end, state.isFull(end.stream));
    } else {
      const max = { items: maxItems, weight: maxWeight };
      const terms = { min: minItems, key, streams, inGang, nowMs: this.#nowMs };
      this.#applyChannel(state.take({ call, take: request, max, ...terms }));
    }
    this.#waits(request, open, channel, "take");
  }

  /**
   * EX6: asks for the devices of workers that are to load for the first time, for all of them together. `takeLoads` says what
   * became of each; the load is over when its call is closed.
   */
  load(sequence: number, loads: readonly { readonly call: string; readonly worker: string }[]): void {
    for (const each of loads) this.openCall({ ...each, sequence, gang: `load-${sequence}`, ends: [] });
    for (const { call, worker } of loads) this.acquire(this.#requests.nextOwn(), call, worker);
  }

  takeLoads(): readonly LoadOutcome[] {
    return this.#requests.takeLoads();
  }

  acquire(request: number, call: string, worker: string, tags: readonly ReleasableTag[] | undefined = undefined): void {
    const open = this.#calls.get(call);
    const lock = open?.lock;
    if (!open || !lock || open.worker !== worker) throw notOpen(worker, call);
    if (!lock.isOrdered) this.#order(open, lock);
    this.#requests.asks(request, open, "acquire");
    this.#applyLock(this.#lock.acquire({ request, call, nowMs: this.#nowMs, tags }));
    // Another lock of it may keep the devices, so that it never says that others may have them.
    if (lock.token !== undefined) for (const id of this.#requests.waitingOf(open)) this.#park(id);
  }

  /** EX3: ignored where the call has been answered meanwhile. Its engine may compute again, and its worker says when it is idle. */
  lend(call: string, worker: string, numAnswered: number): void {
    const open = this.#calls.get(call);
    if (!open?.lock || open.worker !== worker || open.numAnswered !== numAnswered) return;
    if (this.#requests.waitingOf(open).length === 0) return;
    this.#lend(open.lock);
    this.#parkAll(open);
  }

  #parkAll(open: OpenCall): void {
    for (const id of this.#requests.waitingOf(open)) if (!this.#requests.keepsForNow(id)) this.#park(id);
  }

  /** Throws `lock.stale-token` for a grant that has been revoked (L3, EX5). */
  release(call: string, worker: string, token: number): void {
    const open = this.#calls.get(call);
    const lock = open?.lock;
    const current = lock && lock.firstToken === token ? lock.token : undefined;
    if (!open || !lock || current === undefined) throw revoked(worker, token);
    this.#free(open, lock, current);
  }

  #free(open: OpenCall, lock: LockPart, token: number): void {
    Object.assign(lock, { token: undefined, firstToken: undefined, isLent: false });
    this.#applyLock(this.#lock.release({ token }));
    this.#parkAll(open); // what it waits for, it waits for without devices now
  }

  lease(input: LeaseInput): void {
    if (input.type === "leased") this.#options.onProgress();
    this.#applyLock(this.#lock.lease(input, this.#nowMs));
  }

  get awaitsLease(): boolean {
    return this.#lock.awaitsLease;
  }

  /** A consumer has let go of the memory of items that their producers keep. */
  read(worker: string, segments: readonly string[]): void {
    for (const segment of segments) this.#freePayloads(this.#kept.read(segment, worker));
  }

  onloaded(worker: string, { memoryBytes, tags }: WorkerMemory): void {
    this.reportMemory(worker, memoryBytes, tags);
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
    this.#freePayloads(this.#kept.workerDied(worker));
  }

  /** L5. */
  tick(): void {
    this.#applyLock(this.#lock.tick({ nowMs: this.#nowMs, edges: () => channelWaits(this.snapshots()) }));
  }

  /** Rejects every request that is open; used when the run ends. */
  fail(error: unknown): void {
    this.#requests.fail(error);
  }

  // What it shows of itself.

  get channels(): string[] {
    return this.#channels.names;
  }

  /** Items that a channel holds, waiting or in flight. */
  depth(channel: string): number {
    return this.#channels.get(channel).snapshot().usedItems;
  }

  /** The channels that hold items of a stream, and how many. */
  untaken(stream: string): { channel: string; items: number }[] {
    return this.#channels.untaken(stream);
  }

  snapshots(): ChannelSnapshot[] {
    return this.#channels.snapshots();
  }

  /** Those that take from a channel now, or were the last to. */
  consumersOf(channel: string): ReadonlySet<string> {
    return this.#channels.consumersOf(channel);
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
          if (open && items.length > 0) open.holds = true;
          for (const { segment } of items) if (segment !== undefined) this.#kept.delivered(segment, worker);
          this.#settle(effect.take as number, { answer: { type: "batch", worker, items } });
          break;
        }
        case "finished":
          for (const segment of effect.segments) this.#freePayloads(this.#kept.finished(segment));
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
          this.#options.onSwap(effect.worker, effect.type, effect.tags);
          break;
        case "ask-lease":
        case "release-lease":
        case "use-lease":
        case "share-lease":
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
    if (request.outcome !== undefined) this.#requests.answer(id, request.outcome, request.outcome.servedMs);
    else {
      lock.firstToken = token; // EX5
      this.#lock.unpark({ call: request.open.call }); // it has devices now, until it lends them
      this.#requests.answer(id, { answer: { type: "token", token } });
    }
  }

  #refused(id: number, error: TreadleError): void {
    if (this.#requests.get(id) !== undefined) this.#requests.answer(id, { error });
  }

  /** A put or a take is decided; whoever lent devices meanwhile gets them back first (EX3). */
  #settle(id: number, outcome: Outcome): void {
    const request = this.#requests.get(id);
    if (!request) return;
    if (!request.hasWaited) {
      this.#requests.answer(id, outcome);
      return;
    }
    this.#options.onProgress();
    const { open } = request;
    const { call } = open;
    this.#lock.unpark({ call });
    if (!open.lock?.isLent || this.#calls.get(call) !== open) {
      this.#requests.answer(id, outcome);
      this.#parkAll(open); // what else it waits for
      return;
    }
    request.outcome = { ...outcome, servedMs: this.#nowMs };
    this.#applyLock(this.#lock.reclaim({ request: id, call, nowMs: this.#nowMs }));
  }

  /** EX3: the request was not answered at once. */
  #waits(id: number, open: OpenCall, channel: string, on: "put" | "take"): void {
    const request = this.#requests.get(id);
    if (!request) return;
    request.hasWaited = true;
    const { lock, ends } = open;
    const role = on === "take" ? "source" : "sink";
    const end = ends.find((each) => each.channel === channel && each.role === role);
    if (lock === undefined || end === undefined) return;
    request.stream = { channel, stream: end.stream };
    if (!request.keeps) this.#lend(lock);
    if (!this.#requests.keepsForNow(id)) this.#park(id);
  }

  /** The lock is told that the call waits for others, unless what was lent has let somebody answer it already. */
  #park(id: number): void {
    const request = this.#requests.get(id);
    if (request?.stream === undefined || request.outcome !== undefined || request.on === "acquire") return;
    const { open, stream, on } = request;
    this.#applyLock(this.#lock.park({ call: open.call, stream, on }));
  }

  #lend(lock: LockPart): void {
    if (lock.token === undefined || lock.isLent) return;
    lock.isLent = true;
    this.#applyLock(this.#lock.lend({ token: lock.token }));
  }

  /** EX2. */
  #settleHoldings(open: OpenCall): void {
    if (!open.holds) return;
    const { call, streamed } = open;
    const channels = [...new Set(open.ends.map((end) => end.channel))].map((name) => this.#channels.get(name));
    const effects = channels.flatMap((state) => (streamed.has(state.name) ? [] : state.ack({ call })));
    // What was put beside items that are still in flight may have been made of these.
    open.holds = channels.some((state) => state.numHeld(call) > 0);
    if (!open.holds) effects.push(...channels.flatMap((state) => state.commit({ call })));
    this.#applyChannel(effects);
  }

  #serveShares(end: ChannelEnd, isFull = false): void {
    const state = this.#channels.get(end.channel);
    this.#channels.sharesOf(end).serve(
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

  #freePayloads(effects: readonly PayloadEffect[]): void {
    for (const payload of effects) this.#options.emit({ type: "free", payload });
  }

  #requireCall(call: string, channel: string): OpenCall {
    const open = this.#calls.get(call);
    if (open) return open;
    throw wasClosed(channel, call);
  }
}
