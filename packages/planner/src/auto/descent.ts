/** One thing after the other is tried, and the search goes on from each that makes a step shorter, until nobody gains. Pure. */

/** Of what a step takes; a smaller gain is within the error of a prediction. */
export const leastGain = 0.01;

export type Judging<T, L> = {
  /** undefined for what may not be */
  readonly judge: (choice: T) => L | undefined;
  readonly secondsOf: (layout: L) => number;
  readonly isOver: () => boolean;
};

/** What was chosen, and what was laid out by it. */
export type Chosen<T, L> = { readonly choice: T; readonly layout: L };

export type Trying<T> = { readonly best: T; readonly tryOne: (choice: T) => void };

/** `round` tries neighbours of the best. Each is judged once, unless it takes no less than `leastSecondsOf` and that is too much already. */
export function descend<T, L>(
  first: Chosen<T, L>,
  { judge, secondsOf, isOver }: Judging<T, L>,
  keyOf: (choice: T) => string,
  round: (trying: Trying<T>) => void,
  leastSecondsOf: (choice: T) => number = () => 0,
): Chosen<T, L> {
  const seen = new Set([keyOf(first.choice)]);
  let best = first;
  const tryOne = (choice: T): void => {
    const key = keyOf(choice);
    const limit = secondsOf(best.layout) * (1 - leastGain);
    if (isOver() || seen.has(key) || leastSecondsOf(choice) > limit) return;
    seen.add(key);
    const layout = judge(choice);
    if (layout !== undefined && secondsOf(layout) < limit) best = { choice, layout };
  };
  const trying = {
    get best() {
      return best.choice;
    },
    tryOne,
  };
  for (let before: typeof best | undefined; before !== best; ) {
    before = best;
    round(trying);
  }
  return best;
}
