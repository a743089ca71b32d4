/**
 * Keys and values of completions that were cut, for when they go on in a later call, whatever weights have come meanwhile.
 *
 * KV1 a cache is here, or some call's, or free: never two of these
 * KV2 one is given to what goes on with the same key behind the same tokens alone
 * KV3 at most `size` are kept: the one that was kept first goes first
 */
export class KeptCaches {
  readonly #size: number;
  readonly #kept = new Map<number, { readonly tokens: Int32Array; readonly cache: number }>();

  constructor(size: number) {
    this.#size = size;
  }

  /** `tokens`: whose keys and values it has. Returns the cache that is free by this. */
  keep(key: number, tokens: Int32Array, cache: number): number | undefined {
    const had = this.#kept.get(key) ?? (this.#kept.size < this.#size ? undefined : this.#kept.values().next().value);
    if (had) for (const [of, kept] of this.#kept) if (kept === had) this.#kept.delete(of);
    this.#kept.set(key, { tokens, cache });
    return had?.cache;
  }

  /** KV2. It is the caller's from now on. */
  take(key: number, tokens: Int32Array): { readonly cache: number; readonly numTokens: number } | undefined {
    const kept = this.#kept.get(key);
    if (!kept || kept.tokens.length >= tokens.length || kept.tokens.some((token, at) => token !== tokens[at]))
      return undefined;
    this.#kept.delete(key);
    return { cache: kept.cache, numTokens: kept.tokens.length };
  }

  /** For when the memory that they are in is gone. */
  clear(): void {
    this.#kept.clear();
  }
}
