/**
 * Which plan to try next, and how certain it is that one is faster than another. Pure.
 *
 * PT0 a plan is tried that is predicted within a tolerance of the best prediction, or of what the fastest plan really took:
 *    where plans take longer than predicted, those that were predicted to be slower get their turn.
 * PT1 a plan is tried again as long as it may be faster than the fastest one by more than `worthwhile`, at `confidence`.
 *    One that took longer than the fastest by more than the tolerance is not, whatever was predicted of it.
 * PT2 none is tried for more than so many steps; those with the fewest come first, so that plans alternate and what else a
 *    machine does meanwhile meets all of them.
 * PT3 one is tried only where knowing it better gains more, on average and over the steps that are left, than trying it
 *    costs: the change to it, the change back should it be slower, and what its steps take longer.
 */
import { mean, median, normalBelow } from "@treadle/contracts";

/** What steps under one plan took. */
export type StepTimes = {
  /** median */
  readonly seconds: number;
  /** standard deviation of the logarithm; 0 of a single step */
  readonly deviation: number;
  /** steps */
  readonly samples: number;
  readonly meanSeconds?: number | undefined;
};

const confidence = 0.95;
/** A plan that is faster by less is not worth finding. */
const worthwhile = 0.01;
/** Steps in a row are more alike than those of another day, so fewer than that was seen are not believed. */
const leastDeviation = 0.01;

/** What trials are weighed by (PT3). */
export type TrialStakes = {
  /** of the run */
  readonly stepsLeft: number;
  /** what a change of plan takes */
  readonly changeSeconds: number;
};

/** Of a run without an end, whose plan changes at no cost: whatever may be faster is worth trying. */
export const highestStakes: TrialStakes = { stepsLeft: Number.POSITIVE_INFINITY, changeSeconds: 0 };

/** `seconds` is not empty, and has no step that took no time. */
export function stepTimes(seconds: readonly number[]): StepTimes {
  const logs = seconds.map(Math.log);
  const middle = mean(logs);
  const squares = logs.reduce((sum, log) => sum + (log - middle) ** 2, 0);
  const deviation = Math.sqrt(squares / Math.max(1, logs.length - 1));
  return { seconds: median(seconds), deviation, samples: seconds.length, meanSeconds: mean(seconds) };
}

/** Steps that are expected to differ by this take one of several ways, of which a few steps may all have taken the same. */
const leastExpected = 0.05;

/**
 * What steps took, where a replay expects them to differ by `expectedDeviation` (of the logarithm): they are then known by their mean, as no step
 * is an outlier, and no better than that.
 */
export function believed(times: StepTimes, expectedDeviation = 0): StepTimes {
  if (expectedDeviation < leastExpected) return times;
  const deviation = Math.max(times.deviation, expectedDeviation);
  return { ...times, seconds: times.meanSeconds ?? times.seconds, deviation };
}

/** Relative standard error of the median: an outlier moves it little, but does not make it certain. */
export function standardError({ deviation, samples }: Pick<StepTimes, "deviation" | "samples">): number {
  return deviation * Math.sqrt(Math.PI / 2 / samples);
}

/** `times`: undefined until it has been tried. */
export type TriedPlan = { readonly predictedSeconds: number; readonly times: StepTimes | undefined };

export type TrialOptions = {
  /** steps that a plan is tried for at most */
  readonly mostSamples: number;
  /** a share of the best (PT0) */
  readonly tolerance: number;
  /** the place of the plan that runs, if it is one of them; among equals it goes on, as it costs no change */
  readonly running?: number | undefined;
  readonly stakes: TrialStakes;
  /** steps of one trial, those that are not counted included */
  readonly stepsATrial: number;
};

