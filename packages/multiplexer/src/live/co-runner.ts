/**
 * Decides, for the pool of devices, which runs compute beside each other: by what their ranks report, from what is left at each
 * event. Nothing is scheduled ahead, so a wrong estimate costs one decision. It implements the pool's `SharingPolicy`.
 *
 * - CR1 works that have not been measured beside each other do so only to be measured: each was measured alone before, and there
 *   are so many tries at most (`mostTries`, `mostTriesOfKnown`). Without any nobody would ever know; without a limit a bad pair would go on.
 * - CR2 no run begins, or goes on, beside another that makes it slower than its `maxSlowdown`.
 * - CR3 a decision takes `decisionMs` at most, where a clock is given; what was not found by then is decided by what is gained
 *   here and now.
 * - CR4 where nobody knows how long something of it takes, as in a run's first step, it begins if the last of them ends sooner,
 *   whatever is left. A run that is computing already then ends later than without it.
 */
import {
  type Computing,
  type KnownSlowdowns,
  type MeasuredSlowdown,
  type SharingQuestion,
  type SharingVerdict,
  TreadleError,
  type Work,
  type WorkSample,
} from "@treadle/contracts";
import { Effort } from "../effort.ts";
import { type BesideProblem, gainsBeside, type LiveMethod, liveMethods, type Piece } from "./beside-graph.ts";
import { RunTrace } from "./run-trace.ts";
import { mostTries, type Slowdown, SlowdownModel } from "./slowdown-model.ts";

export type CoRunnerOptions = {
  readonly method?: LiveMethod | undefined;
  /** decisions that `lookahead` follows */
  readonly window?: number | undefined;
  readonly known?: KnownSlowdowns | undefined;
  /** for CR3 alone */
  readonly nowMs?: (() => number) | undefined;
};

const decisionMs = 10;
/** Of a pair that is not known, for what is to come: nobody gains by it. */
const unknownSlowdown = 4;
/** Of what computes longer than usual, so much of the usual time is left. */
const leastLeftPart = 0.1;
/** Each run is followed until the longest of what goes on has ended so many times, through so many stages at most. */
const [horizons, mostStages] = [3, 12];

/** Of the waiter beside a holder, and of that holder beside the waiter. */
type Pair = readonly [Slowdown, Slowdown];

/**
 * One after the other, the waiter and a holder take x + y. Beside each other, slowed by a and b, the waiter ends after ax if that is
 * not later than by, and of the holder y - ax/b is left then. So they take x + y less x(1 - a + a/b), which is positive, whatever x
 * and y are, if and only if 1/a + 1/b > 1. Beside several holders, a rank computes at the pace of the one that slows it most: a is
 * the largest of its slowdowns, and each holder has to satisfy the inequality with it.
 */
function gainsWhateverIsLeft(pairs: readonly Pair[]): boolean {
  const mostSlowed = Math.max(...pairs.map(([ofWaiter]) => cautious(ofWaiter)));
  return pairs.every(([, ofHolder]) => 1 / mostSlowed + 1 / cautious(ofHolder) > 1);
}

/** Its standard error counts against it; nobody is faster beside another. */
const cautious = ({ factor, error }: Slowdown): number => Math.max(1, factor + error);

/** As one reads it: what tells works of equal components apart is left out. */
const named = ({ run, work }: Computing): string => `'${work === undefined ? run : `${run}/${work.split("@")[0]}`}'`;

export class CoRunner {
  readonly model: SlowdownModel;
  readonly #method: LiveMethod;
  readonly #window: number;
  readonly #nowMs: (() => number) | undefined;
  readonly #traces = new Map<string, RunTrace>();
  readonly #seen = new Set<Work>();
  #numSamples = 0;

