/**
 * The home of every channel of a run, in the runner's process: a thin shell around one `ChannelState` a channel.
 *
 * Owner of: the state machines, the promises of waiting puts and takes, and which call holds what on which channels.
 *
 * C4 at once: a stream that has failed fails those that wait for all of it when its first producer fails, not when its
 * last one ends. C6 across channels: before a call's next take, what it holds is acknowledged and what it put is committed, on all its
 * channels in one synchronous turn, so no death can come between.
 */
import {
  type ItemBlock,
  PutRequest,
  readMessage,
  SegmentsMessage,
  TakeRequest,
  TreadleError,
} from "@treadle/contracts";
import type { z } from "zod";
import { type Payloads, readWith, unpackItems, validateItem } from "./channel-client.ts";
import { type CallOutcome, type ChannelEffect, runnerName } from "./channel-messages.ts";
import { ChannelState } from "./channel-state.ts";
import { BlockItems, joinItems, type StoredItem } from "./item-blocks.ts";
import { KeptPayloads, type PayloadEffect } from "./kept-payloads.ts";
import { fifo, leastLoaded, type PickPolicy, priority } from "./pick-policy.ts";
import { StreamShares } from "./stream-shares.ts";

export const pickPolicies: Readonly<Record<"fifo" | "priority" | "least-loaded", PickPolicy>> = {
  fifo,
  priority,
  "least-loaded": leastLoaded,
};

export type ChannelDefinition = {
  readonly name: string;
  readonly capacity: number;
  readonly pick: keyof typeof pickPolicies;
  /** set when only this process can validate, because no worker can find the schema */
  readonly schema: z.ZodType | undefined;
};

export type ChannelEnd = { readonly channel: string; readonly role: "source" | "sink"; readonly stream: string };

export type PackedBatch = { readonly blocks: ItemBlock[] } | null;

export type ChannelHomesOptions = {
  readonly now: () => number;
  /** items that the plan lets a channel hold, where that is less than its own capacity */
  readonly plannedCapacity?: (channel: string) => number | undefined;
  /** something has entered a channel, or a batch has left it */
  readonly onProgress: () => void;
  /** a call has put something into one of its channels */
  readonly onEnqueued: (call: string) => void;
  /** a call begins to wait; the returned function is awaited when the wait is over, before the call goes on */
  readonly onWait: (call: string, end: ChannelEnd, on: "take" | "put") => () => Promise<void>;
  /** where this process keeps the large items that it puts and takes itself */
  readonly payloads?: Payloads | undefined;
  /** a segment is free: its producer may write it again, or somebody must remove it */
  readonly onFreed?: (effect: PayloadEffect) => void;
};

type Waiting = {
  readonly call: string;
  readonly on: "put" | "take";
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
};
type OpenCall = { worker: string; readonly ends: readonly ChannelEnd[]; holds: boolean };

export class ChannelHomes {
  readonly #channels = new Map<string, { state: ChannelState; definition: ChannelDefinition }>();
  readonly #calls = new Map<string, OpenCall>();
  readonly #waiting = new Map<number, Waiting>();
  readonly #shares = new Map<string, StreamShares>();
  readonly #kept = new KeptPayloads();
  /** channel to the workers that take from it, as of its latest stream */
  readonly #consumers = new Map<string, Set<string>>();
  readonly #consumed = new Map<string, string>();
  readonly #options: ChannelHomesOptions;
  #lastRequest = 0;

  constructor(options: ChannelHomesOptions) {
    this.#options = options;
  }

  define(definition: ChannelDefinition): void {
    if (this.#channels.has(definition.name)) {
      throw new TreadleError(
        "workflow.invalid",
        `channel '${definition.name}' is defined twice; give each its own name`,
      );
    }
    const { plannedCapacity } = this.#options;
    // `delivered`: a consumer that dies is always retried or ends the run, so nobody has to stay to take over for it.
    const state = new ChannelState({
      name: definition.name,
      capacity: {
        get items(): number {
          return Math.min(definition.capacity, plannedCapacity?.(definition.name) ?? definition.capacity);
        },
      },
      policy: pickPolicies[definition.pick],
      endWhen: "delivered",
    });
    this.#channels.set(definition.name, { state, definition });
  }

  get payloads(): Payloads | undefined {
    return this.#options.payloads;
  }

  /** A consumer has let go of the memory of items that their producers keep. */
  read(worker: string, body: unknown): void {
    for (const segment of readMessage(SegmentsMessage, body).segments) this.#free(this.#kept.read(segment, worker));
  }

