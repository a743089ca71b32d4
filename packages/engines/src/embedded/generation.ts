import type { Completion, Sampling } from "@treadle/contracts";
import type { GenerateOptions, JoiningCompletion } from "../engine.ts";
import type { KeptCaches } from "./kept-caches.ts";
import { type CachedSequence, type Held, Slots } from "./slots.ts";
import type { TransformerConfig } from "./transformer-config.ts";
import type { TransformerModel } from "./transformer-model.ts";

/** Prompt tokens read at once; more would keep the others from their next token for longer. */
const chunkTokens = 512;

/** One call of `generate`: the next token of every sequence at a time. Owns its caches until `dispose`. */
export class Generation {
  readonly #slots: Slots;
  readonly #caches: (number | undefined)[] = [];
  /** of its own, in which nothing stands */
  readonly #free: number[] = [];
  /** where what it cuts may go on with its keys and values, and what was cut does */
  readonly #kept: KeptCaches | undefined;
  readonly #extend: GenerateOptions["extend"];
  #answers: (readonly [held: Held, tokens: Int32Array | undefined])[] = [];
  #failure: { readonly error: unknown } | undefined;
  #woken: Promise<void>;
  #wake!: () => void;

  constructor(
    config: TransformerConfig,
    prompts: readonly Int32Array[],
    sampling: Sampling,
    { extend, join, keys, order, onNewWeights }: GenerateOptions = {},
    kept?: KeptCaches,
  ) {
    this.#extend = extend;
    this.#kept = onNewWeights === "keep" ? kept : undefined;
    this.#woken = this.#nextWake();
    const size = join ? config.slots : Math.min(prompts.length, config.slots);
    this.#slots = new Slots(size, prompts, sampling, config.contextLength, {
      isExtensible: extend !== undefined,
      isJoinable: join !== undefined,
      keys,
      order,
      onNewWeights,
      takeKept: (cache, key, tokens) => this.#takeKept(cache, key, tokens),
    });
  }

  /** Tokens that the last step has read. */
  numRead = 0;

  get done(): boolean {
    return this.#slots.done;
  }

  join(joining: JoiningCompletion): number {
    const index = this.#slots.join(joining);
    this.wake();
    return index;
  }

  /** Undefined where it has ended. */
  cut(index: number, policyVersion: number): Completion | undefined {
    this.#keep(this.#slots.cached(index));
    return this.#slots.cut(index, policyVersion);
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

  /** Returns what finished. Throws what `extend` threw. */
  step(model: TransformerModel, policyVersion: number): [index: number, completion: Completion][] {
    this.numRead = 0;
    if (this.#failure) throw this.#failure.error;
    const answers = this.#answers;
    this.#answers = [];
    const ended = answers.flatMap(([held, tokens]) => this.#slots.extend(held, tokens, policyVersion));
    // What has just ended may have been the last of it, or have left held ones only.
    if (this.done || this.#slots.isHeld) return ended;
    const { copies, readings } = this.#slots.next(chunkTokens);
    const cacheOf = (cache: number) => {
      const own = this.#caches[cache] ?? this.#free.pop() ?? model.openCache();
      this.#caches[cache] = own;
      return own;
    };
    for (const { from, to, count } of copies) model.copyCache(cacheOf(from), cacheOf(to), count);
    const parts = readings.map(({ cache, from, tokens }) => ({ from, tokens, cache: cacheOf(cache) }));
    this.numRead = readings.reduce((sum, { tokens }) => sum + tokens.length, 0);
    ended.push(...this.#slots.advance(readings, model.read(parts), policyVersion));
    for (const held of this.#slots.takeHeld()) this.#ask(held);
    return ended;
  }

  /** For when parameters changed; those of `policyVersion` have chosen what is there (SL3, SL11). */
  renew(policyVersion: number): void {
    this.#slots.renew(policyVersion);
  }

  abort(policyVersion: number): [index: number, completion: Completion][] {
    for (const cached of this.#slots.allCached) this.#keep(cached);
    return this.#slots.abort(policyVersion);
  }

  /** Gives its caches back to the model that it ran on. */
  dispose(model: TransformerModel): void {
    for (const cache of [...this.#caches.splice(0), ...this.#free.splice(0)])
      if (cache !== undefined) model.closeCache(cache);
  }

  /** KV1 */
  #keep(cached: CachedSequence | undefined): void {
    const own = cached && this.#caches[cached.cache];
    if (!this.#kept || own === undefined || cached === undefined || cached.tokens.length === 0) return;
    this.#caches[cached.cache] = undefined;
    const freed = this.#kept.keep(cached.key, cached.tokens, own);
    if (freed !== undefined) this.#free.push(freed);
  }

  /** KV1 */
  #takeKept(cache: number, key: number, tokens: Int32Array): number {
    const kept = this.#kept?.take(key, tokens);
    if (!kept) return 0;
    const own = this.#caches[cache];
    if (own !== undefined) this.#free.push(own);
    this.#caches[cache] = kept.cache;
    return kept.numTokens;
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
}
