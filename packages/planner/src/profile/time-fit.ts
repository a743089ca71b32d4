import type { TimeFit } from "@treadle/contracts";

type Point = { readonly devices: number; readonly items: number; readonly seconds: number };

const alphas = Array.from({ length: 51 }, (_, i) => i / 50);

/**
 * `base + perItem * items / devices^alpha`, with base and perItem not below 0, of least squared relative error. Pure.
 *
 * RLinf §3.4 fits a polynomial; this form has the same terms at one device count, cannot turn negative, and goes on
 * sensibly beyond what was measured. Where all points have one device count alpha is 1: work that splits evenly.
 */
export function fitTime(points: readonly Point[]): TimeFit | null {
  const usable = points.filter((point) => point.seconds > 0);
  if (usable.length === 0) return null;
  const oneDeviceCount = usable.every((point) => point.devices === (usable[0] as Point).devices);
  let best: TimeFit | undefined;
  let leastSquares = Number.POSITIVE_INFINITY;
  for (const alpha of oneDeviceCount ? [1] : alphas) {
    const { base, perItem } = leastRelativeSquares(usable, alpha);
    const errors = usable.map(
      ({ devices, items, seconds }) => (base + (perItem * items) / devices ** alpha - seconds) / seconds,
    );
    const squares = errors.reduce((sum, error) => sum + error * error, 0);
    // The largest alpha among equals: points that say nothing of it are taken for work that splits evenly.
    if (squares > leastSquares * (1 + 1e-9) + 1e-15) continue;
    leastSquares = squares;
    const relativeError = errors.reduce((sum, error) => sum + Math.abs(error), 0) / errors.length;
    best = { base, perItem, alpha, relativeError };
  }
  return best ?? null;
}

/** Two non-negative unknowns: the unconstrained answer where it is one, else the better of the two edges. */
function leastRelativeSquares(points: readonly Point[], alpha: number): { base: number; perItem: number } {
  let [ones, cross, squares, sumBase, sumItem] = [0, 0, 0, 0, 0];
  for (const { devices, items, seconds } of points) {
    const a = 1 / seconds;
    const b = items / devices ** alpha / seconds;
    ones += a * a;
    cross += a * b;
    squares += b * b;
    sumBase += a;
    sumItem += b;
  }
  const determinant = ones * squares - cross * cross;
  if (determinant > 1e-12 * ones * squares) {
    const base = (sumBase * squares - sumItem * cross) / determinant;
    const perItem = (sumItem * ones - sumBase * cross) / determinant;
    if (base >= 0 && perItem >= 0) return { base, perItem };
    // The error is a sum of points.length - 2·x·sum + x²·norm: the larger sum²/norm wins.
    if (sumBase ** 2 / ones > sumItem ** 2 / squares) return { base: sumBase / ones, perItem: 0 };
  }
  return { base: 0, perItem: sumItem / squares };
}
