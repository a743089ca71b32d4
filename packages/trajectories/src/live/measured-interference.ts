/**
 * How much slower an episode is beside the others of its rank, measured while they run: a pure estimator. Its rank says whenever
 * its company changes, and how many tokens each turn has come to; of single tokens nobody is told.
 *
 * The seconds of a turn are known by the company that it had. Its tokens are shared out over them as the last estimate says that
 * they were made, so turns that had much and little company teach, too. A turn during which anybody waited for a place teaches
 * nothing: nobody is told whether that was itself.
 *
 * - MI1 it comes to a line through what the engine takes for a token, whatever the mixture of company was
 * - MI2 it says nothing before it has seen enough tokens, in company that differs
 * - MI3 it is never negative, and never falls with company: placement needs that
 */
import type { Interference } from "../interference.ts";

/** Of the company up to a moment: what a turn begins with. */
export type CompanyMark = Float64Array;

type Line = { readonly alone: number; readonly more: number };

const mostLevels = 64;
const fewestTokens = 500;
/** of company, by which it must differ */
const leastSpread = 0.2;
/** of what was seen, that counts after a step */
const kept = 0.7;

export class MeasuredInterference {
  readonly #places: number;
  /** episodes of one level of company */
  readonly #width: number;
  /** seconds so far by level; 0 is nobody, and the last is more than there are places */
  readonly #elapsed: Float64Array;
  readonly #crowded: number;
  readonly #seconds: Float64Array;
  readonly #tokens: Float64Array;
  #line: Line = { alone: 1, more: 0 };
  #hasLine = false;
  #company = 0;
  #sinceSeconds: number | undefined;

  /** `places`: episodes that the rank computes at once. */
  constructor(places: number) {
    this.#places = places;
    this.#width = Math.ceil(places / mostLevels);
    this.#crowded = Math.ceil(places / this.#width) + 1;
    this.#elapsed = new Float64Array(this.#crowded + 1);
    this.#seconds = new Float64Array(this.#crowded);
    this.#tokens = new Float64Array(this.#crowded);
  }

  /** As many episodes are computed, or wait for a place, from now on. */
  changed(atSeconds: number, company: number): void {
    if (this.#sinceSeconds !== undefined) {
      const seconds = Math.max(0, atSeconds - this.#sinceSeconds);
      const level = this.#company > this.#places ? this.#crowded : Math.ceil(this.#company / this.#width);
      this.#elapsed[level] = (this.#elapsed[level] as number) + seconds;
    }
    this.#sinceSeconds = atSeconds;
    this.#company = company;
  }

  /** To be taken when a turn begins, right after `changed`. */
  mark(): CompanyMark {
    return this.#elapsed.slice();
  }

  /** The turn that began at the mark has chosen so many tokens; right after `changed`. */
  turnEnded(mark: CompanyMark, tokens: number): void {
    const { alone, more } = this.#line;
    const seconds = this.#elapsed.map((until, level) => until - (mark[level] as number));
    if ((seconds[this.#crowded] as number) > 0) return;
    const made = this.#tokens.map((_, level) =>
      level === 0 ? 0 : (seconds[level] as number) / (alone + more * this.#companyOf(level)),
    );
    const total = made.reduce((sum, each) => sum + each, 0);
    if (!(total > 0) || !(tokens > 0)) return;
    for (let level = 1; level < made.length; level++) {
      this.#seconds[level] = (this.#seconds[level] as number) + (seconds[level] as number);
      this.#tokens[level] = (this.#tokens[level] as number) + (tokens * (made[level] as number)) / total;
    }
    this.#fit();
  }

  /** A step is over: what is seen from now on counts more. Company is nobody's until it is said again. */
  stepEnded(): void {
    this.#sinceSeconds = undefined;
    for (const values of [this.#seconds, this.#tokens]) for (const level of values.keys()) values[level]! *= kept;
  }

  /** MI2 */
  get factor(): Interference | undefined {
    const { numTokens, mean, variance } = this.#seen();
    if (numTokens < fewestTokens || Math.sqrt(variance) < leastSpread * mean) return undefined;
    const { alone, more } = this.#line;
    return { type: "affine", slope: more / (alone + more) };
  }

  /** What a token takes alone; undefined as long as `factor` is. */
  get tokenSeconds(): number | undefined {
    const { alone, more } = this.#line;
    return this.factor && alone + more;
  }

  /** What a token takes while every place is taken; undefined before a turn has taught anything. */
  get fullTokenSeconds(): number | undefined {
    const { alone, more } = this.#line;
    return this.#hasLine ? alone + more * this.#places : undefined;
  }

  #companyOf(level: number): number {
    return Math.min(this.#places, level * this.#width - (this.#width - 1) / 2);
  }

  #seen(): { readonly numTokens: number; readonly mean: number; readonly variance: number } {
    let [numTokens, sum, squares] = [0, 0, 0];
    for (const [level, tokens] of this.#tokens.entries()) {
      const company = this.#companyOf(level);
      numTokens += tokens;
      sum += tokens * company;
      squares += tokens * company ** 2;
    }
    if (numTokens === 0) return { numTokens, mean: 0, variance: 0 };
    const mean = sum / numTokens;
    return { numTokens, mean, variance: Math.max(0, squares / numTokens - mean ** 2) };
  }

  /** MI1, MI3: least squares of seconds a token over company, each level by its tokens. */
  #fit(): void {
    const { numTokens, mean, variance } = this.#seen();
    const seconds = this.#seconds.reduce((sum, each) => sum + each, 0) / numTokens;
    let covariance = 0;
    for (const [level, tokens] of this.#tokens.entries()) {
      if (tokens === 0) continue;
      const taken = (this.#seconds[level] as number) / tokens;
      covariance += (tokens * (this.#companyOf(level) - mean) * (taken - seconds)) / numTokens;
    }
    const most = seconds / mean;
    const more = variance > 0 ? Math.min(most, Math.max(0, covariance / variance)) : 0;
    const alone = seconds - more * mean;
    if (!(alone + more > 0 && Number.isFinite(alone + more))) return;
    this.#line = { alone, more };
    this.#hasLine = true;
  }
}
