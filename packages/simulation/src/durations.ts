/**
 * How long things take: what the profile measured, stretched to the devices and items at hand, with the spread that it
 * saw. Deterministic by seed: a draw depends on what it is for, not on when it is made.
 */
import type { ProfileSample } from "@treadle/contracts";
import { createRandom, type Random } from "@treadle/learning";
import { measuredSeconds, type StretchOf, stretchOf } from "@treadle/planner";
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
  /** items of the step */
  readonly batch: number;
};

/** Where simulated durations come from. */
export type BatchTimes = {
  /** Milliseconds that one rank computes on a batch. */
  batchMs(work: BatchWork): number;
};

export class Durations implements BatchTimes {
  readonly #random: Random;
  readonly #factors = new Map<string, number>();
  readonly #lengths = new Map<string, Float64Array>();
  readonly #seconds = new Map<string, number>();
  /** by component */
  readonly #stretches = new Map<string, StretchOf | undefined>();

  constructor(seed: number) {
    this.#random = createRandom(seed);
  }

  batchMs(work: BatchWork): number {
    const { component, step, items, devices, batch } = work;
    const key = `${component.name} ${items} ${devices}`;
    let seconds = this.#seconds.get(key);
    if (seconds === undefined) {
      seconds = measuredSeconds(component.profile, devices, items, batch);
      this.#seconds.set(key, seconds);
    }
    return 1000 * seconds * this.#factor(component, step, items) * this.#stretch(work, seconds);
  }

  /**
   * Lognormal around 1. One draw a component and step, since that is what a profile's spread is: how the time of the
   * rank that was busy longest differs between steps. Where the lengths of items rule, they are what differs.
   */
  #factor(
    { name, numDevices, profile, lengthSpread, itemSpread }: ComponentModel,
    step: number,
    items: number,
  ): number {
    if (lengthSpread > 0 || itemSpread > 0) return 1;
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

  /** By how much a batch differs from what was measured: by its longest item as it was drawn, or by its rank where sums of items differ. */
  #stretch({ component, step, items, devices, ordinals, itemsPerStep, batch }: BatchWork, seconds: number): number {
    const { name } = component;
    if (!this.#stretches.has(name)) this.#stretches.set(name, stretchOf(component));
    const stretch = this.#stretches.get(name);
    if (ordinals.length === 0 || stretch === undefined) return 1;
    const work = { taken: ordinals.length, itemsPerStep, seconds, items, devices, batch };
    const first = ordinals[0] as number;
    return stretch(work, {
      deviate: () => normal(this.#random.split("ranks").split(name).split(step).split(first)),
      longest: () => {
        const lengths = this.#lengthsOf(component, step, itemsPerStep);
        return ordinals.reduce((most, ordinal) => Math.max(most, lengths[ordinal % lengths.length] as number), 0);
      },
    });
  }

  #lengthsOf({ name, lengthSpread }: ComponentModel, step: number, itemsPerStep: number): Float64Array {
    const key = `${name} ${step} ${itemsPerStep}`;
    let lengths = this.#lengths.get(key);
    if (lengths === undefined) {
      const random = this.#random.split("lengths").split(name).split(step);
      lengths = Float64Array.from({ length: itemsPerStep }, () => Math.exp(lengthSpread * normal(random)));
      this.#lengths.set(key, lengths);
    }
    return lengths;
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

/** A standard normal deviate (Box and Muller). */
export function normal(random: Random): number {
  return Math.sqrt(-2 * Math.log(1 - random.float())) * Math.cos(2 * Math.PI * random.float());
}
