/**
 * How much longer or shorter than expected one take of a rank lasts. Ranks then no longer end together, and whoever waits for all of
 * them waits for the last. Pure.
 */
import type { ComponentProfile, Profile } from "@treadle/contracts";
import { expectedLongest, largestQuantile, normalQuantile } from "../profile/longest-item.ts";
import { longestSeconds } from "../profile/time-fit.ts";
import { itemSpread, spreadOfTake } from "../profile/unevenness.ts";

export type TakenWork = {
  readonly taken: number;
  /** what is expected */
  readonly seconds: number;
  /** as `pointOf` has them */
  readonly items: number;
  readonly devices: number;
};

/** `uniform`: between 0 and 1, what is drawn. */
export type StretchOf = (work: TakenWork, uniform: number) => number;

type Ranks = {
  /** that compute at the same time */
  readonly concurrency: number;
  /** of all of them */
  readonly devices: number;
  readonly batch: number;
};

/** Whether some ranks were seen to take other times than is expected of them. */
export const mayDiffer = ({ components }: Profile): boolean =>
  Object.values(components).some(
    ({ fit, lengthSpread = 0, samples }) =>
      (fit?.longest !== undefined && lengthSpread > 0) || samples.some(({ unevenness = 1 }) => unevenness > 1),
  );

/** Undefined where all ranks take as long as is expected. */
export function stretchOf(profile: ComponentProfile, { concurrency, devices, batch }: Ranks): StretchOf | undefined {
  const { longest } = profile.fit ?? {};
  const lengthSpread = longest ? (profile.lengthSpread ?? 0) : 0;
  const ofItem = itemSpread(profile, devices);
  if (lengthSpread === 0 && ofItem === 0) return undefined;
  const known = new Map<string, number>();
  const longestOf = (count: number, spread: number): number => {
    const key = `${count} ${spread}`;
    const found = known.get(key) ?? expectedLongest(count, spread);
    known.set(key, found);
    return found;
  };
  return ({ taken, seconds, items, devices: used }, uniform) => {
    const isWhole = items >= batch * (1 - 1e-9);
    const count = Math.max(1, taken);
    // What was measured of a whole batch is what the busiest took, and of a chunk what a rank did.
    const fellows = isWhole ? concurrency : 1;
    if (lengthSpread === 0) {
      const spread = spreadOfTake(ofItem, count, batch / concurrency);
      return Math.exp(spread * normalQuantile(uniform)) / longestOf(fellows, spread);
    }
    // A chunk that streams waits for no item of its own.
    if (!isWhole && longest?.streamed !== undefined) return 1;
    const ofLongest = longestSeconds(profile, { devices: used, items, isWhole, batch });
    const share = Math.min(1, ofLongest / Math.max(1e-12, seconds));
    const drawn = Math.exp(lengthSpread * largestQuantile(uniform, count));
    return 1 - share + (share * drawn) / longestOf(count * fellows, lengthSpread);
  };
}

/** Of a prime number of steps, so that each draw takes every part of what may be drawn once, in an order of its own. */
export type DrawnSteps = 3 | 7;

/** What a take draws in one of `of` steps in a row, whichever is the first: between 0 and 1. Equal replays draw alike. */
export function uniformOf(step: number, of: DrawnSteps, ...labels: readonly number[]): number {
  const word = hashed(labels);
  const part = ((1 + (word % (of - 1))) * step + ((word >>> 8) % of)) % of;
  return (part + (hashed([...labels, step]) + 0.5) / 2 ** 32) / of;
}

/** A word without a pattern in what it is made of (the finalizer of MurmurHash3 over each). */
function hashed(labels: readonly number[]): number {
  let word = 0;
  for (const label of labels) {
    word = Math.imul(word ^ label, 0x9e3779b1) + 0x7f4a7c15;
    word = Math.imul(word ^ (word >>> 16), 0x85ebca6b);
    word = Math.imul(word ^ (word >>> 13), 0xc2b2ae35);
    word ^= word >>> 16;
  }
  return word >>> 0;
}
