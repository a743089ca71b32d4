/**
 * Whether executions still follow the curve that was stated for them, and the one that they follow instead. Pure state.
 *
 * How long a command takes may change with what it is given, so counts are compared between neighbours only: two executions that
 * ended one after the other on different numbers of units are a pair, which says how the time changed from the fewer to the more.
 * A change of all durations is in no pair, but for the one that it falls into.
 *
 * LC1 the shape is learned again when Amdahl's law, fitted to the last 8, 16 or 24 pairs, explains them so much better than the curve
 *    in force (F test) that chance alone would do so once in tens of thousands of windows, and the two differ by more than 20 % in
 *    these pairs. Durations that spread, whatever runs where, do it in one of 170 streams of 600 executions.
 * LC2 what came before the pairs that showed it is forgotten. From then on the curve is the fit to the last 24 pairs.
 * LC3 without pairs the shape stays. The seconds on one unit follow the last 32 executions once the curve is measured, and before
 *    that where they were stated and are off by more than 25 %, by the same kind of test. Durations that spread over a factor of
 *    ten pass it in one of 20 such streams.
 */
import { z } from "zod";
import { type Amount, allowedAtLeast, allowedAtMost, leastUnits } from "./action-spec.ts";

/** pairs (or executions) in a test, and Student's t from which a difference is no chance: two-sided, about 2 in 100,000 */
const tests = [
  [8, 10],
  [16, 6],
  [24, 5.3],
] as const;
const mostPairs = 24;
const mostExecutions = 32;
/** of the logarithm: less would hardly change a decision */
const noticeableShape = Math.log(1.2);
const noticeableScale = Math.log(1.25);
/** A fit that moves the seconds on the most units by less is left out: whatever waits would be formulated again. */
const noticeableFit = 0.02;
/** executions on one number of units before another is tried: at first, or in doubt; and after many that agreed */
const leastInterval = 4;
const mostInterval = 32;

const count = z.int().positive();
const at = z.int().nonnegative();
/** of executions side by side in time, `few` < `many` units */
const Pair = z
  .strictObject({ few: count, many: count, change: z.number(), at })
  .refine(({ few, many }) => few < many, { message: "few is less than many" });
type Pair = z.infer<typeof Pair>;
const Execution = z.strictObject({ units: count, seconds: z.number().positive(), at });
type Execution = z.infer<typeof Execution>;

/** What it multiplies stays finite. */
export const mostScale = 1e100;
export const Scale = z.number().positive().max(mostScale);

export const LiveCurveState = z.strictObject({
  pairs: z.array(Pair).max(mostPairs),
  recent: z.array(Execution).max(mostExecutions),
  unpaired: Execution.optional(),
  serialShare: z.number().min(0).max(1).optional(),
  scale: Scale,
  isScaled: z.boolean(),
  observed: at,
  sinceVaried: at,
  interval: z.int().min(leastInterval).max(mostInterval),
});
export type LiveCurveState = z.infer<typeof LiveCurveState>;

/** log seconds on `units`, of one second on one unit */
const amdahl = (serialShare: number, units: number): number => Math.log(serialShare + (1 - serialShare) / units);

export class LiveCurve {
  readonly #stated: (units: number) => number;
  readonly #units: Amount;
  readonly #followsScale: boolean;
  #pairs: Pair[] = [];
  #recent: Execution[] = [];
  #unpaired: Execution | undefined;
  #serialShare: number | undefined;
  #scale = 1;
  #isScaled = false;
  #observed = 0;
  #sinceVaried = 0;
  #interval = leastInterval;

  /**
   * `stated`: seconds on so many units; `units`: those that may be granted; `followsScale`: whether the seconds on one
   * unit are stated, too, and so may be wrong; `state`: that of another, to go on with.
   */
  constructor(stated: (units: number) => number, units: Amount, followsScale: boolean, state?: LiveCurveState) {
    this.#stated = (count) => Math.log(stated(count));
    this.#units = units;
    this.#followsScale = followsScale;
    if (state === undefined) return;
    this.#pairs = [...state.pairs];
    this.#recent = [...state.recent];
    this.#unpaired = state.unpaired;
    this.#serialShare = state.serialShare;
    this.#scale = state.scale;
    this.#isScaled = state.isScaled;
    this.#observed = state.observed;
    this.#sinceVaried = state.sinceVaried;
    this.#interval = state.interval;
  }

