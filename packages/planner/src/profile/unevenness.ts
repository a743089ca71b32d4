/**
 * By how much ranks of a component differ that have as many items: what was measured of a whole batch is what the busiest took,
 * which a rank with a chunk of it does not take longer than the others for. Pure.
 */
import type { ComponentProfile, ProfileSample } from "@treadle/contracts";
import { type Deal, expectedBusiest, expectedLongest, spreadOfRatio } from "./longest-item.ts";

type Measured = Pick<ComponentProfile, "samples" | "devicesPerRank">;

const spreads = new WeakMap<ProfileSample, number>();

/**
 * The standard deviation of the logarithm of one item's time, of the sample of a whole batch that is nearest; 0 where none says. A
 * rank's items are a sum, in which long and short ones make up for each other. Where some ranks have one item more than others, one of these
 * is the busiest however little they differ, so samples in which all have as many come first.
 */
export function itemSpread({ samples, devicesPerRank }: Measured, devices: number): number {
  const uneven = samples.filter((sample) => sample.unevenness !== undefined);
  const alike = uneven.filter((sample) => sample.wholeItems === undefined);
  const distance = (sample: ProfileSample): number => Math.abs(Math.log2(sample.devices / devices));
  const [nearest] = (alike.length > 0 ? alike : uneven).toSorted((a, b) => distance(a) - distance(b));
  if (nearest?.unevenness === undefined) return 0;
  const ranks = nearest.devices / devicesPerRank;
  const ofRank = spreads.get(nearest) ?? spreadOfRatio(ranks, nearest.unevenness);
  spreads.set(nearest, ofRank);
  return ofRank * Math.sqrt((nearest.wholeItems ?? nearest.items) / ranks);
}

/** How many times as long as a rank with the most items on average the busiest takes. */
export function unevennessAt(profile: Measured, devices: number, shared: Shared): number {
  const ranks = devices / profile.devicesPerRank;
  if (ranks < 2 || shared.wholeItems <= 0) return 1;
  const spread = itemSpread(profile, devices) / Math.sqrt(shared.wholeItems / ranks);
  return spread > 0 ? expectedBusiest(dealt(shared, ranks), spread) / expectedLongest(1, spread) : 1;
}

/** `wholeItems`: as if each rank had as many as the one with the most. */
export type Shared = { readonly items: number; readonly wholeItems: number };

/** Counted in items of the batch, also of a channel that has others for each. */
function dealt({ items, wholeItems }: Shared, ranks: number): Deal {
  const less = Math.min(ranks - 1, Math.round(wholeItems - items));
  return { ranks, most: wholeItems / ranks, numMost: ranks - less };
}
