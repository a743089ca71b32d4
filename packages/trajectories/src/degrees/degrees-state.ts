/**
 * How many devices each rank of a rollout spans, decided between steps. `allocate` proposes lists by what was predicted of the last
 * step; the steps before, simulated with their predictions as they were, decide. A pure state machine: others tell it of steps
 * and carry out what it decides.
 *
 * - DG1 every list that is simulated can be placed, and equal ranks of each degree that can be are among them
 * - DG2 no list that was simulated is faster over the steps that are looked at than the one it names as the best
 * - DG3 it changes only to what is faster in each of these steps, by `leastGain` over all, and gains more seconds within the
 *   horizon than the change costs
 * - DG4 the first step counts for nothing, as it is predicted from nothing; between two looks are `numPast` steps at least, and
 *   twice as many after each look that changed nothing, up to the horizon
 */
import type { Interference } from "../interference.ts";
import { allocatedDegrees, degreesThatFit, equalDegrees, withoutRepeats } from "./degree-lists.ts";
import { type PlayedStep, replaySeconds, type SharingWay } from "./played-step.ts";

export type DegreesOptions = SharingWay & {
  /** until it is measured */
  readonly F: Interference;
};

export type DegreesSituation = {
  /** of the ranks that there are */
  readonly current: readonly number[];
  /** that they may have together */
  readonly devices: number;
  /** of the run */
  readonly stepsLeft: number;
  readonly changeSeconds: number;
  readonly canPlace: (degrees: readonly number[]) => boolean;
};

/** Seconds of a step, on average over those that were looked at. */
export type DegreesFigure = { readonly degrees: readonly number[]; readonly seconds: number };

export type DegreesDecision = {
  /** the next steps are to have the best list */
  readonly changes: boolean;
  readonly reason: "gains" | "is-best" | "gains-too-little" | "costs-more";
  readonly current: DegreesFigure;
  readonly best: DegreesFigure;
  /** of lists of equal ranks; undefined where none can be placed */
  readonly bestEqual: DegreesFigure | undefined;
  readonly numSteps: number;
  /** over which the change is to pay */
  readonly horizonSteps: number;
};

const numPast = 2;
/** of a step's seconds, on geometric average: by less, one step differs from the next */
const leastGain = 0.05;
const mostHorizon = 16;

export class DegreesState {
  readonly #options: DegreesOptions;
  #past: readonly PlayedStep[] = [];
  #sinceLook = 0;
  #interval = numPast + 1;

  constructor(options: DegreesOptions) {
    this.#options = options;
  }

  stepEnded(step: PlayedStep): void {
    if (step.episodes.length === 0) return;
    this.#past = [step, ...this.#past].slice(0, numPast);
    this.#sinceLook++;
  }

  /** DG4 */
  get isDue(): boolean {
    return this.#past.length === numPast && this.#sinceLook >= this.#interval;
  }

  /** Pauses after each step that it has simulated, as thousands of episodes take a while. Decides nothing unless it is due. */
  *look(situation: DegreesSituation): Generator<undefined, DegreesDecision | undefined> {
    if (!this.isDue) return undefined;
    this.#sinceLook = 0;
    const { stepsLeft, changeSeconds } = situation;
    const current = descending(situation.current);
    const tried: Tried[] = [];
    for (const degrees of withoutRepeats([current, ...this.#proposed(situation)])) {
      const seconds: number[] = [];
      for (const step of this.#past) {
        seconds.push(replaySeconds(step, degrees, this.#factorOf(step), this.#options));
        yield;
      }
      tried.push({ degrees, seconds });
    }
    const [now] = tried as [Tried, ...Tried[]];
    const best = leastOf(tried) as Tried; // DG2
    const gain = mean(now.seconds) - mean(best.seconds);
    const horizonSteps = Math.min(stepsLeft, mostHorizon);
    const isFaster = best.seconds.every((seconds, step) => seconds < (now.seconds[step] as number));
    const isEnough = isFaster && product(best.seconds) <= product(now.seconds) * (1 - leastGain) ** numPast;
    // DG3
    const reason =
      best === now
        ? "is-best"
        : !isEnough
          ? "gains-too-little"
          : gain * horizonSteps > changeSeconds
            ? "gains"
            : "costs-more";
    const changes = reason === "gains";
    this.#interval = changes ? numPast : Math.min(2 * this.#interval, mostHorizon);
    const bestEqual = leastOf(tried.filter(({ degrees }) => new Set(degrees).size === 1));
    return {
      ...{ changes, reason, numSteps: numPast, horizonSteps },
      current: figureOf(now),
      best: figureOf(best),
      bestEqual: bestEqual && figureOf(bestEqual),
    };
  }

  /** DG1 */
  #proposed({ devices, canPlace }: DegreesSituation): (readonly number[])[] {
    const { tokenTime, places } = this.#options;
    const [{ episodes, logSd }] = this.#past as [PlayedStep];
    const fitting = { gpus: devices, tokenTime };
    const allocated = allocatedDegrees({
      ...fitting,
      F: this.#factorOf(this.#past[0] as PlayedStep),
      maxBatch: places,
      robust: logSd / 2,
      predictions: episodes.map(({ turns }) => Math.max(1, turns[0]?.predictedTokens ?? 1)),
    });
    const equal = degreesThatFit(fitting).map((degree) => equalDegrees(devices, degree));
    return [...equal, ...allocated].filter(canPlace);
  }

  #factorOf({ F }: PlayedStep): Interference {
    return F ?? this.#options.F;
  }
}

/** Of each step that is looked at. */
type Tried = { readonly degrees: readonly number[]; readonly seconds: readonly number[] };

const descending = (degrees: readonly number[]): number[] => [...degrees].sort((a, b) => b - a);
const product = (seconds: readonly number[]): number => seconds.reduce((all, each) => all * each, 1);
const mean = (seconds: readonly number[]): number => seconds.reduce((sum, each) => sum + each, 0) / seconds.length;
const figureOf = ({ degrees, seconds }: Tried): DegreesFigure => ({ degrees, seconds: mean(seconds) });

/** Of equals the first. */
const leastOf = (tried: readonly Tried[]): Tried | undefined =>
  tried.reduce<Tried | undefined>(
    (least, each) => (least === undefined || product(each.seconds) < product(least.seconds) ? each : least),
    undefined,
  );
