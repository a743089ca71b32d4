/** Lognormal numbers of median 1, by a linear congruential generator, which is random enough for means. */
export function lognormals(seed: number): (spread: number) => number {
  const random = uniforms(seed);
  return (spread) => Math.exp(spread * Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()));
}

function uniforms(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
