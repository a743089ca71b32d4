/** Uniform in [0, 1); a 32-bit counter put through an integer hash, so that any seed will do. */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    return (scramble(state) >>> 0) / 2 ** 32;
  };
}

/** An integer hash of 32 bits. */
export function scramble(bits: number): number {
  let mixed = Math.imul(bits ^ (bits >>> 16), 0x21f0aaad);
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
  return mixed ^ (mixed >>> 15);
}

/** Standard normal numbers from uniform ones, by Box and Muller. */
export function normalFrom(uniform: () => number): () => number {
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}
