import type { Completion, Sampling } from "@treadle/contracts";
import type { GenerateOptions } from "../engine.ts";
import type { Tree } from "./device.ts";
import { type Held, Slots } from "./slots.ts";
import type { TransformerConfig } from "./transformer-config.ts";
import type { Cache } from "./transformer-model.ts";
import { disposeCache, type TransformerPrograms } from "./transformer-programs.ts";

/** The smallest bucket that holds `count`, or the largest. `buckets` ascend. */
export function bucketFor(buckets: readonly number[], count: number): number {
  return buckets.find((bucket) => bucket >= count) ?? buckets.at(-1)!;
}

/**
 * One call of `generate`, a position of every slot at a time. Owns its cache until `dispose`.
 *
 * The samples of a group share a prompt: when that makes a smaller bucket suffice, each distinct prompt is read once, up
 * to its last token, and its keys and values are copied to the slots of its samples (256 samples of 32 prompts of 10
 * tokens: 1.7 times faster).
 */
export class Generation {
  readonly #programs: TransformerPrograms;
  readonly #slots: Slots;
  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  readonly #bytesPerSlot: number;
  readonly #extend: GenerateOptions["extend"];
  #answers: (readonly [held: Held, tokens: Int32Array | undefined])[] = [];
  #failure: { readonly error: unknown } | undefined;
  #woken: Promise<void>;
  #wake!: () => void;
  #cache: Cache;
  #prefixes: Prefixes | undefined;

  constructor(
    programs: TransformerPrograms,
    config: TransformerConfig,
    buckets: readonly number[],
    prompts: readonly Int32Array[],
    sampling: Sampling,
    extend?: GenerateOptions["extend"],
  ) {
    this.#extend = extend;
    this.#woken = this.#nextWake();
    this.#programs = programs;
    const size = bucketFor(buckets, prompts.length);
    const first = prompts.slice(0, size);
    this.#prefixes = sharedPrefixes(buckets, size, first);
    const numRead = this.#prefixes ? first.length : 0;
    this.#slots = new Slots(size, prompts, sampling, config.contextLength, numRead, extend !== undefined);
    this.#tokens = new Int32Array(size);
    this.#positions = new Int32Array(size);
    this.#cache = programs.emptyCache(this.#prefixes?.bucket ?? size);
    this.#bytesPerSlot = 2 * 4 * config.layers * config.contextLength * config.width;
  }

  get done(): boolean {
    return this.#slots.done;
  }

  /** What to await before another step has anything to do; undefined when it has. */
  idle(): Promise<void> | undefined {
    if (!this.#slots.isHeld || this.#answers.length > 0 || this.#failure) return undefined;
    return this.#woken;
  }

  /** Lets who awaits `idle` look around. */
  wake(): void {
    this.#wake();
    this.#woken = this.#nextWake();
  }

  get cacheBytes(): number {
    return this.#bytesPerSlot * (this.#prefixes?.bucket ?? this.#slots.size);
  }

  /** Returns what finished. Throws what `extend` threw. */
  step(parameters: Tree, policyVersion: number): [index: number, completion: Completion][] {
    if (this.#failure) throw this.#failure.error;
    const answers = this.#answers;
    this.#answers = [];
    const ended = answers.flatMap(([held, tokens]) => this.#slots.extend(held, tokens, policyVersion));
    // What has just ended may have been the last of it, or have left held ones only.
    if (this.done || this.#slots.isHeld) return ended;
    if (this.#prefixes) {
      this.#readPrefixes(parameters, this.#prefixes);
      return [];
    }
    this.#slots.feed(this.#tokens, this.#positions);
    const [logprobs, next] = this.#programs.decode(parameters, this.#tokens, this.#positions, this.#cache);
    this.#cache = next;
    ended.push(...this.#slots.advance(logprobs, policyVersion));
    for (const held of this.#slots.takeHeld()) this.#ask(held);
    return ended;
  }

  /** Forgets every key, value and chosen token of unfinished sequences: for when parameters changed (G3). */
  restart(): void {
    if (this.#prefixes) this.#prefixes.position = 0;
    else this.#slots.restart();
  }

  abort(policyVersion: number): [index: number, completion: Completion][] {
    return this.#slots.abort(policyVersion);
  }

  dispose(): void {
    disposeCache(this.#cache);
    this.#cache = [];
  }

  /** Others go on meanwhile. */
  #ask(held: Held): void {
    const answer = async () => this.#extend?.(held.index, held.completion);
    answer()
      .then(
        (tokens) => this.#answers.push([held, tokens]),
        (error: unknown) => {
          this.#failure ??= { error };
        },
      )
      .then(() => this.wake());
  }

  #nextWake(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #readPrefixes(parameters: Tree, prefixes: Prefixes): void {
    const tokens = new Int32Array(prefixes.bucket);
    const positions = new Int32Array(prefixes.bucket);
    prefixes.distinct.forEach((prompt, slot) => {
      // A prompt that ended before others repeats its last position, which writes what is there already.
      positions[slot] = Math.max(0, Math.min(prefixes.position, prompt.length - 2));
      tokens[slot] = prompt[positions[slot]!]!;
    });
    const [, next] = this.#programs.decode(parameters, tokens, positions, this.#cache);
    this.#cache = next;
    prefixes.position++;
    if (prefixes.position < prefixes.length) return;
    this.#cache = this.#programs.spread(next, prefixes.source);
    this.#prefixes = undefined;
  }
}

type Prefixes = {
  readonly bucket: number;
  readonly distinct: readonly Int32Array[];
  /** for each slot of the call, its prompt's place in `distinct` */
  readonly source: Int32Array;
  /** of the longest, without last tokens */
  readonly length: number;
  position: number;
};

function sharedPrefixes(
  buckets: readonly number[],
  size: number,
  prompts: readonly Int32Array[],
): Prefixes | undefined {
  const places = new Map<string, number>();
  const distinct: Int32Array[] = [];
  const source = new Int32Array(size);
  prompts.forEach((prompt, slot) => {
    const key = prompt.join();
    const place = places.get(key) ?? distinct.push(prompt) - 1;
    places.set(key, place);
    source[slot] = place;
  });
  const bucket = bucketFor(buckets, distinct.length);
  const length = Math.max(0, ...distinct.map((prompt) => prompt.length)) - 1;
  return bucket < size && length > 0 ? { bucket, distinct, source, length, position: 0 } : undefined;
}
