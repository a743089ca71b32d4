/**
 * The calls that the workflow makes on groups, from the call to the last rank's reply.
 *
 * Owner of: the sequence of calls (program order), what each call holds on channels and locks, and, for groups whose
 * ranks hold one state together, the replies that wait for the other ranks.
 *
 * G1 a call's channel ends and its place in the lock order are registered before its callees run.
 * G2 where ranks hold one state together, a call ends on all of them or on none: a death sends all of them back.
 */
import {
  type CallReply,
  type CallRequest,
  fromErrorRecord,
  GroupRef,
  type ObservedCall,
  type TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { Canceller } from "@treadle/transport";
import type { ChannelEnd, ChannelHomes } from "../channel/channel-homes.ts";
import type { LockService } from "../device-lock/lock-service.ts";
import { CallHandle, type RankReply } from "../group/handle.ts";
import { mapArguments } from "../host/call-arguments.ts";
import type { Component } from "./component.ts";
import type { PendingCall, Rank } from "./rank.ts";

export type EncodedCall = {
  readonly component: Component;
  readonly ranks: readonly Rank[];
  readonly method: string;
  readonly args: readonly unknown[];
  readonly ends: readonly ChannelEnd[];
  readonly step: number | undefined;
  /** replies say what the call cost */
  readonly observe?: boolean | undefined;
};

type RankCall = {
  readonly rank: Rank;
  readonly pending: PendingCall;
  reply: CallReply | undefined;
  isSettled: boolean;
  readonly settle: { resolve: (reply: RankReply<unknown>) => void; reject: (error: unknown) => void };
};

type GroupCall = {
  readonly sequence: number;
  readonly encoded: EncodedCall;
  readonly byRank: Map<number, RankCall>;
  /** the first failure on any rank */
  failure: { readonly error: unknown } | undefined;
};

export type GroupCallsOptions = {
  readonly homes: ChannelHomes;
  readonly locks: LockService;
  readonly timeoutMs: number;
  /** ranks of a component under the present plan */
  readonly groupSize: (component: string) => number;
  /** where the state after a call is saved, for classes that save */
  readonly savePath: (component: string, sequence: number) => string;
  readonly onSaved: (component: string, path: string, step: number | undefined) => void;
  readonly onObserved: (call: ObservedCall) => void;
  readonly onProgress: () => void;
  readonly onFailure: (error: unknown) => void;
};

export class GroupCalls {
  readonly #options: GroupCallsOptions;
  readonly #open = new Map<number, GroupCall>();
  /** component and method to the last call that succeeded on any rank, for methods that are replayed */
  readonly #replays = new Map<string, EncodedCall>();
  #sequence = 0;

  constructor(options: GroupCallsOptions) {
    this.#options = options;
  }

  get open(): readonly { call: string; method: string; worker: string; replied: boolean }[] {
    return [...this.#open.values()].flatMap(({ encoded, byRank }) =>
      [...byRank.values()].map((each) => ({
        call: each.pending.request.call,
        method: encoded.method,
        worker: each.rank.name,
        replied: each.isSettled || each.reply !== undefined,
      })),
    );
  }

  call(encoded: EncodedCall): CallHandle<unknown> {
    const sequence = ++this.#sequence;
    const canceller = new Canceller();
    const call: GroupCall = { sequence, encoded, byRank: new Map(), failure: undefined };
    this.#open.set(sequence, call);
    this.#options.onProgress();
    const replies = encoded.ranks.map(
      (rank) =>
        new Promise<RankReply<unknown>>((resolve, reject) => {
          const request = this.#request(encoded, sequence, rank);
          const pending: PendingCall = {
            request,
            signal: canceller,
            timeoutMs: this.#options.timeoutMs,
            attempts: 0,
            resolve: (reply) => this.#replied(call, rank.index, reply),
            reject: (error) => this.#failed(call, rank.index, error),
          };
          call.byRank.set(rank.index, {
            rank,
            pending,
            reply: undefined,
            isSettled: false,
            settle: { resolve, reject },
          });
          // Ranks that hold one state together also work in step, so they get their devices together.
          const gang = encoded.component.workerClass.restart === "group" ? `call-${sequence}` : undefined;
          this.#register(request.call, sequence, rank, encoded.ends, gang); // G1
        }),
    );
    for (const { rank, pending } of call.byRank.values()) rank.submit(pending);
    const label = `${encoded.component.name}.${encoded.method}`;
    const cancel = (reason: TreadleError) => canceller.abort(reason);
    return new CallHandle(
      label,
      encoded.ranks.map((rank) => rank.index),
      replies,
      cancel,
    );
  }

  /** The rank's process is gone: what its calls held is free again. Whole groups start over together (G2). */
  startOver(rank: Rank, scope: "rank" | "group"): void {
    for (const call of this.#open.values()) {
      if (call.encoded.component.name !== rank.component) continue;
      for (const each of call.byRank.values()) {
        if (scope === "rank" && each.rank !== rank) continue;
        if (each.isSettled) continue;
        each.reply = undefined;
        each.pending.attempts = 0;
        each.rank.requeue(each.pending);
        this.#options.homes.startOver(each.pending.request.call, each.rank.name);
        this.#options.locks.startOver(each.pending.request.call);
      }
    }
  }

  /** One call starts over on a process that lives, after a peer of it died. */
  startCallOver(pending: PendingCall, worker: string): void {
    this.#options.homes.startOver(pending.request.call, worker);
    this.#options.locks.startOver(pending.request.call);
  }

  /** Repeats on a restarted rank what its class wants repeated; rejects when that fails. */
  async replay(rank: Rank, component: Component, send: (request: CallRequest) => Promise<unknown>): Promise<void> {
    for (const method of component.workerClass.replays) {
      const encoded = this.#replays.get(`${component.name}.${method}`);
      if (!encoded) continue;
      const sequence = ++this.#sequence;
      const args = encoded.args.map((arg) => mapArguments(arg, (value) => this.#resize(value)));
      const request = this.#request({ ...encoded, args }, sequence, rank);
      this.#register(request.call, sequence, rank, []);
      try {
        await send(request);
      } finally {
        this.#release(request.call, { ok: true });
      }
    }
  }

  /** A group as it is now: since the call was made the plan may have changed. */
  #resize(value: object): unknown {
    if (!("$group" in value)) return undefined;
    const group = GroupRef.parse(value);
    const size = this.#options.groupSize(group.$group);
    return { ...group, size, ...(group.ranks ? { ranks: group.ranks.filter((rank) => rank < size) } : {}) };
  }

  /** Rejects everything that is open. */
  fail(error: unknown): void {
    for (const call of this.#open.values()) {
      for (const each of call.byRank.values()) each.settle.reject(error);
    }
    this.#open.clear();
  }

  #request(encoded: EncodedCall, sequence: number, rank: Rank): CallRequest {
    const { component, method, args, step, observe } = encoded;
    const request: CallRequest = { call: `${sequence}/${rank.index}`, sequence, method, args: [...args] };
    if (step !== undefined) request.step = step;
    if (observe) request.observe = observe;
    if (rank.index === 0 && component.workerClass.saves.includes(method)) {
      request.savePath = this.#options.savePath(component.name, sequence);
    }
    return request;
  }

  #register(call: string, sequence: number, rank: Rank, ends: readonly ChannelEnd[], gang?: string): void {
    this.#options.homes.open(call, rank.name, ends);
    this.#options.locks.openCall({ call, worker: rank.name, sequence, ends, gang });
  }

  #release(call: string, outcome: { ok: true } | { ok: false; error: unknown }): void {
    this.#options.homes.close(call, outcome);
    this.#options.locks.closeCall(call);
  }

  #replied(call: GroupCall, index: number, reply: CallReply): void {
    this.#options.onProgress();
    const each = call.byRank.get(index) as RankCall;
    each.reply = reply;
    const together = call.encoded.component.workerClass.restart === "group";
    if (!together) this.#settle(call, each);
    else if (call.failure) this.#reject(each, call.failure.error);
    else {
      for (const other of call.byRank.values()) if (other.reply === undefined) return;
      for (const other of call.byRank.values()) this.#settle(call, other); // G2
    }
    this.#end(call);
  }

  #failed(call: GroupCall, index: number, error: unknown): void {
    call.failure ??= { error };
    this.#options.onFailure(error);
    this.#reject(call.byRank.get(index) as RankCall, error);
    // G2: those that have answered and wait for the others wait in vain.
    for (const other of call.byRank.values()) if (other.reply && !other.isSettled) this.#reject(other, error);
    this.#end(call);
  }

  #settle(call: GroupCall, each: RankCall): void {
    const reply = each.reply as CallReply;
    each.isSettled = true;
    this.#release(each.pending.request.call, { ok: true });
    const { component, method, step } = call.encoded;
    const { durationMs, observation } = reply;
    // Not when all ranks are done: one that dies before the others are would come back without it.
    if (component.workerClass.replays.includes(method)) this.#replays.set(`${component.name}.${method}`, call.encoded);
    if (reply.savedPath !== undefined) this.#options.onSaved(component.name, reply.savedPath, step);
    if (observation) {
      const { index: rank } = each.rank;
      this.#options.onObserved({ component: component.name, method, rank, step, durationMs, ...observation });
    }
    each.settle.resolve(reply);
  }

  #reject(each: RankCall, error: unknown): void {
    each.isSettled = true;
    // The record is what consumers in other processes can be told.
    this.#release(each.pending.request.call, { ok: false, error: fromErrorRecord(toErrorRecord(error)) });
    each.settle.reject(error);
  }

  #end(call: GroupCall): void {
    for (const each of call.byRank.values()) if (!each.isSettled) return;
    this.#open.delete(call.sequence);
  }
}
