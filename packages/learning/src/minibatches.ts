import type { Random } from "./random.ts";

export type MinibatchConfig = {
  /** passes over the items, each in an order of its own */
  readonly epochs: number;
  /** parts of one pass */
  readonly minibatches: number;
};

/**
 * The parts of PPO's inner loop ("Proximal Policy Optimization Algorithms", arXiv:1707.06347, Algorithm 1): every item
 * once an epoch, in `epochs · minibatches` parts whose sizes differ by at most one. There are always so many, empty ones
 * included, because data-parallel ranks take their optimiser steps together whatever came to each.
 */
export function* minibatchesOf<T>(
  items: readonly T[],
  { epochs, minibatches }: MinibatchConfig,
  random: Random,
): Generator<T[]> {
  for (let epoch = 0; epoch < epochs; epoch++) {
    const order = random.shuffle(items);
    for (let part = 0; part < minibatches; part++) {
      const bound = (index: number) => Math.floor((index * order.length) / minibatches);
      yield order.slice(bound(part), bound(part + 1));
    }
  }
}
