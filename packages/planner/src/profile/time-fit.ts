import type { ComponentProfile, TimeFit } from "@treadle/contracts";
import { expectedLongest } from "./longest-item.ts";

type Point = { readonly devices: number; readonly items: number; readonly seconds: number };

/** Of a component whose items are unequal. */
export type UnequalItems = { readonly lengthSpread: number; readonly devicesPerRank: number; readonly batch: number };

const alphas = Array.from({ length: 51 }, (_, i) => i / 50);

/** The longest item is a cause of its own where it leaves no more than this share of the squared error… */
const explainedSquares = 0.25;
/** …and without it the error is more than noise. */
const noise = 0.01;

/**
 * `base + perItem * items / devices^alpha`, with base and perItem not below 0, of least squared relative error. Pure.
 *
 * RLinf §3.4 fits a polynomial; this form has the same terms at one device count, cannot turn negative, and goes on
 * sensibly beyond what was measured. Where all points have one device count alpha is 1: work that splits evenly.
 * Where items are unequal, `perLongest` times the longest that is expected among those at hand may be a further term.
 */
export function fitTime(points: readonly Point[], unequal?: UnequalItems): TimeFit | null {
  const usable = points.filter((point) => point.seconds > 0);
  if (usable.length === 0) return null;
  const plain = fitBy(usable, () => 0);
  if (unequal === undefined || usable.length < 4) return plain.fit;
  const { lengthSpread, devicesPerRank, batch } = unequal;
  const tailed = fitBy(usable, (point) =>
    expectedLongest(rivals({ ...point, isWhole: point.items >= batch }, devicesPerRank), lengthSpread),
  );
  const isCause = plain.fit.relativeError > noise && tailed.squares < explainedSquares * plain.squares;
  return isCause ? tailed.fit : plain.fit;
}

/** `isWhole`: all items of a step, whose seconds are those of the rank that takes longest. */
export type FittedPoint = { readonly devices: number; readonly items: number; readonly isWhole: boolean };

type Fitted = Pick<ComponentProfile, "fit" | "lengthSpread" | "devicesPerRank">;

/** Seconds by the fit for `items` at a time over all ranks; undefined where there is no fit. */
export function fittedSeconds(profile: Fitted, point: FittedPoint): number | undefined {
  const { fit } = profile;
  if (!fit) return undefined;
  return fit.base + (fit.perItem * point.items) / point.devices ** fit.alpha + longestSeconds(profile, point);
}

/** What of these is the longest item's. */
export function longestSeconds({ fit, lengthSpread = 0, devicesPerRank }: Fitted, point: FittedPoint): number {
  const { perLongest = 0 } = fit ?? {};
  return perLongest === 0 ? 0 : perLongest * expectedLongest(rivals(point, devicesPerRank), lengthSpread);
}

/** How many items the longest is the longest of: a rank's, or all of them where the slowest rank counts. */
function rivals({ devices, items, isWhole }: FittedPoint, devicesPerRank: number): number {
  return isWhole ? items : (items * devicesPerRank) / devices;
}

type Terms = { readonly base: number; readonly perItem: number; readonly perLongest: number };

function fitBy(points: readonly Point[], longest: (point: Point) => number): { fit: TimeFit; squares: number } {
  const oneDeviceCount = points.every((point) => point.devices === (points[0] as Point).devices);
  const longests = points.map(longest);
  let best: TimeFit | undefined;
  let leastSquares = Number.POSITIVE_INFINITY;
  for (const alpha of oneDeviceCount ? [1] : alphas) {
    // Relative errors: each row of the equations is divided by the seconds that it should give.
    const rows = points.map(({ devices, items, seconds }, i) => [
      1 / seconds,
      items / devices ** alpha / seconds,
      (longests[i] as number) / seconds,
    ]);
    const { base, perItem, perLongest } = leastSquaresOf(rows as [number, number, number][]);
    const errors = rows.map(([a, b, c]) => base * a! + perItem * b! + perLongest * c! - 1);
    const squares = errors.reduce((sum, error) => sum + error * error, 0);
    // The largest alpha among equals: points that say nothing of it are taken for work that splits evenly.
    if (squares > leastSquares * (1 + 1e-9) + 1e-15) continue;
    leastSquares = squares;
    const relativeError = errors.reduce((sum, error) => sum + Math.abs(error), 0) / errors.length;
    best = { base, perItem, alpha, relativeError, ...(perLongest > 0 ? { perLongest } : {}) };
  }
  return { fit: best as TimeFit, squares: leastSquares };
}

const subsets: readonly (readonly number[])[] = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]];

/** Unknowns that are not negative and make every row nearest to 1: the best of all ways to leave some of them out. */
function leastSquaresOf(rows: readonly (readonly [number, number, number])[]): Terms {
  const product = (i: number, j: number): number => rows.reduce((sum, row) => sum + row[i]! * row[j]!, 0);
  const gram = [0, 1, 2].map((i) => [0, 1, 2].map((j) => product(i, j)));
  const target = [0, 1, 2].map((i) => rows.reduce((sum, row) => sum + row[i]!, 0));
  let best = [0, 0, 0];
  let most = 0;
  for (const subset of subsets) {
    const solved = solve(
      subset.map((i) => subset.map((j) => gram[i]![j]!)),
      subset.map((i) => target[i]!),
    );
    if (solved === undefined || solved.some((value) => value < 0)) continue;
    // The squared error of a solution is rows - x·target, so the largest x·target wins; more terms only where they gain.
    const gain = solved.reduce((sum, value, k) => sum + value * target[subset[k]!]!, 0);
    if (gain <= most * (1 + 1e-12)) continue;
    most = gain;
    best = [0, 1, 2].map((i) => (subset.includes(i) ? solved[subset.indexOf(i)]! : 0));
  }
  return { base: best[0]!, perItem: best[1]!, perLongest: best[2]! };
}

/** Gauss with pivots, for up to three unknowns; undefined where they cannot be told apart. */
function solve(matrix: readonly (readonly number[])[], right: readonly number[]): number[] | undefined {
  const rows = matrix.map((row, i) => [...row, right[i]!]);
  const size = rows.length;
  for (let column = 0; column < size; column++) {
    const pivot = rows.reduce(
      (a, row, i) => (i >= column && Math.abs(row[column]!) > Math.abs(rows[a]![column]!) ? i : a),
      column,
    );
    [rows[column], rows[pivot]] = [rows[pivot]!, rows[column]!];
    const scale = matrix[column]![column]!;
    if (!(Math.abs(rows[column]![column]!) > 1e-12 * scale)) return undefined;
    for (let i = 0; i < size; i++) {
      if (i === column) continue;
      const factor = rows[i]![column]! / rows[column]![column]!;
      for (let j = column; j <= size; j++) rows[i]![j]! -= factor * rows[column]![j]!;
    }
  }
  return rows.map((row, i) => row[size]! / row[i]!);
}
