/** What a replay draws for each take of a rank: without a state, so that layouts that differ little draw alike. Pure. */
import { largestQuantile, normalQuantile } from "../profile/longest-item.ts";
import type { Drawn } from "../profile/take-stretch.ts";

/** Of a prime number of steps, so that each draw takes every part of what may be drawn once, in an order of its own. */
export type DrawnSteps = 3 | 7;

/** What a take draws in one of `of` steps in a row, whichever is the first: between 0 and 1. Equal replays draw alike. */
export function uniformOf(step: number, of: DrawnSteps, ...labels: readonly number[]): number {
  const word = hashed(labels);
  const part = ((1 + (word % (of - 1))) * step + ((word >>> 8) % of)) % of;
  return (part + (hashed([...labels, step]) + 0.5) / 2 ** 32) / of;
}

/** What `uniform` says of a take of so many items. */
export const drawnBy = (uniform: number, taken: number, lengthSpread: number): Drawn => ({
  deviate: () => normalQuantile(uniform),
  longest: () => Math.exp(lengthSpread * largestQuantile(uniform, taken)),
});

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
