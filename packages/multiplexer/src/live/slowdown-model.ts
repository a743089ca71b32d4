/**
 * How much slower works are beside one another, from what ranks report in production (JigsawRL §4.2). Pure: samples in, estimates
 * with their errors out.
 *
 * Where the paper profiles a grid beforehand, here only pairs that occur are measured, while runs go on. A sample has the passes
 * and tokens that were computed, so that one of a long rollout and one of a short training weigh alike: alone, milliseconds are
 * fitted to both; beside another, a sample's slowdown is what it took over what it would have taken alone by that fit.
 *
 * - SM1 a pair is measured only by samples of a work that has been measured alone before, at the same level of memory.
 * - SM2 a contended sample counts for nothing: other processes had the processors. Only where works compute on processors, which
 *   are their devices, is what they take from one another beside each other their slowdown.
 * - SM3 an estimate is within those of the levels of memory between which it is interpolated, and its error includes how much
 *   these differ. What is further than one level from all that was measured is not known.
 * - SM4 a sample of a work beside several others says only how slow the work is beside the worst of them. It counts, as a bound, for
 *   pairs that meet in such company alone: half of their tries have told nothing better.
 */
import type { KnownSlowdowns, MeasuredSlowdown, Work, WorkSample } from "@treadle/contracts";

export type Slowdown = { readonly factor: number; readonly error: number };

/** Parts of a device's memory that are told apart. */
export const memoryLevels = [0.2, 0.4, 0.6, 0.8, 1] as const;
/** Samples, alone and of a pair, from which an estimate counts. */
export const leastSamples = 3;
/** A pair of which so many samples were rejected, or are too few yet, is tried no more. */
export const mostTries = 16;
/** A pair that is known is tried on for the sake of the other way round, whose samples may be fewer. */
export const mostTriesOfKnown = 4 * mostTries;
/** Older samples count less: half as much after about 34 newer ones. */
const keptPart = 0.98;
const contendedPart = 0.1;
/** Of its time, what a process that computes on processors has one, or waits for one. */
const computingPart = 0.5;
/** Works, and pairs of them, that are kept: those that were measured last. */
const [mostWorks, mostPairs] = [2000, 20_000];
/** Of an estimate that was measured one level of memory away. */
const errorOfLevel = 0.1;

type Ratios = KnownSlowdowns["pairs"][number]["told"];
type Alone = { samples: number; sums: [number, number, number, number, number]; told: Ratios };
type Pair = { tried: number; told: Ratios };

export class SlowdownModel {
  readonly #alone = new Map<string, Alone>();
  readonly #pairs = new Map<string, Map<number, Pair>>();
  #version = 0;

  constructor(known?: KnownSlowdowns) {
    for (const { work, memory, samples, sums, told } of known?.alone ?? [])
      this.#alone.set(keyOf(work, levelOf(memory)), { samples, sums: [...sums], told: { ...told } });
    for (const { work, beside, memory, tried, told } of known?.pairs ?? [])
      this.#levelsOf(work, beside).set(levelOf(memory), { tried, told: { ...told } });
  }

  /** Grows with each sample that counts. */
  get version(): number {
    return this.#version;
  }

