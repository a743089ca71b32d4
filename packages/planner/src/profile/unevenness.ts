/**
 * By how much ranks of a component differ that have as many items: what was measured of a whole batch is what the busiest took,
 * which a rank with a chunk of it does not take longer than the others for. Pure.
 */
import type { ComponentProfile, ProfileSample } from "@treadle/contracts";
import { expectedLongest, spreadOfRatio } from "./longest-item.ts";

type Measured = Pick<ComponentProfile, "samples" | "devicesPerRank">;

const spreads = new WeakMap<ProfileSample, number>();

/**
 * The standard deviation of the logarithm of one item's time, of the sample of a whole batch that is nearest; 0 where none says. A
 * rank's items are a sum, in which long and short ones make up for each other.
 */
export function itemSpread({ samples, devicesPerRank }: Measured, devices: number): number {
  let nearest: ProfileSample | undefined;
  const distance = (sample: ProfileSample): number => Math.abs(Math.log2(sample.devices / devices));
  for (const sample of samples) {
    if (sample.unevenness === undefined) continue;
    if (nearest === undefined || distance(sample) < distance(nearest)) nearest = sample;
  }
  if (nearest?.unevenness === undefined) return 0;
  const ranks = nearest.devices / devicesPerRank;
  const ofRank = spreads.get(nearest) ?? spreadOfRatio(ranks, nearest.unevenness);
  spreads.set(nearest, ofRank);
  return ofRank * Math.sqrt((nearest.wholeItems ?? nearest.items) / ranks);
}

/** How many times as long as a rank on average the busiest takes, for `items` on all of them. */
export function unevennessAt(profile: Measured, devices: number, items: number): number {
  const ranks = devices / profile.devicesPerRank;
  if (ranks < 2 || items <= 0) return 1;
  const spread = itemSpread(profile, devices) / Math.sqrt(items / ranks);
  return spread > 0 ? expectedLongest(ranks, spread) / expectedLongest(1, spread) : 1;
}
