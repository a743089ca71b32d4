/**
 * How much longer or shorter than expected one take of a rank lasts, by what is drawn for it. Ranks then no longer end together, and
 * whoever waits for all of them waits for the last. A replay and the simulation draw differently, and go by this alike. Pure.
 */
import type { ComponentProfile, Profile } from "@treadle/contracts";
import { alike, type Deal, dealOf, expectedBusiest } from "./longest-item.ts";
import { longestSeconds } from "./time-fit.ts";

export type TakenWork = {
  /** items of the channel */
  readonly taken: number;
  /** of that channel, over all ranks */
  readonly itemsPerStep: number;
  /** what is expected */
  readonly seconds: number;
  /** as `pointOf` has them */
  readonly items: number;
  readonly devices: number;
  /** of the step */
  readonly batch: number;
};

export type Drawn = {
  /** of a standard normal distribution */
  readonly deviate: () => number;
  /** of the lengths of the items that were taken, in units of the median one */
  readonly longest: () => number;
};

export type StretchOf = (work: TakenWork, drawn: Drawn) => number;

export type DifferingRanks = {
  readonly profile: ComponentProfile;
  /** of what an item takes, as the standard deviation of its logarithm, where the longest of a batch rules */
  readonly lengthSpread: number;
  /** the same where sums do */
  readonly itemSpread: number;
  /** ranks that compute at the same time */
  readonly concurrency: number;
};

/** Undefined where all ranks take as long as is expected. */
export function stretchOf(ranks: DifferingRanks): StretchOf | undefined {
  const { profile, lengthSpread, itemSpread, concurrency } = ranks;
  if (lengthSpread === 0 && itemSpread === 0) return undefined;
  const longest = profile.fit?.longest;
  const known = new Map<string, number>();
  const busiestOf = (deal: Deal, spread: number): number => {
    const key = `${deal.ranks} ${deal.most} ${deal.numMost} ${spread}`;
    const found = known.get(key) ?? expectedBusiest(deal, spread);
    known.set(key, found);
    return found;
  };
  return ({ taken, itemsPerStep, seconds, items, devices, batch }, drawn) => {
    const isWhole = items >= batch * (1 - 1e-9);
    // What was measured of a whole batch is what the busiest took, and of a chunk what a rank did.
    if (lengthSpread === 0) {
      const spread = spreadOfTake(itemSpread, taken, itemsPerStep / concurrency);
      const expected = isWhole ? busiestOf(dealOf(itemsPerStep, concurrency), spread) : busiestOf(alike(1), spread);
      return Math.exp(spread * drawn.deviate()) / expected;
    }
    const fellows = isWhole ? concurrency : 1;
    // A chunk that streams waits for no item of its own.
    if (!isWhole && longest?.streamed !== undefined) return 1;
    // A profile that does not tell the longest item's part from the rest is taken for one in which it is all.
    const ofLongest = longest ? longestSeconds(profile, { devices, items, isWhole, batch }) : seconds;
    const share = Math.min(1, ofLongest / Math.max(1e-12, seconds));
    return 1 - share + (share * drawn.longest()) / busiestOf(alike(taken * fellows), lengthSpread);
  };
}

/** Few items differ by no more than this: what tells ranks apart is not all in their items, and of very unequal ones a mean says little. */
const mostSpread = 0.3;

/** The standard deviation of the logarithm of what so many items take together, of which one has `ofItem`, for a rank with `share` items a step. */
function spreadOfTake(ofItem: number, items: number, share: number): number {
  const of = (count: number): number => ofItem / Math.sqrt(Math.max(1, count));
  return Math.min(Math.max(mostSpread, of(share)), of(items));
}

/** Whether some ranks were seen to take other times than is expected of them. */
export const mayDiffer = ({ components }: Profile): boolean =>
  Object.values(components).some(
    ({ fit, lengthSpread = 0, samples }) =>
      (fit?.longest !== undefined && lengthSpread > 0) || samples.some(({ unevenness = 1 }) => unevenness > 1),
  );