  /** Throws `problem.invalid` for a method that cannot decide live. */
  constructor({ method = "greedy", window = 3, known, nowMs }: CoRunnerOptions = {}) {
    if (!liveMethods.includes(method)) {
      const message = `method '${method}' decides nothing while runs go on; choose one of ${liveMethods.join(", ")}`;
      throw new TreadleError("problem.invalid", message);
    }
    [this.#method, this.#window, this.#nowMs] = [method, window, nowMs];
    this.model = new SlowdownModel(known);
  }

  /** Grows with what it has learnt. */
  get version(): number {
    return this.#numSamples;
  }

  worked(run: string, sample: WorkSample, memory: number, nowMs: number): void {
    const { work, beside, passes, tokens, ms } = sample;
    this.model.add(sample, memory);
    this.#seen.add(work);
    const aloneMs = this.model.aloneMs(work, memory, passes, tokens) ?? ms / this.slowdown(work, beside, memory);
    const trace = this.#traces.get(run) ?? new RunTrace();
    this.#traces.set(run, trace);
    trace.worked(sample, beside.length === 0 ? ms : aloneMs, nowMs);
    if (sample.ends) this.#numSamples++;
  }

  /** What is known of works that have computed since this began. */
  measured(): MeasuredSlowdown[] {
    return this.model.measured().filter(({ work, beside }) => this.#seen.has(work) && this.#seen.has(beside));
  }

  gone(run: string): void {
    this.#traces.delete(run);
  }

  slowdown(work: Work, beside: readonly Work[], memory: number): number {
    return beside.reduce((most, other) => Math.max(most, this.model.slowdown(work, other, memory)?.factor ?? 1), 1);
  }

  sharesNow(question: SharingQuestion, nowMs: number): SharingVerdict {
    if (this.#method === "temporal") return { shares: false, why: "by 'temporal', none computes beside another" };
    const { waiter, holders } = question;
    const known = holders.map((holder) => [this.#estimate(waiter, holder), this.#estimate(holder, waiter)] as const);
    const isUnknown = ([a, b]: (typeof known)[number]) => a === undefined || b === undefined;
    if (known.some(isUnknown))
      return this.#tries(
        waiter,
        holders.filter((_, i) => isUnknown(known[i]!)),
      );
    const tooSlow = holders
      .flatMap((holder, i) => [
        { of: waiter, beside: holder, by: known[i]?.[0] },
        { of: holder, beside: waiter, by: known[i]?.[1] },
      ])
      .find(({ of, by }) => by !== undefined && by.factor > (of.maxSlowdown ?? Number.POSITIVE_INFINITY));
    if (tooSlow !== undefined) {
      const { of, beside, by } = tooSlow;
      const why = `${named(of)} takes ${by?.factor.toFixed(2)} times as long beside ${named(beside)}, and its maxSlowdown is ${of.maxSlowdown}`;
      return { shares: false, why }; // CR2
    }
    const problem = this.#problem(question, nowMs);
    if (problem === undefined) {
      const pairs = known as readonly Pair[];
      const shares = gainsWhateverIsLeft(pairs); // CR4
      const factors = pairs.map(([a, b]) => `${cautious(a).toFixed(2)} and ${cautious(b).toFixed(2)} times as long`);
      const ends = shares ? "sooner" : "later";
      return {
        shares,
        why: `beside each other they take ${factors.join(", ")}: the last may end ${ends} than in turns`,
      };
    }
    const effort = new Effort({ deadlineMs: decisionMs, nowMs: this.#nowMs });
    return gainsBeside(problem, this.#method, this.#window, effort);
  }

  /** CR1, of those that have not been measured beside the waiter. */
  #tries(waiter: Computing, holders: readonly Computing[]): SharingVerdict {
    const mayTry = (a: Computing, b: Computing) =>
      a.work !== undefined && b.work !== undefined && this.model.mayTry(a.work, b.work, a.memory);
    const other = holders.find((holder) => !mayTry(waiter, holder) || !mayTry(holder, waiter));
    if (other === undefined) return { shares: true, why: "tried, so that their slowdowns are measured" };
    const isMeasured = [waiter, other].every(({ work, memory }) => this.model.isKnownAlone(work ?? "", memory));
    const why = isMeasured ? `${mostTries} tries have measured too little` : "each has to be measured alone first";
    return { shares: false, why: `nobody knows how ${named(waiter)} and ${named(other)} slow each other: ${why}` };
  }

  /** Undefined where nobody knows how long something of it takes. */
  #problem(
    { waiter, holders, running, waiting }: Parameters<CoRunner["sharesNow"]>[0],
    nowMs: number,
  ): BesideProblem | undefined {
    const all = [...running, waiter, ...waiting];
    const lefts = new Map(all.map((each) => [each, this.#leftOf(each, nowMs, running.includes(each))]));
    if ([waiter, ...holders].some((each) => lefts.get(each) === undefined)) return undefined;
    const longestMs = Math.max(...[...lefts.values()].flatMap((leftMs) => [...(leftMs?.values() ?? [])]));
    const pieces = new Map<Computing, Piece>();
    for (const [each, leftMs] of lefts) {
      const { run, work } = each;
      if (leftMs === undefined || work === undefined) continue;
      // Of several works of one run at once, the first leads to what follows.
      const isFirst = all.find((other) => other.run === run) === each;
      const next = isFirst ? (this.#traces.get(run)?.next(work, horizons * longestMs, mostStages) ?? []) : [];
      pieces.set(each, { run, work, leftMs, next });
    }
    const known = (of: readonly Computing[]): Piece[] => of.flatMap((each) => pieces.get(each) ?? []);
    const memoryOf = new Map(all.map(({ work, memory }) => [work, memory]));
    return {
      waiter: pieces.get(waiter) as Piece,
      ...{ holders: known(holders), running: known(running), waiting: known(waiting) },
      slowdown: (work, beside) => {
        const found = this.model.slowdown(work, beside, memoryOf.get(work) ?? 1);
        return found === undefined ? unknownSlowdown : cautious(found);
      },
    };
  }

  /** Alone, by device. */
  #leftOf(
    { run, work, devices, sinceMs }: Computing,
    nowMs: number,
    isRunning = false,
  ): Map<string, number> | undefined {
    const trace = this.#traces.get(run);
    if (trace === undefined || work === undefined) return undefined;
    const left = new Map<string, number>();
    for (const device of devices) {
      const usualMs = trace.usualMs(work, device);
      if (usualMs === undefined) return undefined;
      const doneMs = isRunning ? nowMs - Math.max(sinceMs, trace.endedMs(device)) : 0;
      left.set(device, Math.max(usualMs - doneMs, leastLeftPart * usualMs));
    }
    return left;
  }

  #estimate({ work, memory }: Computing, beside: Computing): Slowdown | undefined {
    return work === undefined || beside.work === undefined ? undefined : this.model.slowdown(work, beside.work, memory);
  }
}
