/**
 * By how much ranks of a component differ that have as many items: what was measured of a whole batch is what the busiest took,
 * which a rank with a chunk of it does not take longer than the others for. Pure.
 */
import type { ComponentProfile, ProfileSample } from "@treadle/contracts";
import { alike, dealOf, expectedBusiest, expectedLongest, spreadOfRatio } from "./longest-item.ts";

type Measured = Pick<ComponentProfile, "samples" | "devicesPerRank">;

const spreads = new WeakMap<ProfileSample, number>();

/**
 * The standard deviation of the logarithm of one item's time, of the sample of a whole batch that is nearest; 0 where none says. A
 * rank's items are a sum, in which long and short ones make up for each other. Where some ranks have one item more than others, one of these
 * is the busiest however little they differ, so samples in which all have as many come first.
 */
export function itemSpread({ samples, devicesPerRank }: Measured, devices: number): number {
  const known = samples.filter((sample) => sample.unevenness !== undefined);
  const even = known.filter((sample) => sample.wholeItems === undefined);
  const distance = (sample: ProfileSample): number => Math.abs(Math.log2(sample.devices / devices));
  const [nearest] = (even.length > 0 ? even : known).toSorted((a, b) => distance(a) - distance(b));
  if (nearest?.unevenness === undefined) return 0;
  const ranks = nearest.devices / devicesPerRank;
  const ofRank = spreads.get(nearest) ?? spreadOfRatio(ranks, nearest.unevenness);
  spreads.set(nearest, ofRank);
  return ofRank * Math.sqrt((nearest.wholeItems ?? nearest.items) / ranks);
}

/**
 * How many times as long as a rank with the most items on average the busiest takes. `wholeItems`: as if each rank had as many as that one;
 * `perItem`: what is taken for each of the batch, in whole ones.
 */
export function unevennessAt(
  profile: Measured,
  devices: number,
  { items, wholeItems }: { readonly items: number; readonly wholeItems: number },
  perItem: number,
): number {
  const ranks = devices / profile.devicesPerRank;
  if (ranks < 2 || wholeItems <= 0) return 1;
  const ofRank = wholeItems / ranks;
  const spread = itemSpread(profile, devices) / Math.sqrt(ofRank);
  if (spread <= 0) return 1;
  const isWhole = Number.isFinite(perItem) && perItem > 0;
  const deal = isWhole ? dealOf(items * perItem, ranks) : alike(ranks);
  return expectedBusiest(deal, spread) / expectedLongest(1, spread);
}
