import type { Episode } from "@treadle/contracts";
import type { TrainSample } from "@treadle/learning";
import { bytesOf } from "./kept-batch.ts";

/** What a rank has trained on in a step: whole, or where that is more than it may keep, those on which sampler and trained policy are furthest apart. Pure. */
export class MismatchWatch {
  readonly #mostBytes: number;
  #seen: { readonly episode: Episode; readonly meanKl: number }[] = [];
  #numBytes = 0;
  #numSeen = 0;

  constructor(mostBytes: number) {
    this.#mostBytes = mostBytes;
  }

  get numSeen(): number {
    return this.#numSeen;
  }

  /** In the order in which they were trained. */
  get episodes(): readonly Episode[] {
    return this.#seen.map(({ episode }) => episode);
  }

  observe(samples: readonly TrainSample[], meanKl: readonly number[]): void {
    this.#numSeen += samples.length;
    for (const [index, { episode }] of samples.entries()) {
      this.#seen.push({ episode, meanKl: meanKl[index]! });
      this.#numBytes += bytesOf(episode);
    }
    if (this.#numBytes <= this.#mostBytes) return;
    const left = new Set(this.#seen);
    for (const one of this.#seen.toSorted((a, b) => a.meanKl - b.meanKl)) {
      if (this.#numBytes <= this.#mostBytes) break;
      left.delete(one);
      this.#numBytes -= bytesOf(one.episode);
    }
    this.#seen = this.#seen.filter((one) => left.has(one));
  }
}
