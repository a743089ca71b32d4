/**
 * Which item goes to which waiting take (C5): a policy is a record of pure functions that the channel's home calls.
 *
 * Whatever a policy says, per-key order and the batch bounds hold (C2): the channel applies it only among items that
 * may be delivered now.
 */
import type { CallId, ItemView } from "./channel-messages.ts";

/** A waiting take as policies see it. */
export type TakeView = {
  readonly call: CallId;
  readonly worker: string;
  readonly min: number;
  readonly maxItems: number;
  readonly maxWeight: number;
  /** Weight that this worker has acknowledged or holds in flight in this stream. */
  readonly loadWeight: number;
};

export type PickPolicy = {
  readonly name: string;
  /** Negative when `a` goes first; ties, and a policy without it, go in put order. */
  readonly compareItems?: ((a: ItemView, b: ItemView) => number) | undefined;
  /** Negative when `a` is served first; ties, and a policy without it, go in order of arrival. */
  readonly compareTakes?: ((a: TakeView, b: TakeView) => number) | undefined;
  /** Deals items one by one to the takes that wait together, instead of filling one batch after the other. */
  readonly spread?: boolean | undefined;
  /**
   * Chooses items for one take: indices into `candidates`, which are in put order. Costs a pass over everything queued
   * at every take. It may decline all of them, and wait for better ones, only while the channel has credit left and
   * producers are open; after that the put order decides, so that a policy can delay but never block.
   */
  readonly select?: ((candidates: readonly ItemView[], take: TakeView) => readonly number[]) | undefined;
};

export const fifo: PickPolicy = { name: "fifo" };

/** Highest priority first, put order among equals. */
export const priority: PickPolicy = { name: "priority", compareItems: (a, b) => b.priority - a.priority };

/** Items go to the waiting consumer with the least weight so far (RLinf §3.5, load-balancing data channel). */
export const leastLoaded: PickPolicy = {
  name: "least-loaded",
  compareTakes: (a, b) => a.loadWeight - b.loadWeight,
  spread: true,
};
