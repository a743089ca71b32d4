/** The two ends of a channel as workers and workflows see them. The schema of the channel is the type `T`. */
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
};

/** Where items come from. Iteration ends when every producing call of the stream has ended (C4). */
export interface Source<T> extends AsyncIterable<T> {
  readonly name: string;
  /** The next batch, or undefined at the end of the stream. Taking acknowledges the batch before. */
  take(options?: BatchOptions): Promise<T[] | undefined>;
  batches(options?: BatchOptions): AsyncIterable<T[]>;
}

/** Where items go. */
export interface Sink<T> {
  readonly name: string;
  /** Resolves when the channel has room for the items (C3). Throws `channel.invalid-item` before anything is sent. */
  put(...items: readonly T[]): Promise<void>;
}

/** The fields of an item that the channel's home looks at, by name, so that the choice can cross process boundaries. */
export type ChannelOptions<T> = {
  /** FIFO holds for items of one key (C2) */
  readonly key?: Extract<keyof T, string> | undefined;
  /** what load balance and batch weights count: a number, or an array of which the length counts; 1 by default */
  readonly weight?: Extract<keyof T, string> | undefined;
  /** highest first, with `pick: "priority"` */
  readonly priority?: Extract<keyof T, string> | undefined;
  /**
   * Which waiting item or consumer goes first (C5). `fifo`: in put order. `least-loaded`: items go to the consumer with
   * the least weight so far; `weight`: and the heaviest go first. Or a function of the workflow's module, which chooses
   * for one take among the items that are there, in put order, by answering with their indices; with none, the take waits.
   * It must depend on nothing but its arguments; it runs in the runner, and everybody waits for it.
   */
  readonly pick?: PolicyName | PickFunction | undefined;
  /** items; overrides `flow.capacity` */
  readonly capacity?: number | undefined;
};

/** A channel in the workflow: hand `source` and `sink` to worker methods, or put and take from the workflow itself. */
export interface Channel<T> extends Source<T>, Sink<T> {
  readonly source: Source<T>;
  readonly sink: Sink<T>;
}
