/** What crosses the boundary of a channel's state machine: inputs, effects, and the picture it gives of itself. */
import type { TreadleError } from "@treadle/contracts";

/** The workflow as a producer and consumer of channels. */
export const runnerName = "runner";

/** One rank of one group call, or one `put` of the runner. The rank is part of the id. */
export type CallId = string;
/** What one step's producers put and its consumers take. */
export type StreamId = string | number;
/** Chosen by whoever asks; comes back in the effect that answers. */
export type RequestId = string | number;

/** An item as a producer hands it over. The payload is opaque to the channel. */
export type PutItem = {
  readonly payload: unknown;
  readonly sizeBytes: number;
  /** Items of one key are delivered in the order they were put (C2). */
  readonly key?: string | undefined;
  /** Cost in whatever unit consumers balance by, such as tokens; at least 0, 1 when absent. */
  readonly weight?: number | undefined;
  /** Higher goes first under the `priority` policy; 0 when absent. */
  readonly priority?: number | undefined;
  /** Where the item is kept outside of the channel: `finished` names it when the channel is done with it (C7). */
  readonly segment?: string | undefined;
};

/** Items as a put brings them: an array, or whatever makes them when they are asked for. They must not change. */
export type ItemList = { readonly length: number; at(index: number): PutItem | undefined };

/** An item as consumers and policies see it. `delivery` is unique in the channel, rises in put order, and is what is acknowledged. */
export type ItemView = {
  readonly delivery: number;
  readonly key: string | undefined;
  readonly weight: number;
  readonly priority: number;
  readonly sizeBytes: number;
  readonly payload: unknown;
  readonly segment: string | undefined;
};

export type OpenInput = {
  readonly call: CallId;
  readonly worker: string;
  readonly role: "source" | "sink";
  readonly stream: StreamId;
  /** Of ranks that work in step: those of one gang may take rounds together (C8). */
  readonly gang?: string | undefined;
};

export type CallOutcome = { readonly ok: true } | { readonly ok: false; readonly error: unknown };
export type CloseInput = { readonly call: CallId; readonly outcome: CallOutcome };

export type PutInput = {
  readonly call: CallId;
  readonly put: RequestId;
  readonly items: ItemList;
  /** Holds the items back until `commit` (C6). */
  readonly staged?: boolean | undefined;
  /** Comes with the acknowledgement of what it was made of: what has no place yet outlives the call (C6). */
  readonly committed?: boolean | undefined;
  /** From whoever makes the calls that take: while the stream has had no consumer, it would wait for itself (C3). */
  readonly fromCaller?: boolean | undefined;
  readonly nowMs: number;
};

export type TakeInput = {
  readonly call: CallId;
  readonly take: RequestId;
  /** Upper bounds of the batch; no bound when absent. One item alone may exceed `weight` (C2). */
  readonly max?: { readonly items?: number | undefined; readonly weight?: number | undefined } | undefined;
  /** The batch waits for this many items, or for the end of the stream; 1 when absent, `max.items` at most. */
  readonly min?: number | undefined;
  /** What the call holds meanwhile it works on, and commits item by item. */
  readonly streams?: boolean | undefined;
  /** The take is one of so many that share what is queued, and a policy that balances gives it the first part. */
  readonly parts?: number | undefined;
  /** Takes items of this key only. */
  readonly key?: string | undefined;
  /** The call's part of its gang's next round; `max.items` is what it adds to the round (C8). */
  readonly inGang?: boolean | undefined;
  readonly nowMs: number;
};

/** With no `deliveries`, everything that the call has in flight. */
export type AckInput = { readonly call: CallId; readonly deliveries?: readonly number[] | undefined };

export type ChannelEffect =
  | { readonly type: "put-accepted"; readonly put: RequestId; readonly call: CallId }
  | { readonly type: "put-refused"; readonly put: RequestId; readonly call: CallId; readonly error: TreadleError }
  | {
      readonly type: "deliver";
      readonly take: RequestId;
      readonly call: CallId;
      readonly worker: string;
      readonly deliveries: readonly ItemView[];
    }
  | { readonly type: "end"; readonly take: RequestId; readonly call: CallId }
  | { readonly type: "fail"; readonly take: RequestId; readonly call: CallId; readonly error: TreadleError }
  /** Segments of items that were acknowledged, forgotten or refused: nobody will get them any more (C7). */
  | { readonly type: "finished"; readonly segments: readonly string[] }
  /** Deliveries that the call no longer holds; they belong to somebody else, or will. */
  | { readonly type: "stale-ack"; readonly call: CallId; readonly deliveries: readonly number[] };

export type WaitingTake = {
  readonly take: RequestId;
  readonly call: CallId;
  readonly worker: string;
  readonly sinceMs: number;
  readonly min: number;
  readonly key: string | undefined;
  /** The call works on items that it holds: it waits for more, and for nobody. */
  readonly isWorking: boolean;
  /** Ranks of its gang that do not ask yet: without them there is no round (C8). */
  readonly missing?: readonly string[];
};

export type WaitingPut = {
  readonly put: RequestId;
  readonly call: CallId;
  readonly worker: string;
  readonly sinceMs: number;
  readonly remainingItems: number;
  readonly staged: boolean;
};

export type HolderSnapshot = { readonly call: CallId; readonly worker: string };

export type StreamSnapshot = {
  readonly stream: StreamId;
  /** `open` also covers a stream that no producer has opened yet. */
  readonly state: "open" | "ended" | "failed";
  readonly queuedItems: number;
  readonly queuedWeight: number;
  readonly queuedBytes: number;
  readonly stagedItems: number;
  readonly inFlight: readonly { readonly worker: string; readonly items: number; readonly weight: number }[];
  readonly waitingTakes: readonly WaitingTake[];
  readonly waitingPuts: readonly WaitingPut[];
  readonly producers: readonly HolderSnapshot[];
  readonly consumers: readonly HolderSnapshot[];
};

export type ChannelSnapshot = {
  readonly channel: string;
  /** Queued, in flight and staged together, in all streams. */
  readonly usedItems: number;
  readonly usedBytes: number;
  /** The same by stream: what counts against the capacity. */
  readonly credit: readonly {
    readonly stream: StreamId;
    readonly usedItems: number;
    readonly usedBytes: number;
    /** items ever admitted without credit because a take was waiting for them or a transaction needed them (C3) */
    readonly overdrawnItems: number;
  }[];
  readonly streams: readonly StreamSnapshot[];
};
