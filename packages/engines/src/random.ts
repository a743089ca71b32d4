/** Seeded randomness without state: the n-th draw of a stream is a function of its keys, so draws can be repeated. */

/** Mixes integers into 32 well-spread bits (the finaliser of MurmurHash3 after each word). */
export function mix(...words: readonly number[]): number {
  let hash = 0x9e3779b9;
  for (const word of words) {
    hash = Math.imul(hash ^ word, 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    hash = (hash ^ (hash >>> 16)) + 0x6d2b79f5;
  }
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/** In (0, 1): never 0, so its logarithm is finite. */
export function uniform(...keys: readonly number[]): number {
  return (mix(...keys) + 0.5) / 4294967296;
}

/** Standard normal, by Box and Muller. */
export function normal(...keys: readonly number[]): number {
  return Math.sqrt(-2 * Math.log(uniform(...keys, 1))) * Math.cos(2 * Math.PI * uniform(...keys, 2));
}