/** The place of the plan to be run next; undefined when the fastest so far is to stay. */
export function nextTrial(plans: readonly TriedPlan[], options: TrialOptions): number | undefined {
  const { mostSamples, tolerance, running } = options;
  const fastest = fastestOf(plans.flatMap(({ times }) => times ?? []));
  const best = Math.max(Math.min(...plans.map(({ predictedSeconds }) => predictedSeconds)), fastest?.seconds ?? 0);
  const untried = plans.findIndex(({ times, predictedSeconds }) => {
    if (times || predictedSeconds > best * (1 + tolerance)) return false; // PT0
    if (fastest === undefined) return true;
    // Half of the tolerance stands for how far predictions are off.
    const distance = { mean: Math.log(predictedSeconds / fastest.seconds), deviation: tolerance / 2 };
    return isWorthIt(distance, fastest.seconds, false, options);
  });
  if (untried >= 0) return untried;
  if (fastest === undefined) return undefined;
  const open = [...plans.entries()].flatMap(([at, { times }]) => {
    if (!times) return [];
    const isSlow = times.samples > 1 && times.seconds > fastest.seconds * (1 + tolerance);
    const mayBeFaster = !isSlow && certaintyOf(fastest, times, worthwhile) < confidence; // PT1
    if (times === fastest) return [{ at, ...times }];
    return mayBeFaster && isWorthIt(distanceOf(fastest, times), fastest.seconds, at === running, options)
      ? [{ at, ...times }]
      : [];
  });
  if (open.length === 1) return undefined;
  const left = open.filter(({ samples }) => samples < mostSamples); // PT2
  const fewest = Math.min(...left.map(({ samples }) => samples));
  const next = left.filter(({ samples }) => samples === fewest).map(({ at }) => at);
  return running !== undefined && next.includes(running) ? running : next[0];
}

/** Of the logarithms of two plans' times, the second's less the first's. */
type Distance = { readonly mean: number; readonly deviation: number };

/**
 * PT3: the expected value of perfect information, of a normal distance, against what it costs to come nearer to it. `seconds`
 * are the fastest plan's.
 */
function isWorthIt(
  { mean, deviation }: Distance,
  seconds: number,
  isRunning: boolean,
  { stakes: { stepsLeft, changeSeconds }, stepsATrial }: Pick<TrialOptions, "stakes" | "stepsATrial">,
): boolean {
  const spread = Math.max(leastDeviation, deviation);
  const slower = normalBelow(mean / spread);
  const density = Math.exp(-((mean / spread) ** 2) / 2) / Math.sqrt(2 * Math.PI);
  const gain = stepsLeft * seconds * Math.max(0, spread * density - mean * (1 - slower));
  const changes = isRunning ? 0 : changeSeconds * (1 + slower);
  return gain > changes + stepsATrial * seconds * Math.max(0, Math.expm1(mean));
}

export function fastestOf<T extends Pick<StepTimes, "seconds">>(tried: readonly T[]): T | undefined {
  return tried.toSorted((a, b) => a.seconds - b.seconds)[0];
}

/**
 * How certain it is, 0 to 1, that `a` takes less than `1 + margin` times what `b` takes: Welch's test, on logarithms. Half
 * where nothing is known of how steps differ.
 */
export function certaintyOf(a: StepTimes, b: StepTimes, margin = 0): number {
  const freedom = a.samples + b.samples - 2;
  if (freedom < 1) return 0.5;
  const [ofA, ofB] = squaredErrors(a, b);
  const distance = Math.log(b.seconds / a.seconds) + Math.log1p(margin);
  const welch = (ofA + ofB) ** 2 / (ofA ** 2 / Math.max(1, a.samples - 1) + ofB ** 2 / Math.max(1, b.samples - 1));
  return studentBelow(distance / Math.sqrt(ofA + ofB), Math.min(freedom, welch));
}

function distanceOf(a: StepTimes, b: StepTimes): Distance {
  const [ofA, ofB] = squaredErrors(a, b);
  return { mean: Math.log(b.seconds / a.seconds), deviation: Math.sqrt(ofA + ofB) };
}

/** Of a single step the deviation is taken to be the other plan's. */
function squaredErrors(a: StepTimes, b: StepTimes): [number, number] {
  const of = ({ deviation, samples }: StepTimes, other: StepTimes): number => {
    const known = samples > 1 ? deviation : other.deviation;
    return standardError({ deviation: Math.max(leastDeviation, known), samples }) ** 2;
  };
  return [of(a, b), of(b, a)];
}

export function describeCertainty(certainty: number): string {
  return certainty >= 0.995 ? "more than 99 % certainty" : `${(100 * certainty).toFixed(0)} % certainty`;
}

const strips = 64;

/** How likely a deviate of Student's distribution is below `t`. With t = √freedom · tan θ its density is cos θ to the freedom - 1. */
function studentBelow(t: number, freedom: number): number {
  const area = (end: number): number => {
    const density = (i: number) => Math.max(0, Math.cos((end * i) / strips)) ** (freedom - 1);
    let sum = density(0) + density(strips);
    for (let i = 1; i < strips; i++) sum += (i % 2 === 1 ? 4 : 2) * density(i);
    return (sum * end) / strips / 3; // Simpson
  };
  return Math.min(1, Math.max(0, 0.5 + area(Math.atan(t / Math.sqrt(freedom))) / area(Math.PI / 2) / 2));
}
