/** A line through measurements of which some are far off. Pure. */
import { mean } from "@treadle/contracts";

/** `weight`: how much it counts */
export type Point = { readonly x: number; readonly y: number; readonly weight: number };

export type Line = { readonly base: number; readonly slope: number };

const zero: Line = { base: 0, slope: 0 };

/**
 * The line with the least sum of absolute deviations, of lines that neither begin below 0 nor fall. One of these goes through two points,
 * or it goes through one point and either begins at 0 or is level.
 */
export function robustLine(points: readonly Point[]): Line {
  const through = points.flatMap((a, i) => [
    { base: 0, slope: a.x > 0 ? a.y / a.x : 0 },
    { base: a.y, slope: 0 },
    ...points.slice(i + 1).map((b) => {
      const slope = a.x === b.x ? 0 : (b.y - a.y) / (b.x - a.x);
      return { base: a.y - slope * a.x, slope };
    }),
  ]);
  const offBy = ({ base, slope }: Line): number =>
    points.reduce((sum, { x, y, weight }) => sum + weight * Math.abs(y - base - slope * x), 0);
  const allowed = [zero, ...through].filter(({ base, slope }) => base >= 0 && slope >= 0);
  const least = Math.min(...allowed.map(offBy));
  const near = allowed.filter((line) => offBy(line) <= least * (1 + 1e-9) + 1e-12);
  const isSame = (a: Line, b: Line): boolean => Math.abs(a.base - b.base) + Math.abs(a.slope - b.slope) < 1e-12;
  const best = near.filter((line, i) => near.findIndex((other) => isSame(line, other)) === i);
  // Several may be equally near: the middle of them is as near, and does not depend on what was measured first.
  return { base: mean(best.map(({ base }) => base)), slope: mean(best.map(({ slope }) => slope)) };
}
