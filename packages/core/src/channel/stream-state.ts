/** One stream of a channel: who holds it, what waits, and when it ends. The channel's state machine owns every field. */
import type {
  CallId,
  HolderSnapshot,
  ItemList,
  PutItem,
  RequestId,
  StreamId,
  StreamSnapshot,
} from "./channel-messages.ts";
import type { CreditGate } from "./credit-gate.ts";
import type { PickPolicy } from "./pick-policy.ts";
import { type Item, StreamQueue } from "./stream-queue.ts";

export type CallState = {
  readonly call: CallId;
  /** of ranks that take rounds together (C8) */
  readonly gang: string | undefined;
  worker: string;
  source: StreamState | undefined;
  sink: StreamState | undefined;
  inFlight: Item[];
  inFlightWeight: number;
  staged: PutItem[];
  /** True between the death of the worker and `retry` or `close`: nothing from the dead process counts. */
  lost: boolean;
  /** It has replied and takes no more; no round waits for it (C8). */
  left: boolean;
};

export type TakeState = {
  readonly take: RequestId;
  readonly call: CallState;
  readonly maxItems: number;
  readonly maxWeight: number;
  readonly min: number;
  readonly parts: number | undefined;
  readonly key: string | undefined;
  readonly streams: boolean;
  readonly inGang: boolean;
  readonly sinceMs: number;
};

export type PutState = {
  readonly put: RequestId;
  readonly call: CallState;
  readonly stream: StreamState;
  readonly items: ItemList;
  /** Index of the first item that has no place yet. */
  next: number;
  staged: boolean;
  /** True once the call has committed or closed: what has no place yet outlives the call. */
  committed: boolean;
  readonly sinceMs: number;
};

export class StreamState {
  readonly id: StreamId;
  readonly queue: StreamQueue;
  readonly gate: CreditGate;
  readonly producers = new Set<CallState>();
  readonly consumers = new Set<CallState>();
  takes: TakeState[] = [];
  numWaitingPuts = 0;
  numStaged = 0;
  numInFlight = 0;
  hadProducer = false;
  hadConsumer = false;
  /** The first producer's failure; every consumer gets it (C4, S1). */
  failure: { readonly worker: string; readonly error: unknown } | undefined;
  /** Weight acknowledged by, or in flight to, each worker. */
  readonly loads = new Map<string, number>();

  constructor(id: StreamId, policy: PickPolicy, gate: CreditGate) {
    this.id = id;
    this.gate = gate;
    this.queue = new StreamQueue(policy);
  }

  /** No item will be added any more (C4). Puts that outlive their call still count: nothing is dropped (C3). */
  isSealed(): boolean {
    return this.hadProducer && this.producers.size === 0 && this.numWaitingPuts === 0 && this.numStaged === 0;
  }

  isSpent(): boolean {
    const settled = this.numInFlight === 0 && this.producers.size === 0 && this.consumers.size === 0;
    return (
      settled && this.hadConsumer && (this.failure !== undefined || (this.isSealed() && this.queue.queuedItems === 0))
    );
  }

  /** C8: the takes of each gang all of whose ranks wait, one of each, in the order of ranks: who asks first changes nothing. */
  gatheredGangs(): TakeState[][] {
    const asking = new Map<CallState, TakeState>();
    for (const take of this.takes) if (take.inGang && !asking.has(take.call)) asking.set(take.call, take);
    if (asking.size === 0) return [];
    const gangs = new Map<string, TakeState[]>();
    const missing = new Set<string>();
    for (const call of this.consumers) {
      const { gang, left } = call;
      if (gang === undefined) continue;
      const take = asking.get(call);
      if (take === undefined) {
        if (!left) missing.add(gang);
        continue;
      }
      const takes = gangs.get(gang) ?? [];
      gangs.set(gang, takes);
      takes.push(take);
    }
    return [...gangs].flatMap(([gang, takes]) => (missing.has(gang) ? [] : [takes]));
  }

  /** True when a batch for this take would be delivered now: nothing is gained by waiting, or enough is there. */
  canFill(take: TakeState): boolean {
    const available = this.queue.availableItems(take.call.call, take.key);
    if (available === 0) return false;
    if (available >= take.min || this.isSealed()) return true;
    return this.queue.availableWeight(take.call.call, take.key) >= take.maxWeight;
  }

  /**
   * True when a sealed stream has nothing more for this take (C4). Items that other calls hold are not waited for: a
   * call whose holder dies is retried, or the run ends, so nobody has to stay to take over for it.
   */
  hasEndedFor(take: TakeState): boolean {
    if (!this.isSealed()) return false;
    return (take.key === undefined ? this.queue.queuedItems : this.queue.queuedOfKey(take.key)) === 0;
  }

  snapshot(): StreamSnapshot {
    const holders = (calls: Set<CallState>): HolderSnapshot[] =>
      [...calls].map(({ call, worker }) => ({ call, worker }));
    const inFlight = new Map<string, { worker: string; items: number; weight: number }>();
    for (const { worker, inFlight: held, inFlightWeight } of this.consumers) {
      if (held.length === 0) continue;
      const entry = inFlight.get(worker) ?? { worker, items: 0, weight: 0 };
      inFlight.set(worker, { worker, items: entry.items + held.length, weight: entry.weight + inFlightWeight });
    }
    const missingOf = ({ call: { gang }, inGang }: TakeState): string[] => {
      if (!inGang) return [];
      const asking = new Set(this.takes.filter((take) => take.inGang).map(({ call }) => call));
      const others = [...this.consumers].filter((call) => call.gang === gang && !call.left && !asking.has(call));
      return others.map(({ worker }) => worker);
    };
    return {
      stream: this.id,
      state: this.failure ? "failed" : this.isSealed() ? "ended" : "open",
      queuedItems: this.queue.queuedItems,
      queuedWeight: this.queue.queuedWeight,
      queuedBytes: this.queue.queuedBytes,
      stagedItems: this.numStaged,
      inFlight: [...inFlight.values()],
      waitingTakes: this.takes.map((each) => {
        const { take, call, sinceMs, min, key, streams } = each;
        const missing = missingOf(each);
        return {
          take,
          call: call.call,
          worker: call.worker,
          sinceMs,
          min,
          key,
          isWorking: streams && call.inFlight.length > 0,
          ...(missing.length > 0 && { missing }),
        };
      }),
      waitingPuts: this.gate.waitingPuts
        .filter((put) => put.stream === this)
        .map(({ put, call, sinceMs, items, next, staged }) => ({
          put,
          call: call.call,
          worker: call.worker,
          sinceMs,
          remainingItems: items.length - next,
          staged,
        })),
      producers: holders(this.producers),
      consumers: holders(this.consumers),
    };
  }
}
