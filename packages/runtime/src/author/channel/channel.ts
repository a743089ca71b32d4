/** The two ends of a channel as workers and workflows see them. The schema of the channel is the type `T`. */
import type { Granularity } from "@treadle/contracts";
import type { PickFunction, PolicyName } from "@treadle/core";

export type BatchOptions = {
  /** items a batch holds at most; default: the plan's granularity for this channel */
  readonly items?: number | undefined;
  /** total weight a batch holds at most, unless one item alone exceeds it (C2) */
  readonly weight?: number | undefined;
  /** only items of this key, on a channel that has one: answers go to whoever asked */
  readonly key?: string | undefined;
  /**
   * When the runtime may forget a batch. `batch`: as soon as the next one is asked for; `call`: when the method returns,
   * for workers that fold batches into state (a trainer's gradients), so that their death brings all of them back.
   */
  readonly acknowledge?: "batch" | "call" | undefined;
  /**
   * For ranks that work in step, as those of a data-parallel trainer do: they take in rounds, once all of them ask. A round has `items` for
   * each of them, dealt by weight in place of number, so that none has much more to do than the others; a rank for which nothing is
   * left gets an empty batch. So all ranks get equally many batches, and end together (C8). For classes with `restart = "group"`;
   * without `weight`, and on a channel without a key.
   */
  readonly gang?: boolean | undefined;
  /**
   * What there is, one item at least, in place of so many: for a worker that gathers a whole stream, and prepares what has come while the
   * rest is made. Without `items` and `gang`.
   */
  readonly asTheyCome?: boolean | undefined;
};

/**
 * How many items may come before others are committed: so many in all, as many as the worker has room for whenever it asks, or
 * its whole part of the stream.
 */
export type InFlight = number | (() => number) | "all";

export type ItemBatchOptions =
  | (Omit<BatchOptions, "acknowledge" | "gang" | "asTheyCome"> & { readonly inFlight?: undefined })
  | { readonly inFlight: InFlight };

/** Where items come from. Iteration ends when every producing call of the stream has ended (C4). */
export interface Source<T> extends AsyncIterable<T> {
  readonly name: string;
  /** Items that the plan has a rank work on at once; `all`: its whole part of the stream. */
  readonly granularity: Granularity;
  /** The next batch, or undefined at the end of the stream. Taking acknowledges the batch before. */
  take(options?: BatchOptions): Promise<T[] | undefined>;
  batches(options?: BatchOptions): AsyncIterable<T[]>;
  /**
   * Items as they come, so many at a time that are not committed: `for await (const item of source.items({ inFlight: 8 }))`.
   * Each is worked on beside the others and committed when it is done. What is not committed when the method returns is
   * done with it. Default: `granularity`. A function is for a worker that knows itself when it has room: whenever the loop asks
   * for an item, it says how many may come at once, whatever is not committed. In workers' methods only.
   */
  items(options?: { readonly inFlight?: InFlight | undefined }): AsyncIterable<StreamItem<T>>;
  /**
   * Batches as `batches` gives them, of items that are committed one by one: for a worker that is done with some items of
   * a batch long before others. With `inFlight`, as in `items`: whatever has come, one at least. In workers' methods only.
   */
  itemBatches(options?: ItemBatchOptions): AsyncIterable<StreamItem<T>[]>;
}

/** An item of a stream that is worked on item by item. */
export interface StreamItem<T> {
  readonly value: T;
  /**
   * The item is done, and what was made of it is put: both at once, so that a death before brings the item back and one
   * after leaves its outputs as they are (C6). Resolves when the outputs have room. Outputs that are refused are put in no part: the
   * item is in flight no more, and may be committed with others. Throws `workflow.invalid` for an item
   * that has been committed.
   */
  commit(): Promise<void>;
  commit<O>(sink: Sink<O>, ...outputs: readonly O[]): Promise<void>;
}

/** Where items go. */
export interface Sink<T> {
  readonly name: string;
  /** Resolves when the channel has room for the items (C3). Throws `channel.invalid-item` before anything is sent. */
  put(...items: readonly T[]): Promise<void>;
}

/** A field of an item, or of each object in one of its arrays. */
export type WeightField<T> = {
  [K in Extract<keyof T, string>]:
    | K
    | (T[K] extends readonly (infer E)[] ? (E extends object ? `${K}.${Extract<keyof E, string>}` : never) : never);
}[Extract<keyof T, string>];

/** The fields of an item that the channel's home looks at, by name, so that the choice can cross process boundaries. */
export type ChannelOptions<T> = {
  /** FIFO holds for items of one key (C2) */
  readonly key?: Extract<keyof T, string> | undefined;
  /**
   * what load balance and batch weights count: a number, or an array of which the length counts; 1 by default. Of an array of
   * objects also a field of each, such as `episodes.tokens`: then their sum counts
   */
  readonly weight?: WeightField<T> | undefined;
  /** highest first, with `pick: "priority"` */
  readonly priority?: Extract<keyof T, string> | undefined;
  /**
   * Which waiting item or consumer goes first (C5). `fifo`: in put order. `least-loaded`: items go to the consumer with
   * the least weight so far; `weight`: and the heaviest go first, and consumers that want all of it get parts of equal weight. Or a function of the workflow's module, which chooses
   * for one take among the items that are there, in put order, by answering with their indices; with none, the take waits.
   * It must depend on nothing but its arguments; it runs in the runner, and everybody waits for it.
   */
  readonly pick?: PolicyName | PickFunction | undefined;
  /** items; overrides `flow.capacity` */
  readonly capacity?: number | undefined;
};

/** A channel in the workflow: hand `source` and `sink` to worker methods, or put and take from the workflow itself. */
export interface Channel<T> extends Omit<Source<T>, "items" | "itemBatches" | "granularity">, Sink<T> {
  readonly source: Source<T>;
  readonly sink: Sink<T>;
}
