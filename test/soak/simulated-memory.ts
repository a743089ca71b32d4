/** The memory of a process on its devices: what it tells of it, and what a release has left. */
import type { ReleasableTag, WorkerMemory } from "@treadle/contracts";
import type { RunnerEffect, RunnerInput } from "@treadle/core";
import { BrokenInvariant } from "./judge.ts";
import type { Scenario } from "./simulated-cluster.ts";

export type Swap = Extract<RunnerEffect, { type: "onload" | "offload" }>;
export type Moved<Input = Extract<RunnerInput, { type: "onloaded" | "offloaded" }>> = Input extends unknown
  ? Omit<Input, "worker" | "incarnation">
  : never;

/** Two of which share a device do not fit whole, and do without the cache of one. */
export function memoryOf({ sharesDevices, tellsTags }: Scenario): WorkerMemory {
  const memoryBytes = sharesDevices ? 60 : 40;
  const tag = (name: ReleasableTag, bytes: number, seconds: number) => {
    return { tag: name, bytes, releaseSeconds: seconds, restoreSeconds: seconds };
  };
  const tags = [tag("weights", memoryBytes - 30, 1), tag("cache", 25, 0)];
  return tellsTags ? { memoryBytes, tags } : { memoryBytes };
}

export class SimulatedMemory {
  readonly #all: WorkerMemory;
  readonly #loaded = new Set<ReleasableTag>();
  #wasLoaded = false;

  constructor(scenario: Scenario) {
    this.#all = memoryOf(scenario);
  }

  /** MT3: only what is loaded leaves, and only what is not loaded comes. */
  move({ type, worker, tags = [] }: Swap): Moved {
    const { memoryBytes, tags: told } = this.#all;
    if (told && tags.length === 0) throw new BrokenInvariant(`MT3: '${worker}' has tags, and its ${type} names none`);
    for (const tag of tags) {
      const isLoaded = this.#loaded.has(tag);
      if (isLoaded !== (type === "offload")) throw new BrokenInvariant(`MT3: ${type} of '${tag}' of '${worker}'`);
      if (isLoaded) this.#loaded.delete(tag);
      else this.#loaded.add(tag);
    }
    this.#wasLoaded ||= type === "onload";
    if (type === "onload") return { type: "onloaded", ...this.#all };
    const besides = told && this.#wasLoaded ? told.reduce((rest, { bytes }) => rest - bytes, memoryBytes) : 0;
    const there = told?.filter(({ tag }) => this.#loaded.has(tag)) ?? [];
    return { type: "offloaded", residualBytes: there.reduce((sum, { bytes }) => sum + bytes, besides) };
  }
}
