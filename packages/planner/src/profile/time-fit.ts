import { type ComponentProfile, median, type TimeFit } from "@treadle/contracts";
import { expectedLongest } from "./longest-item.ts";
import { streamedLengths } from "./streamed-items.ts";

type Point = { readonly devices: number; readonly items: number; readonly seconds: number };

/** Of a component whose items are unequal. */
export type UnequalItems = {
  readonly lengthSpread: number;
  readonly devicesPerRank: number;
  /** items of a step */
  readonly batch: number;
  /** no chunk waits for its longest item: the next one takes the place of each */
  readonly streams: boolean;
};

const alphas = Array.from({ length: 51 }, (_, i) => i / 50);

/** The longest item is a cause of its own where it leaves no more than this share of the squared error… */
const explainedSquares = 0.25;
/** …and without it the error is more than noise. */
const noise = 0.04;
/** Where items stream, chunks and whole batches differ by how long places are taken alone, which no other term says. */
const streamedNoise = 0.005;

/**
 * `base + perItem * items / devices^alpha`, with base and perItem not below 0, of least squared relative error. Pure.
 *
 * RLinf §3.4 fits a polynomial; this form has the same terms at one device count, cannot turn negative, and goes on
 * sensibly beyond what was measured. Where all points have one device count alpha is 1: work that splits evenly.
 * Where items are unequal, a batch may wait for its longest. That of a chunk is expected by the spread of lengths; that of
 * a whole step is a length of its own, for a few hundred items may well lack the longest that they were to have.
 */
export function fitTime(all: readonly Point[], unequal?: UnequalItems, once?: OnceAStep): TimeFit | null {
  const points = all.map((point) => ({ ...point, seconds: point.seconds - ofOnce(once, point.items) }));
  const fit = fitWork(points, unequal);
  return fit && once && once.seconds > 0 ? { ...fit, once } : fit;
}

/** What a component does once a step: chunks have their share of it, whatever they cost besides. */
export type OnceAStep = NonNullable<TimeFit["once"]>;

const ofOnce = (once: OnceAStep | undefined, items: number): number =>
  once === undefined ? 0 : once.seconds * Math.min(1, items / once.batch);

function fitWork(points: readonly Point[], unequal: UnequalItems | undefined): TimeFit | null {
  const usable = points.filter((point) => point.seconds > 0);
  const [first] = usable;
  if (first === undefined) return null;
  // One point tells nothing apart: all of it is taken to be work, which splits evenly.
  if (usable.every(({ devices, items }) => devices === first.devices && items === first.items))
    return {
      base: 0,
      perItem: (median(usable.map(({ seconds }) => seconds)) * first.devices) / first.items,
      alpha: 1,
      relativeError: 0,
    };
  const plain = fitBy(usable, undefined);
  if (unequal === undefined || usable.length < 5 || plain.fit.relativeError < (unequal.streams ? streamedNoise : noise))
    return plain.fit;
  const tailed = fitBy(usable, unequal);
  return tailed.squares < explainedSquares * plain.squares ? tailed.fit : plain.fit;
}

/** `isWhole`: all items of a step, whose seconds are those of the rank that takes longest. */
export type FittedPoint = {
  readonly devices: number;
  readonly items: number;
  readonly isWhole: boolean;
  /** of the step that the items are of; default: of those that were measured */
  readonly batch?: number | undefined;
};

type Fitted = Pick<ComponentProfile, "fit" | "lengthSpread" | "devicesPerRank">;

/** Seconds by the fit for `items` at a time over all ranks; undefined where there is no fit. */
export function fittedSeconds(profile: Fitted, point: FittedPoint): number | undefined {
  const { fit } = profile;
  if (!fit) return undefined;
  const work = fit.base + (fit.perItem * point.items) / point.devices ** fit.alpha;
  return work + longestSeconds(profile, point) + ofOnce(fit.once, point.items);
}

