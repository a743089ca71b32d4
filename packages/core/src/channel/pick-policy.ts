/**
 * Which item goes to which waiting take (C5): a policy is a record of pure functions that the channel's home calls.
 *
 * Whatever a policy says, per-key order and the batch bounds hold (C2): the channel applies it only among items that
 * may be delivered now.
 */
import { TreadleError } from "@treadle/contracts";
import type { CallId, ItemView } from "./channel-messages.ts";
import { dealByWeight } from "./deal-by-weight.ts";

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
  /** Divides all that is queued, for takes that want equal parts of it: the indices of the first of so many. */
  readonly share?: ((candidates: readonly ItemView[], numParts: number) => readonly number[]) | undefined;
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

/** Heaviest first, each to the waiting consumer with the least weight so far: long ones do not come last (Graham's LPT). */
export const heaviestFirst: PickPolicy = {
  ...leastLoaded,
  name: "weight",
  compareItems: (a, b) => b.weight - a.weight,
  // Whoever takes the first part leaves the others as they are, so ranks may come one by one.
  share: (candidates, numParts) =>
    dealByWeight(
      candidates.map(({ weight }) => weight),
      numParts,
    )[0] ?? [],
};

/** What a channel can be told to pick by. */
export const pickPolicies = { fifo, priority, "least-loaded": leastLoaded, weight: heaviestFirst } as const;
export type PolicyName = keyof typeof pickPolicies;

/** An item as a user's policy sees it. */
export type PickItem = Pick<ItemView, "key" | "weight" | "priority" | "sizeBytes">;
/** A take as a user's policy sees it. */
export type PickTake = Omit<TakeView, "call">;
/** A user's policy: which of the items, which are in put order, a take gets, as their indices. None: it waits. */
export type PickFunction = (items: readonly PickItem[], take: PickTake) => readonly number[];
/** Where a user's policy is found again, and what calls it. */
export type UserPolicy = { readonly module: string; readonly exportName: string; readonly pick: PickFunction };

/**
 * C5: a user's policy among items that may be delivered now. One that throws, or that answers with anything but indices
 * of items, each once, is reported; the put order decides until the run has ended. What it throws and answers is its own,
 * too: to read it may throw again.
 */
export function policyOfUser(
  channel: string,
  { exportName, pick }: UserPolicy,
  onFailed: (error: TreadleError) => void,
): PickPolicy {
  let hasFailed = false;
  const fail = (why: string, thrown?: { readonly cause: unknown }): void => {
    hasFailed = true;
    const message = `the pick policy '${exportName}' of channel '${channel}' failed: ${why}; it must answer with indices of the items that it was given, each once`;
    onFailed(new TreadleError("channel.pick-failed", message, thrown));
  };
  const picked = (candidates: readonly ItemView[], take: TakeView): readonly number[] | undefined => {
    const { worker, min, maxItems, maxWeight, loadWeight } = take;
    const items = candidates.map(({ key, weight, priority, sizeBytes }) => ({ key, weight, priority, sizeBytes }));
    try {
      const answer = indicesOf(pick(items, { worker, min, maxItems, maxWeight, loadWeight }), items.length);
      if (typeof answer !== "string") return answer;
      fail(`'${exportName}' ${answer}; it was given ${items.length} items`);
    } catch (thrown) {
      const why = pickFailure(thrown);
      fail(why.message, { cause: why });
    }
    return undefined;
  };
  return {
    name: exportName,
    select: (candidates, take) =>
      (hasFailed ? undefined : picked(candidates, take)) ?? candidates.map((_, index) => index),
  };
}

/** Of what a policy threw, characters that are told. */
const mostText = 4000;

/** What a policy threw, as an error that can be read: `String` of an object without a prototype throws, and so may a getter. */
export function pickFailure(thrown: unknown): Error {
  try {
    if (thrown instanceof Error && typeof thrown.message === "string") {
      const { name, message, stack } = thrown;
      const texts = { name: String(name).slice(0, 100), stack: String(stack).slice(0, mostText) };
      return Object.assign(new Error(String(message).slice(0, mostText)), texts);
    }
    return new Error(String(thrown).slice(0, mostText));
  } catch {
    return new Error("it threw what cannot be read");
  }
}

/** A copy of its own, since what was answered may be another array at the next look; or what is wrong with it. */
function indicesOf(picked: unknown, numItems: number): readonly number[] | string {
  if (!Array.isArray(picked)) return `answered with '${textOf(picked)}', which is no array`;
  const { length } = picked;
  if (length > numItems) return `answered with ${length} indices`;
  const indices = new Set<number>();
  for (let at = 0; at < length; at++) {
    const index: unknown = picked[at];
    const isIndex = typeof index === "number" && Number.isInteger(index) && index >= 0 && index < numItems;
    if (!isIndex) return `answered with '${textOf(index)}', which is no index`;
    if (indices.has(index)) return "answered with an index twice";
    indices.add(index);
  }
  return [...indices];
}

function textOf(value: unknown): string {
  try {
    return String(value).slice(0, 100);
  } catch {
    return `an ${typeof value} that cannot be read`;
  }
}