  get state(): LiveCurveState {
    return {
      pairs: [...this.#pairs],
      recent: [...this.#recent],
      unpaired: this.#unpaired,
      serialShare: this.#serialShare,
      scale: this.#scale,
      isScaled: this.#isScaled,
      observed: this.#observed,
      sinceVaried: this.#sinceVaried,
      interval: this.#interval,
    };
  }

  /** Of the measured curve; undefined while the stated one holds. */
  get serialShare(): number | undefined {
    return this.#serialShare;
  }

  /** What the seconds of the curve in force are multiplied by. */
  get scale(): number {
    return this.#scale;
  }

  /** What it took, in seconds, or in those that were stated for one unit. Exclusive on its units, and not cut short. */
  observe(units: number, seconds: number): void {
    if (!(seconds > 0 && seconds < Number.POSITIVE_INFINITY)) return;
    const execution = { units, seconds, at: this.#observed++ };
    this.#recent.push(execution);
    if (this.#recent.length > mostExecutions) this.#recent.shift();
    const before = this.#unpaired;
    if (before === undefined || before.units === units) {
      this.#unpaired = execution;
      this.#sinceVaried++;
    } else {
      this.#unpaired = undefined;
      this.#sinceVaried = 0;
      this.#addPair(before, execution);
    }
    this.#rescale();
  }

  /**
   * Another number of units to run the next execution on, where the last ones were all on one, and nothing says whether the curve
   * holds: half as many, which take at most twice as long and no more unit-seconds, or twice the least. Told once; then not again
   * for as many executions: 4 at first, and twice as many after each pair that agrees with the curve, up to 32.
   */
  probe(): number | undefined {
    if (this.#sinceVaried < this.#interval || this.#unpaired === undefined) return undefined;
    const { units } = this.#unpaired;
    const half = allowedAtMost(this.#units, units / 2);
    const least = leastUnits(this.#units);
    const another = least === units ? allowedAtLeast(this.#units, units + 1) : least;
    const other = half ?? allowedAtLeast(this.#units, 2 * units) ?? another;
    if (other !== undefined) this.#sinceVaried = 0;
    return other;
  }

  #addPair(first: Execution, second: Execution): void {
    const [few, many] = first.units < second.units ? [first, second] : [second, first];
    const change = Math.log(many.seconds / few.seconds);
    this.#pairs.push({ few: few.units, many: many.units, change, at: first.at });
    if (this.#pairs.length > mostPairs) this.#pairs.shift();
    this.#learnShape();
    this.#interval = this.#isDoubtful() ? leastInterval : Math.min(mostInterval, 2 * this.#interval);
  }

  /** The last pair departs from the curve as those before it do not, or the last three do on the same side. */
  #isDoubtful(): boolean {
    const residuals = this.#pairs.map((pair) => pair.change - this.#changeOf(pair));
    const last = residuals.at(-1)!;
    const others = residuals.slice(0, -1);
    const usual = Math.sqrt(others.reduce((sum, residual) => sum + residual ** 2, 0) / others.length);
    if (Math.abs(last) > Math.max(noticeableShape, 2.5 * usual)) return true;
    return residuals.slice(-3).every((residual) => residual * Math.sign(last) > noticeableShape);
  }

  /** LC1, LC2 */
  #learnShape(): void {
    for (const [count, t] of tests) {
      if (this.#pairs.length < count) break;
      const last = this.#pairs.slice(-count);
      const before = squares(last, (pair) => pair.change - this.#changeOf(pair));
      // A better fit is nearer to the pairs, and so differs from the curve by at most twice as much as they do.
      if (2 * Math.sqrt(before / count) <= noticeableShape) continue;
      const fitted = fitShape(last);
      const left = squares(last, (pair) => pair.change - changeBy(fitted, pair));
      const differ = squares(last, (pair) => changeBy(fitted, pair) - this.#changeOf(pair));
      if (before - left <= (t * t * left) / (count - 1) || Math.sqrt(differ / count) <= noticeableShape) continue;
      this.#pairs = last;
      this.#forgetBefore(last[0]!.at);
      this.#serialShare = fitted;
      return;
    }
    if (this.#serialShare === undefined) return;
    const fitted = fitShape(this.#pairs);
    const most = allowedAtMost(this.#units, Number.POSITIVE_INFINITY)!;
    if (Math.abs(amdahl(fitted, most) - amdahl(this.#serialShare, most)) > noticeableFit) this.#serialShare = fitted;
  }

  /** LC3 */
  #rescale(): void {
    if (this.#serialShare === undefined && !this.#isScaled && !this.#isOffScale()) return;
    const ratios = this.#recent.map(({ units, seconds }) => seconds / Math.exp(this.#logSeconds(units)));
    this.#scale = ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length;
  }

  #isOffScale(): boolean {
    if (!this.#followsScale) return false;
    // Not by eight: every execution is tested, where a pair is one of many.
    for (const [count, t] of tests.slice(1)) {
      const last = this.#recent.slice(-count);
      if (last.length < count) return false;
      const logs = last.map(({ units, seconds }) => Math.log(seconds) - this.#logSeconds(units));
      const mean = logs.reduce((sum, value) => sum + value, 0) / count;
      const variance = logs.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
      if (Math.abs(mean) <= noticeableScale || Math.abs(mean) <= t * Math.sqrt(variance / count)) continue;
      this.#forgetBefore(last[0]!.at);
      this.#isScaled = true;
      return true;
    }
    return false;
  }

  #forgetBefore(at: number): void {
    this.#recent = this.#recent.filter((one) => one.at >= at);
  }

  #logSeconds(units: number): number {
    return this.#serialShare === undefined ? this.#stated(units) : amdahl(this.#serialShare, units);
  }

  #changeOf({ few, many }: Pair): number {
    return this.#logSeconds(many) - this.#logSeconds(few);
  }
}

const changeBy = (serialShare: number, { few, many }: Pair): number =>
  amdahl(serialShare, many) - amdahl(serialShare, few);

const squares = (pairs: readonly Pair[], of: (pair: Pair) => number): number =>
  pairs.reduce((sum, pair) => sum + of(pair) ** 2, 0);

/** The serial share of least squares: on a grid that is finest near 0, then between the neighbours of its best. */
function fitShape(pairs: readonly Pair[]): number {
  const cost = (serialShare: number): number => squares(pairs, (pair) => pair.change - changeBy(serialShare, pair));
  const grid = Array.from({ length: 33 }, (_, i) => (i / 32) ** 3);
  const costs = grid.map(cost);
  const best = costs.indexOf(Math.min(...costs));
  let low = grid[Math.max(0, best - 1)]!;
  let high = grid[Math.min(grid.length - 1, best + 1)]!;
  for (let i = 0; i < 24; i++) {
    const [left, right] = [low + (high - low) / 3, high - (high - low) / 3];
    if (cost(left) <= cost(right)) high = right;
    else low = left;
  }
  const middle = (low + high) / 2;
  return [0, 1, middle].reduce((least, one) => (cost(one) < cost(least) ? one : least), middle);
}
