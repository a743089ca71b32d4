/**
 * How long things take: what the profile measured, stretched to the devices and items at hand, with the spread that it
 * saw. Deterministic by seed: a draw depends on what it is for, not on when it is made.
 */
import type { ProfileSample } from "@treadle/contracts";
import { createRandom, type Random } from "@treadle/learning";
import { measuredSeconds } from "@treadle/planner";
import type { ComponentModel } from "./workflow-model.ts";

/** What a batch of a rank is, as far as its time depends on it. */
export type BatchWork = {
  readonly component: ComponentModel;
  readonly step: number;
  /** of the step's batch, at a time over all ranks that have any */
  readonly items: number;
  /** of those ranks */
  readonly devices: number;
  /** places of its items in their channel's order; empty where they do not matter */
  readonly ordinals: readonly number[];
  /** items of the step in that channel */
  readonly itemsPerStep: number;
};

export class Durations {
  readonly #random: Random;
  readonly #factors = new Map<string, number>();
  readonly #lengths = new Map<string, Float64Array>();
  readonly #seconds = new Map<string, number>();

  constructor(seed: number) {
    this.#random = createRandom(seed);
  }

  /** Milliseconds that one rank computes on a batch. */
  batchMs({ component, step, items, devices, ordinals, itemsPerStep }: BatchWork): number {
    const { name, profile } = component;
    const key = `${name} ${items} ${devices}`;
    let seconds = this.#seconds.get(key);
    if (seconds === undefined) {
      seconds = measuredSeconds(profile, devices, items);
      this.#seconds.set(key, seconds);
    }
    return (
      1000 * seconds * this.#factor(component, step, items) * this.#stretch(component, step, ordinals, itemsPerStep)
    );
  }

  /**
   * Lognormal around 1. One draw a component and step, since that is what a profile's spread is: how the time of the
   * rank that was busy longest differs between steps. Where the lengths of items rule, they are what differs.
   */
  #factor({ name, numDevices, profile, lengthSpread }: ComponentModel, step: number, items: number): number {
    if (lengthSpread > 0) return 1;
    const { spread } = nearestSample(profile.samples, numDevices, items);
    if (spread === 0) return 1;
    const key = `${name} ${step}`;
    let deviate = this.#factors.get(key);
    if (deviate === undefined) {
      deviate = normal(this.#random.split("spread").split(name).split(step));
      this.#factors.set(key, deviate);
    }
    // The median absolute deviation of a normal is 0.6745 of its standard deviation; of a narrow lognormal as well.
    return Math.exp((spread / 0.6745) * deviate);
  }

  /**
   * Items of unequal length run side by side, so the longest rules the batch. The profile's seconds are those of the rank
   * with the longest item of all: relative to that one's median a rank is mostly shorter and sometimes much longer.
   */
  #stretch(
    { name, lengthSpread, concurrency }: ComponentModel,
    step: number,
    ordinals: readonly number[],
    itemsPerStep: number,
  ): number {
    if (lengthSpread === 0 || ordinals.length === 0) return 1;
    const key = `${name} ${step} ${itemsPerStep}`;
    let deviates = this.#lengths.get(key);
    if (deviates === undefined) {
      const random = this.#random.split("lengths").split(name).split(step);
      deviates = Float64Array.from({ length: itemsPerStep }, () => normal(random));
      this.#lengths.set(key, deviates);
    }
    let longest = Number.NEGATIVE_INFINITY;
    for (const ordinal of ordinals) longest = Math.max(longest, deviates[ordinal % deviates.length] as number);
    return Math.exp(lengthSpread * (longest - medianOfLargest(ordinals.length * concurrency)));
  }
}

function nearestSample(samples: readonly ProfileSample[], devices: number, items: number): ProfileSample {
  let nearest = samples[0] as ProfileSample;
  for (const sample of samples)
    if (distance(sample, devices, items) < distance(nearest, devices, items)) nearest = sample;
  return nearest;
}

const distance = (sample: ProfileSample, devices: number, items: number): number =>
  Math.abs(Math.log2(sample.devices / devices)) + Math.abs(Math.log2(sample.items / items));

/** A standard normal deviate, by Box and Muller. */
/** A standard normal deviate (Box and Muller). */
export function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random.float())) * Math.cos(2 * Math.PI * random.float());
}

/** The median of the largest of `count` standard normals: the quantile at 0.5^(1/count). */
function medianOfLargest(count: number): number {
  const tail = -Math.expm1(Math.log(0.5) / Math.max(1, count));
  if (tail >= 0.5) return 0;
  // Abramowitz and Stegun 26.2.23, off by less than 4.5e-4.
  const t = Math.sqrt(-2 * Math.log(tail));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}