  /** Its process is gone, with whatever memory it had mapped; its calls start over or close by their own way. */
  workerDied(worker: string): void {
    this.#free(this.#kept.workerDied(worker));
  }

  /** Those that take from a channel now, or have been the last to. */
  consumersOf(channel: string): ReadonlySet<string> {
    return this.#consumers.get(channel) ?? new Set();
  }

  get names(): string[] {
    return [...this.#channels.keys()];
  }

  /** Registers a call before its callee runs, in program order. */
  open(call: string, worker: string, ends: readonly ChannelEnd[]): void {
    if (ends.length === 0) return;
    this.#calls.set(call, { worker, ends, holds: false });
    for (const end of ends) {
      this.#channel(end.channel).state.open({ call, worker, role: end.role, stream: end.stream });
      this.#sharesOf(end).open(end.role, call);
      if (end.role === "source") this.#noteConsumer(end, worker);
    }
  }

  close(call: string, outcome: CallOutcome): void {
    const open = this.#calls.get(call);
    if (!open) return;
    if (outcome.ok) this.#settleHoldings(call, open);
    this.#calls.delete(call);
    for (const end of open.ends) {
      this.#apply(this.#channel(end.channel).state.close({ call, outcome }));
      const shares = this.#sharesOf(end);
      shares.close(end.role, call);
      const hasFailed = !outcome.ok && end.role === "sink"; // C4
      this.#serveShares(end, hasFailed);
      if (shares.isUnused) this.#shares.delete(`${end.channel}\n${end.stream}`);
    }
    this.#callOff(call, "take");
  }

  /** The call's worker died, or it must start over: what it held goes back, what it had put and not committed vanishes. */
  startOver(call: string, worker: string): void {
    const open = this.#calls.get(call);
    if (!open) return;
    open.worker = worker;
    open.holds = false;
    for (const end of open.ends) {
      const { state } = this.#channel(end.channel);
      this.#sharesOf(end).startOver(call);
      this.#apply(state.abandon({ call }));
      state.retry({ call, worker });
    }
    this.#callOff(call, "take");
    this.#callOff(call, "put");
  }

  put(body: unknown): Promise<unknown> {
    const request = readMessage(PutRequest, body);
    const open = this.#openCall(request.call, request.channel);
    const { state, definition } = this.#channel(request.channel);
    const items = new BlockItems(request.items);
    for (const item of request.items.kept ?? []) this.#kept.entered(item, open.worker);
    const { schema } = definition;
    if (schema) {
      try {
        unpackItems({ blocks: [request.items] }, readWith(this.#options.payloads?.reader)).forEach((item, i) => {
          validateItem(item, schema, definition.name, i);
        });
      } catch (error) {
        for (const { segment } of request.items.kept ?? []) this.#free(this.#kept.finished(segment));
        throw error;
      }
    }
    this.#options.onProgress();
    const put = ++this.#lastRequest;
    const answer = this.#await(put, request.call, "put");
    const fromCaller = open.worker === runnerName;
    this.#apply(
      state.put({ call: request.call, put, items, staged: open.holds, fromCaller, nowMs: this.#options.now() }),
    );
    if (this.#waiting.has(put)) {
      // The channel is full. Whoever waits for all of a stream gets its share of what there is, to make room.
      for (const end of open.ends) if (end.channel === request.channel) this.#serveShares(end, true);
    }
    this.#options.onEnqueued(request.call);
    const end = open.ends.find((each) => each.channel === request.channel && each.role === "sink");
    return end ? this.#onceServed(put, answer, request.call, end, "put") : answer;
  }

  take(body: unknown): Promise<PackedBatch> {
    const request = readMessage(TakeRequest, body);
    const open = this.#openCall(request.call, request.channel);
    if (request.acknowledge) this.#settleHoldings(request.call, open);
    const { state } = this.#channel(request.channel);
    const take = ++this.#lastRequest;
    const answer = this.#await(take, request.call, "take") as Promise<PackedBatch>;
    const end = open.ends.find((each) => each.channel === request.channel && each.role === "source");
    if (!end) {
      throw new TreadleError(
        "workflow.invalid",
        `'${open.worker}' takes from channel '${request.channel}', which was passed to it as a sink; pass '.source'`,
      );
    }
    if (request.maxItems === undefined && request.maxWeight === undefined) {
      this.#sharesOf(end).ask({ take, call: request.call });
      this.#serveShares(end, state.isFull(end.stream));
      return this.#onceServed(take, answer, request.call, end, "take");
    }
    const { maxItems, maxWeight, minItems, key } = request;
    this.#apply(
      state.take({
        call: request.call,
        take,
        max: { items: maxItems, weight: maxWeight },
        min: minItems,
        key,
        nowMs: this.#options.now(),
      }),
    );
    return this.#onceServed(take, answer, request.call, end, "take");
  }

  /** Items that a channel holds, waiting or in flight. */
  depth(channel: string): number {
    return this.#channel(channel).state.snapshot().usedItems;
  }

  snapshots(): ReturnType<ChannelState["snapshot"]>[] {
    return [...this.#channels.values()].map(({ state }) => state.snapshot());
  }

  /** Rejects everything that waits; used when the run ends. */
  fail(error: TreadleError): void {
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }

  #noteConsumer({ channel, stream }: ChannelEnd, worker: string): void {
    if (this.#consumed.get(channel) !== stream) this.#consumers.set(channel, new Set());
    this.#consumed.set(channel, stream);
    this.#consumers.get(channel)?.add(worker);
  }

  /** C6. */
  #settleHoldings(call: string, open: OpenCall): void {
    if (!open.holds) return;
    open.holds = false;
    const channels = new Set(open.ends.map((end) => end.channel));
    const effects: ChannelEffect[] = [];
    for (const channel of channels) effects.push(...this.#channel(channel).state.ack({ call }));
    for (const channel of channels) effects.push(...this.#channel(channel).state.commit({ call }));
    this.#apply(effects);
  }

  #serveShares(end: ChannelEnd, isFull = false): void {
    const { state } = this.#channel(end.channel);
    this.#sharesOf(end).serve(
      () => state.queuedItems(end.stream),
      ({ take, call }, items) =>
        this.#apply(state.take({ call, take, max: { items }, min: 1, nowMs: this.#options.now() })),
      isFull,
    );
  }

  #apply(effects: readonly ChannelEffect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "put-accepted":
          this.#settle(effect.put)?.resolve(undefined);
          break;
        case "put-refused":
          this.#settle(effect.put)?.reject(effect.error);
          break;
        case "deliver": {
          const open = this.#calls.get(effect.call);
          if (open) open.holds = true;
          const batch = joinItems(effect.deliveries);
          for (const { kept } of batch.blocks) {
            for (const { segment } of kept ?? []) this.#kept.delivered(segment, effect.worker);
          }
          this.#settle(effect.take)?.resolve(batch);
          break;
        }
        case "finished":
          for (const payload of effect.payloads) {
            const { kept } = payload as StoredItem;
            if (kept) this.#free(this.#kept.finished(kept.segment));
          }
          break;
        case "end":
          this.#settle(effect.take)?.resolve(null);
          break;
        case "fail":
          this.#settle(effect.take)?.reject(effect.error);
          break;
        case "stale-ack":
          break; // the items went to somebody else when this call's worker was taken for dead
      }
    }
  }

  #free(effects: readonly PayloadEffect[]): void {
    for (const effect of effects) this.#options.onFreed?.(effect);
  }

  /** The answer itself when it is there already, so that nothing is awaited where nothing waits. */
  #onceServed<T>(request: number, answer: Promise<T>, call: string, end: ChannelEnd, on: "take" | "put"): Promise<T> {
    if (!this.#waiting.has(request)) return answer;
    const goOn = this.#options.onWait(call, end, on);
    return answer.then(async (value) => {
      this.#options.onProgress();
      await goOn();
      return value;
    });
  }

  #await(request: number, call: string, on: "put" | "take"): Promise<unknown> {
    return new Promise((resolve, reject) => this.#waiting.set(request, { call, on, resolve, reject }));
  }

  /** What a call waited for when its worker died, it started over or it ended will never be answered otherwise. */
  #callOff(call: string, on: "put" | "take"): void {
    for (const [request, waiting] of this.#waiting) {
      if (waiting.call !== call || waiting.on !== on) continue;
      this.#waiting.delete(request);
      waiting.reject(new TreadleError("call.cancelled", `call '${call}' started over or ended while its ${on} waited`));
    }
  }

  #settle(request: string | number): Waiting | undefined {
    const waiting = this.#waiting.get(request as number);
    this.#waiting.delete(request as number);
    return waiting;
  }

  #channel(name: string): { state: ChannelState; definition: ChannelDefinition } {
    const channel = this.#channels.get(name);
    if (!channel) {
      const known = this.names.join(", ") || "none";
      throw new TreadleError("workflow.invalid", `no channel is called '${name}'; this run has ${known}`);
    }
    return channel;
  }

  #openCall(call: string, channel: string): OpenCall {
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