/** What of these is the longest item's: none of a chunk's is longer than the longest of all. */
export function longestSeconds(profile: Fitted, { devices, items, isWhole, batch }: FittedPoint): number {
  const { fit, lengthSpread = 0, devicesPerRank } = profile;
  if (!fit?.longest) return 0;
  const { perLength, ofAll, streamed } = fit.longest;
  if (isWhole) {
    if (streamed === undefined || batch === undefined || batch === streamed) return ofAll;
    return (ofAll * expectedLongest(batch, lengthSpread)) / expectedLongest(streamed, lengthSpread);
  }
  const of = { lengthSpread, devicesPerRank, streams: streamed !== undefined, batch: batch ?? streamed ?? 0 };
  const seconds = perLength * lengthsOf({ devices, items }, of);
  return streamed === undefined ? Math.min(ofAll, seconds) : seconds;
}

/** Median lengths that a chunk's share of the time lasts, with something in its places. */
const lengthsOf = ({ devices, items }: Omit<Point, "seconds">, of: UnequalItems): number =>
  of.streams
    ? (streamedLengths(of.batch, items, of.lengthSpread) * items) / of.batch
    : expectedLongest((items * of.devicesPerRank) / devices, of.lengthSpread);

function fitBy(points: readonly Point[], unequal: UnequalItems | undefined): { fit: TimeFit; squares: number } {
  const oneDeviceCount = points.every((point) => point.devices === (points[0] as Point).devices);
  const lengths = points.map((point) => (unequal ? lengthsOf(point, unequal) : 0));
  let best: TimeFit | undefined;
  let leastSquares = Number.POSITIVE_INFINITY;
  for (const alpha of oneDeviceCount ? [1] : alphas) {
    // Relative errors: each row of the equations is divided by the seconds that it should give.
    const rows = points.map(({ devices, items, seconds }, i) => {
      const isWhole = unequal !== undefined && items >= unequal.batch;
      const longest = unequal ? [isWhole ? 0 : (lengths[i] as number), isWhole ? 1 : 0] : [];
      return [1, items / devices ** alpha, ...longest].map((value) => value / seconds);
    });
    const terms = leastSquaresOf(rows);
    const errors = rows.map((row) => row.reduce((sum, value, i) => sum + value * terms[i]!, -1));
    const squares = errors.reduce((sum, error) => sum + error * error, 0);
    // The largest alpha among equals: points that say nothing of it are taken for work that splits evenly.
    if (squares > leastSquares * (1 + 1e-9) + 1e-15) continue;
    leastSquares = squares;
    const relativeError = errors.reduce((sum, error) => sum + Math.abs(error), 0) / errors.length;
    const [base = 0, perItem = 0, perLength = 0, ofAll = 0] = terms;
    best = {
      base,
      perItem,
      alpha,
      relativeError,
      ...(perLength > 0 && ofAll > 0
        ? { longest: { perLength, ofAll, ...(unequal?.streams ? { streamed: unequal.batch } : {}) } }
        : {}),
    };
  }
  return { fit: best as TimeFit, squares: best?.longest || !unequal ? leastSquares : Number.POSITIVE_INFINITY };
}

/** Unknowns that are not negative and make every row nearest to 1: the best of all ways to leave some of them out. */
function leastSquaresOf(rows: readonly (readonly number[])[]): number[] {
  const columns = rows[0]!.map((_, i) => i);
  const gram = columns.map((i) => columns.map((j) => rows.reduce((sum, row) => sum + row[i]! * row[j]!, 0)));
  const target = columns.map((i) => rows.reduce((sum, row) => sum + row[i]!, 0));
  let best = columns.map(() => 0);
  let most = 0;
  for (let mask = 1; mask < 1 << columns.length; mask++) {
    const subset = columns.filter((i) => (mask >> i) & 1);
    const solved = solve(
      subset.map((i) => subset.map((j) => gram[i]![j]!)),
      subset.map((i) => target[i]!),
    );
    if (solved === undefined || solved.some((value) => value < 0)) continue;
    // The squared error of a solution is rows - x·target, so the largest x·target wins; more terms only where they gain.
    const gain = solved.reduce((sum, value, k) => sum + value * target[subset[k]!]!, 0);
    if (gain <= most * (1 + 1e-12)) continue;
    most = gain;
    best = columns.map((i) => (subset.includes(i) ? solved[subset.indexOf(i)]! : 0));
  }
  return best;
}

/** Gauss with pivots, for a few unknowns; undefined where they cannot be told apart. */
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
