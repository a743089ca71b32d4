/** How the items of a rank go on while it works, where each goes on as soon as it is done. Pure. */
import type { ComponentProfile, Granularity } from "@treadle/contracts";
import { endsOf } from "../profile/streamed-items.ts";

/** A rank in a step. */
export type StreamingRank = {
  /** that it takes */
  readonly items: number;
  /** that it works on at once */
  readonly places: number;
  /** how many there are */
  readonly ranks: number;
  /** of all of them */
  readonly devices: number;
};

/** Puts finer than this part of a rank's items change nothing that can be seen. */
const mostPieces = 32;

/** The part of its time after which so large a part of a rank's items has gone on; a rank that gets more goes on as it did on average. */
export function streamedParts(profile: ComponentProfile, rank: StreamingRank): (part: number) => number {
  const { fit, lengthSpread: spread = 0 } = profile;
  const { items, places, ranks, devices } = rank;
  const ends = endsOf({
    ...{ count: items, places, spread },
    perLength: fit?.longest?.perLength ?? 0,
    perItem: fit ? (fit.perItem * ranks) / devices ** fit.alpha : 1,
  });
  return (part) => {
    if (part >= 1) return part;
    const at = part * ends.length;
    const [below, above] = [ends[Math.floor(at) - 1] ?? 0, ends[Math.floor(at)] ?? 1];
    return below + (at - Math.floor(at)) * (above - below);
  };
}

/** To take and to put. */
const asksOfTake = 2;

/**
 * Seconds of each take that a rank waits for messages between two items of one place, and that items in its other places fill: what it
 * costs to ask, where single items were measured. What else a take costs besides its items is computed, and is for all places at once.
 */
export function hiddenSeconds(
  { fit, streams, samples, devicesPerRank, askSeconds = 0 }: ComponentProfile,
  places: number | "all",
): number {
  if (!streams || fit === null || places === "all" || places < 2) return 0;
  const whole = Math.max(...samples.map(({ items }) => items));
  const isSingle = samples.some(({ items, devices }) => items < whole && items * devicesPerRank <= devices);
  return isSingle ? Math.min(fit.base, asksOfTake * askSeconds) : 0;
}

/** A channel that ranks put into, and how its consumers take from it. */
type Outlet = { readonly items: number; readonly granularity: Granularity };

/**
 * Of a rank's items, how many whole ones it puts at a time, so that nobody who takes chunks waits for more than the end of an item; undefined
 * where nobody takes chunks.
 */
export function pieceOf(outlet: Outlet, items: number): number | undefined {
  if (outlet.granularity === "all" || outlet.granularity >= outlet.items) return undefined;
  return Math.max(1, Math.round(Math.max(items / mostPieces, (outlet.granularity / outlet.items) * items)));
}