  /** SM1, SM2: whether it counts. `memory`: the part of its devices' memory that the work's run has. */
  add({ work, beside, devices, passes, tokens, ms, cpuMs, queuedMs }: WorkSample, memory: number): boolean {
    if (!(ms > 0) || !(passes > 0)) return false;
    const level = levelOf(memory);
    const isContended = queuedMs > contendedPart * ms;
    const isOnProcessors = devices.every(isCpu) && cpuMs + queuedMs > computingPart * ms;
    if (beside.length === 0) {
      if (isContended) return false;
      this.#addAlone(keyOf(work, level), passes, tokens, ms);
    } else {
      const pairs = beside.map((other) => this.#pairAt(work, other, level));
      for (const pair of pairs) pair.tried++;
      const expected = this.aloneMs(work, memory, passes, tokens);
      const told = pairs.length === 1 ? pairs : pairs.filter(isBounded); // SM4
      if (told.length === 0 || expected === undefined || (isContended && !isOnProcessors)) return false;
      for (const pair of told) count(pair.told, expected, ms);
    }
    this.#version++;
    return true;
  }

  /** What it takes alone; undefined before it was measured often enough. */
  aloneMs(work: Work, memory: number, passes: number, tokens: number): number | undefined {
    const alone = this.#alone.get(keyOf(work, levelOf(memory)));
    if (alone === undefined || alone.samples < leastSamples) return undefined;
    const [aPass, aToken] = fitted(alone.sums);
    const ms = aPass * passes + aToken * tokens;
    return ms > 0 ? ms : undefined;
  }

  isKnownAlone(work: Work, memory: number): boolean {
    return (this.#alone.get(keyOf(work, levelOf(memory)))?.samples ?? 0) >= leastSamples;
  }

  /** SM3; undefined where it is not known. */
  slowdown(work: Work, beside: Work, memory: number): Slowdown | undefined {
    const level = levelOf(memory);
    const measured = [...(this.#pairs.get(keyOf(work, beside)) ?? [])]
      .filter(([, pair]) => isTold(pair))
      .map(([at, { told }]) => ({ at, ...this.#estimate(work, at, told) }))
      .sort((a, b) => a.at - b.at);
    const below = measured.findLast(({ at }) => at <= level);
    const above = measured.find(({ at }) => at >= level);
    if (below && above) {
      const part = above.at === below.at ? 0 : (level - below.at) / (above.at - below.at);
      const factor = below.factor + part * (above.factor - below.factor);
      const apart = Math.abs(above.factor - below.factor) * Math.min(part, 1 - part);
      return { factor, error: Math.max(below.error, above.error) + apart };
    }
    const nearest = below ?? above;
    if (nearest === undefined || Math.abs(nearest.at - level) > 1) return undefined;
    return { factor: nearest.factor, error: nearest.error + errorOfLevel * nearest.factor };
  }

  /** All that count. */
  measured(): MeasuredSlowdown[] {
    return this.known().pairs.flatMap(({ work, beside, memory, told }) => {
      const found = told.count > leastSamples - 1 ? this.slowdown(work, beside, memory) : undefined;
      return found === undefined ? [] : [{ work, beside, memory, ...found, samples: told.count }];
    });
  }

  /** Whether another try may still tell what is not known: of this pair, or of the same two the other way round. */
  mayTry(work: Work, beside: Work, memory: number): boolean {
    const pair = this.#pairs.get(keyOf(work, beside))?.get(levelOf(memory));
    const most = pair !== undefined && isTold(pair) ? mostTriesOfKnown : mostTries;
    return this.isKnownAlone(work, memory) && (pair?.tried ?? 0) < most;
  }

  /** To be kept. */
  known(): KnownSlowdowns {
    const named = (key: string) => JSON.parse(key) as [string, string | number];
    const alone = [...this.#alone].map(([key, { samples, sums, told }]) => {
      const [work, level] = named(key) as [string, number];
      return {
        work,
        memory: memoryLevels[level] as number,
        samples,
        sums: [...sums] as Alone["sums"],
        told: { ...told },
      };
    });
    const pairs = [...this.#pairs].flatMap(([key, levels]) => {
      const [work, beside] = named(key) as [string, string];
      return [...levels].map(([level, { tried, told }]) => {
        return { work, beside, memory: memoryLevels[level] as number, tried, told: { ...told } };
      });
    });
    return { version: 1, alone: alone.slice(-mostWorks), pairs: pairs.slice(-mostPairs) };
  }

  #addAlone(key: string, passes: number, tokens: number, ms: number): void {
    const alone = this.#alone.get(key) ?? { samples: 0, sums: [0, 0, 0, 0, 0], told: { ...nothingTold } };
    this.#alone.delete(key); // what was measured last stands last
    this.#alone.set(key, alone);
    if (alone.samples >= leastSamples) {
      const [aPass, aToken] = fitted(alone.sums);
      count(alone.told, Math.max(aPass * passes + aToken * tokens, Number.MIN_VALUE), ms);
    }
    alone.samples++;
    // Relative to its length: a sample of ten times as many passes is ten times as far off.
    const [p, t] = [passes / ms, tokens / ms];
    const added = [p * p, p * t, t * t, p, t];
    alone.sums = alone.sums.map((sum, i) => keptPart * sum + (added[i] as number)) as Alone["sums"];
  }

  #estimate(work: Work, level: number, told: Ratios): Slowdown {
    const alone = this.#alone.get(keyOf(work, level))?.told;
    const factor = told.ms / told.expected;
    const ofAlone = alone === undefined || alone.count < 2 ? 0 : factor * standardError(alone);
    return { factor, error: Math.hypot(standardError(told), ofAlone) };
  }

  #pairAt(work: Work, beside: Work, level: number): Pair {
    const levels = this.#levelsOf(work, beside);
    this.#pairs.delete(keyOf(work, beside)); // what was measured last stands last
    this.#pairs.set(keyOf(work, beside), levels);
    const pair = levels.get(level) ?? { tried: 0, told: { ...nothingTold } };
    levels.set(level, pair);
    return pair;
  }

  #levelsOf(work: Work, beside: Work): Map<number, Pair> {
    const key = keyOf(work, beside);
    const levels = this.#pairs.get(key) ?? new Map<number, Pair>();
    this.#pairs.set(key, levels);
    return levels;
  }
}

/** SM4: half of its tries are over, and it is not known. */
const isBounded = (pair: Pair): boolean => pair.tried > mostTries / 2 && !isTold(pair);

/** So many samples, which have aged a little. */
const isTold = ({ told }: Pair): boolean => told.count > leastSamples - 1;

const nothingTold: Ratios = { count: 0, expected: 0, ms: 0, squares: 0 };

const keyOf = (work: Work, beside: Work | number): string => JSON.stringify([work, beside]);

const isCpu = (device: string): boolean => /(^|\/)cpu:/.test(device);

/** The index of the nearest level. */
function levelOf(memory: number): number {
  const distances = memoryLevels.map((level) => Math.abs(level - memory));
  return distances.indexOf(Math.min(...distances));
}

function count(told: Ratios, expected: number, ms: number): void {
  told.count = keptPart * told.count + 1;
  told.expected = keptPart * told.expected + expected;
  told.ms = keptPart * told.ms + ms;
  told.squares = keptPart * told.squares + (ms * ms) / expected;
}

/** Of the mean ratio of milliseconds to what was expected. */
function standardError({ count: n, expected, ms, squares }: Ratios): number {
  const mean = ms / expected;
  return Math.sqrt(Math.max(0, squares / expected - mean * mean) / Math.max(1, n - 1));
}

/** Milliseconds a pass and a token, neither below 0. Where both grow together, they share the time by what explains it alone. */
function fitted([pp, pt, tt, p, t]: Alone["sums"]): readonly [number, number] {
  const determinant = pp * tt - pt * pt;
  const [byPasses, byTokens] = [p / pp, tt > 0 ? t / tt : 0];
  if (determinant <= 1e-9 * pp * tt) return [byPasses, 0];
  const aPass = (p * tt - t * pt) / determinant;
  const aToken = (t * pp - p * pt) / determinant;
  if (aPass < 0) return [0, byTokens];
  return aToken < 0 ? [byPasses, 0] : [aPass, aToken];
}
