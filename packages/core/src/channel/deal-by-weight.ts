/**
 * Divides things by weight: the heaviest goes to the lightest part, and so on (Graham's LPT, "Bounds on multiprocessing timing
 * anomalies", 1969). No part weighs more than 4/3 − 1 / (3 numParts) of the heaviest part of the best division. Of equally
 * light parts, that of fewer things goes first.
 *
 * The answer has `numParts` parts, empty ones where there are fewer things: indices into `weights`, rising.
 */
export function dealByWeight(weights: readonly number[], numParts: number): number[][] {
  const parts = Array.from({ length: numParts }, () => ({ weight: 0, indices: [] as number[] }));
  const weightOf = (index: number): number => weights[index] as number;
  const heaviest = [...weights.keys()].sort((a, b) => weightOf(b) - weightOf(a) || a - b);
  for (const index of heaviest) {
    const lightest = parts.reduce((a, b) =>
      b.weight < a.weight || (b.weight === a.weight && b.indices.length < a.indices.length) ? b : a,
    );
    lightest.weight += weightOf(index);
    lightest.indices.push(index);
  }
  return parts.map(({ indices }) => indices.sort((a, b) => a - b));
}
