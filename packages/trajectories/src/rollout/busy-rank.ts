/**
 * How long a rank is busy with what is at it: one estimate, of groups before they begin and of queues while they run.
 *
 * Longest first: each that has a place makes a token every F(b) seconds, b being in places. No rank ends before its longest, nor
 * before all of its tokens are made with every place taken; and as the short ones end, the longest has less and less company. So the
 * rank lasts `max(longest, sum / places)` tokens of one episode, in which all of them make `sum`: company of `sum / that` on average.
 * Where F is affine, and who waits takes a place as soon as it is longer than what is in one, that is exact. Heddle §5.2 takes all of a
 * group to be as long as its longest, so that company stays.
 *
 * - BR1 one more, or one that is longer, never makes it less
 * - BR2 it is never above the time of a group whose longest has all of it beside it until its end
 */

type Factor = (k: number) => number;

/** What is at a rank, or shall be. */
export type Busy = {
  /** tokens of one episode that it lasts at least: of the longest that counts, or more where others go before it */
  readonly longest: number;
  /** tokens of all of them in that time */
  readonly sum: number;
  /** how many they are */
  readonly size: number;
};

/** Tokens, one after another, that it takes. `factor` must never fall. */
export function busyTokens(factor: Factor, places: number): (busy: Busy) => number {
  const beside = concaveFactor(factor);
  return ({ longest, sum, size }) => {
    const lasts = Math.max(longest, sum / places);
    return lasts === 0 ? 0 : lasts * beside(sum / lasts, Math.min(size, places));
  };
}

/** Which of a rank's episodes are beside one of them, and what comes to them. */
export type Beside = {
  /** the index of the one in question, which is not beside itself; below 0 where it is none of them */
  readonly except?: number;
  /** so many more, each of `eachMore` tokens */
  readonly numMore?: number;
  readonly eachMore?: number;
};

/**
 * What is at a rank until an episode of `rest` tokens is over, the longest first: of those beside it, what they make meanwhile. Where
 * they outnumber the places, those which are longer go down to a level before it, which all that are shorter reach together.
 * O(n) for each level that it falls to, and nothing is copied: a move asks this of two ranks after each turn.
 */
export function busyUntil(
  rest: number,
  others: readonly number[],
  places: number,
  { except = -1, numMore = 0, eachMore = 0 }: Beside = {},
): Busy {
  /** of each as much as `most` */
  const sumOf = (most: number): number => {
    let sum = Math.min(rest, most);
    for (let i = 0; i < others.length; i++) if (i !== except) sum += Math.min(others[i]!, most);
    for (let i = 0; i < numMore; i++) sum += Math.min(eachMore, most);
    return sum;
  };
  const numAbove = (level: number): number => {
    let above = (rest > level ? 1 : 0) + (eachMore > level ? numMore : 0);
    for (let i = 0; i < others.length; i++) if (i !== except && others[i]! > level) above++;
    return above;
  };
  const size = 1 + others.length - (except >= 0 ? 1 : 0) + numMore;
  let level = size > places ? sumOf(Number.POSITIVE_INFINITY) / places : 0;
  // Those above the level keep a place each; what is below shares the others. It falls until nothing above it is left out.
  for (let next = level; size > places; level = next) {
    const above = numAbove(level);
    next = (sumOf(level) - above * level) / (places - above);
    if (!(next < level)) break;
  }
  const longest = Math.max(rest, level);
  return { longest, sum: sumOf(longest), size };
}

/**
 * The least concave function that is nowhere below F from 1 to `most`, at company that is no whole number: F itself where that is affine
 * or concave. F at the average company is below the average of a convex F, and would let a group of one more take less (BR1).
 */
function concaveFactor(factor: Factor): (company: number, most: number) => number {
  /** by company, from 1 on; the corner before each, of those up to it: 0 before the first */
  const [values, before] = [[Number.NaN], [0]];
  const slope = (from: number, to: number): number => (values[to]! - values[from]!) / (to - from);
  return (company, most) => {
    for (let next = values.length; next <= most; next++) {
      values.push(factor(next));
      let last = next - 1;
      while (before[last]! > 0 && slope(before[last]!, last) <= slope(last, next)) last = before[last]!;
      before.push(last);
    }
    if (company >= most) return values[most]!;
    let [low, high] = [before[most]!, most];
    while (low > company) [low, high] = [before[low]!, low];
    return low === 0 ? values[1]! : values[low]! + (company - low) * slope(low, high);
  };
}
