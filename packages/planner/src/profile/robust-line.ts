/** A line through measurements of which some are far off. Pure. */

export type Line = { readonly base: number; readonly slope: number };

/**
 * Of lines that neither begin below 0 nor fall, the one with the least sum of absolute deviations. One such line goes through two of
 * the points, or through one and is level or begins at 0 (least absolute deviations are least at a vertex).
 */
export function robustLine(points: readonly { readonly x: number; readonly y: number }[]): Line {
  const through = points.flatMap((a, i) => [
    { base: 0, slope: a.x > 0 ? a.y / a.x : 0 },
    { base: a.y, slope: 0 },
    ...points.slice(i + 1).map((b) => {
      const slope = a.x === b.x ? 0 : (b.y - a.y) / (b.x - a.x);
      return { base: a.y - slope * a.x, slope };
    }),
  ]);
  const offBy = ({ base, slope }: Line): number =>
    points.reduce((sum, { x, y }) => sum + Math.abs(y - base - slope * x), 0);
  let best: Line = { base: 0, slope: 0 };
  for (const line of through) if (line.base >= 0 && line.slope >= 0 && offBy(line) < offBy(best)) best = line;
  return best;
}
