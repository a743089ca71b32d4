/** What the longest of several items is expected to be, when their lengths are lognormal. Pure. */

/** Strips of the integral below; twice as many change its third digit by less than one. */
const strips = 256;

/**
 * The mean of the largest of `count` lengths, in units of the median one; `spread` is the standard deviation of their
 * logarithm. The largest has quantile `u^(1/count)` of one length where u is uniform, so its mean is an integral over u.
 */
export function expectedLongest(count: number, spread: number): number {
  if (spread === 0) return 1;
  let sum = 0;
  for (let i = 0; i < strips; i++) sum += Math.exp(spread * largestQuantile((i + 0.5) / strips, count));
  return sum / strips;
}

/** How whole items are dealt to ranks: `numMost` of them have `most` each, and the others one less. */
export type Deal = { readonly ranks: number; readonly most: number; readonly numMost: number };

export function dealOf(items: number, ranks: number): Deal {
  const dealt = Math.max(1, Math.round(items));
  const busy = Math.max(1, Math.min(dealt, Math.floor(ranks + 1e-9)));
  const most = Math.ceil(dealt / busy);
  return { ranks: busy, most, numMost: busy - (most * busy - dealt) };
}

/** Ranks that have as many items each. */
export const alike = (ranks: number): Deal => ({ ranks, most: 1, numMost: ranks });

/** Of each of the two kinds of ranks; pairs of them are summed. */
const busiestStrips = 64;

/**
 * The mean of what the busiest rank takes, in units of what one with the most items takes in the median; `spread` is the standard
 * deviation of that one's logarithm. A rank with one item less takes less, and is the busiest all the same where it has long ones.
 */
export function expectedBusiest({ ranks, most, numMost }: Deal, spread: number): number {
  const others = ranks - numMost;
  if (spread === 0 || others <= 0 || most <= 1) return expectedLongest(numMost, spread);
  const ratio = (most - 1) / most;
  const longestOf = (count: number, of: number): number[] =>
    Array.from({ length: busiestStrips }, (_, i) => Math.exp(of * largestQuantile((i + 0.5) / busiestStrips, count)));
  const ofMost = longestOf(numMost, spread);
  const ofOthers = longestOf(others, spread / Math.sqrt(ratio)).map((each) => ratio * each);
  let sum = 0;
  for (const one of ofMost) for (const other of ofOthers) sum += Math.max(one, other);
  return sum / busiestStrips ** 2;
}

/** Beyond it the integral says less and less of the largest. */
const mostSpread = 2;
const halvings = 30;

/** The spread whose largest of `count` is on average `ratio` times the mean of all; 0 where there is one alone. */
export function spreadOfRatio(count: number, ratio: number): number {
  if (count <= 1 || ratio <= 1) return 0;
  let [low, high] = [0, mostSpread];
  for (let i = 0; i < halvings; i++) {
    const middle = (low + high) / 2;
    if (expectedLongest(count, middle) / expectedLongest(1, middle) < ratio) low = middle;
    else high = middle;
  }
  return low;
}

/** Of the largest of `count` standard normals the value that it stays below with probability `share`. */
export function largestQuantile(share: number, count: number): number {
  return -normalQuantile(-Math.expm1(Math.log(share) / Math.max(1, count)));
}

/** The standard normal that is not reached with probability `share`. */
export function normalQuantile(share: number): number {
  return share > 0.5 ? upperQuantile(1 - share) : -upperQuantile(share);
}

/** The standard normal that is exceeded with probability `tail`, at most 0.5: Abramowitz and Stegun 26.2.23, off by less than 4.5e-4. */
function upperQuantile(tail: number): number {
  const t = Math.sqrt(-2 * Math.log(tail));
  return t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
}

/** The standard deviation of the logarithm of the largest of `count` lengths, of which that of one is `spread`. */
export function longestSpread(count: number, spread: number): number {
  let [sum, squares] = [0, 0];
  for (let i = 0; i < strips; i++) {
    const normal = largestQuantile((i + 0.5) / strips, count);
    sum += normal / strips;
    squares += normal ** 2 / strips;
  }
  return spread * Math.sqrt(Math.max(0, squares - sum ** 2));
}
