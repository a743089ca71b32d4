/**
 * Sequences of these lengths in groups of at most `maxTokens` tokens, as indices; those of like length are together, the longest
 * first. A sequence is never split: one that is longer has a group of its own. Every group but the last is more than half full:
 * what closes it is no longer than what it has.
 */
export function packByTokens(lengths: ArrayLike<number>, maxTokens: number): number[][] {
  const lengthOf = (index: number): number => lengths[index] as number;
  const longestFirst = Array.from(lengths, (_, index) => index).sort((a, b) => lengthOf(b) - lengthOf(a) || a - b);
  const groups: number[][] = [];
  let tokens = 0;
  for (const index of longestFirst) {
    if (groups.length === 0 || tokens + lengthOf(index) > maxTokens) {
      groups.push([]);
      tokens = 0;
    }
    groups.at(-1)?.push(index);
    tokens += lengthOf(index);
  }
  return groups;
}
