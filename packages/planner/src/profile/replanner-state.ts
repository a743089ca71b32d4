/**
 * What `placement.mode: auto` does between steps: measure, plan, try, and plan again when steps drift. Pure: steps and
 * their observations in, plans out.
 *
 * RP1 without a profile the first steps run all components in turn, on several device counts and once in chunks; with
 *    one that matches nothing is measured again. Components that other workflows have measured are not probed: once the
 *    first layout has shown the flow, only what tells the others apart is. Where that is nothing, one step has shown it.
 *    Those that take another time here than there, by more than a quarter, are measured as if nobody had.
 * RP2 of the plans that are predicted within `trialTolerance` of the best, one a mode, each is tried, unless it has been
 *    measured already, and by turns again as long as it is not certain which is the fastest, up to `trialRounds` times
 *    each, and never for more than the run can gain by it (`plan-trials.ts`). The fastest as measured stays.
 * RP3 when steps drift from what the chosen plan took, its components are measured once more. Where they have left their
 *    proportions, the profile is scaled to what they take now, and RP2 decides again. Where all of them changed alike, or
 *    none did, the machine is busier or less so, which makes no other plan the best: the run stays with its plan, and
 *    compares with what steps take now.
 * RP4 the first steps under every plan are not counted: engines compile and caches fill. New processes are slow for some
 *    seconds, so more steps are left out where steps are short.
 * RP5 what measuring costs is bounded: a layout whose steps are long is probed for fewer of them.
 * RP6 a layout whose steps differ is probed for more of them, until what they take on average is known, or they are as large a
 *    part of those that are left as may go into one layout.
 */
import {
  type DeviceSpec,
  type FlowGraph,
  median,
  type ObservedCall,
  type Plan,
  type Profile,
} from "@treadle/contracts";
import { resolvePlacement } from "../placement.ts";
import { formatDeviceNumbers } from "../placement-grammar.ts";
import type { PlacementComponent } from "../placement-input.ts";
import { type ComponentDrift, componentDrifts, disagreements, disproportion } from "./component-drift.ts";
import { DriftDetector } from "./drift-detector.ts";
import { type KnownComponent, knownIn, sameSeconds, withKnown } from "./known-components.ts";
import {
  believed,
  certaintyOf,
  describeCertainty,
  fastestOf,
  highestStakes,
  nextTrial,
  type StepTimes,
  standardError,
  stepTimes,
  type TrialStakes,
} from "./plan-trials.ts";
import { type ComponentTraits, ProfileBuilder, type ProfileHeader, type SwapCost } from "./profile-builder.ts";
import { type Probe, planProbes } from "./profile-probes.ts";
import { scaleProfile } from "./profile-scale.ts";
import { layoutOf, type RunningLayout } from "./running-layout.ts";

export type ReplannerOptions = {
  /** steps not counted under a new plan; where steps are short, up to three times as many, for `warmupSeconds` */
  readonly warmupSteps: number;
  /** steps measured under each layout that is probed or tried */
  readonly measuredSteps: number;
  /** a layout is probed for no more steps than take so long, but for one */
  readonly measuredSeconds: number;
  /** times that a plan is tried at most */
  readonly trialRounds: number;
  /** plans predicted to take longer than the best by more than this share are not tried */
  readonly trialTolerance: number;
  /** share by which the median of `driftWindow` steps leaves what was expected, before anything is planned again */
  readonly driftThreshold: number;
  readonly driftWindow: number;
};

/** One plan of the planner's, best first. */
export type PlanCandidate = {
  readonly plan: Plan;
  readonly predictedSeconds: number;
  /** by how much its steps are expected to differ (`believed`) */
  readonly stepDeviation?: number | undefined;
  /** of the first, why it is; of the others, what keeps them from being faster */
  readonly explanation: readonly string[];
};

export type ReplannerInput = {
  readonly devices: readonly DeviceSpec[];
  readonly components: readonly PlacementComponent[];
  /** the devices that `pinned` names and counts, where not all of them may be used */
  readonly numbered?: readonly DeviceSpec[] | undefined;
  readonly nodeGroups?: Readonly<Record<string, readonly number[]>> | undefined;
  readonly batch: number;
  readonly maxStaleness: number;
  /** `placement.components`: who does not move */
  readonly pinned?: Readonly<Record<string, string>> | undefined;
  readonly traits: ReadonlyMap<string, ComponentTraits>;
  readonly header: ProfileHeader;
  /** of an earlier run, where it matches */
  readonly profile?: Profile | undefined;
  /** components that other workflows have measured, where no profile matches as a whole */
  readonly known?: ReadonlyMap<string, KnownComponent> | undefined;
  /** the best plan of each mode that a profile allows, best first */
  readonly propose: (profile: Profile) => readonly PlanCandidate[];
  readonly options: ReplannerOptions;
};

/** From the next step on this plan holds. */
export type PlanChange = {
  readonly plan: Plan;
  readonly phase: "profiling" | "trial" | "chosen";
  readonly why: readonly string[];
};

type Phase =
  | { readonly type: "probing"; readonly queue: Probe[]; hasAll: boolean }
  | {
      readonly type: "trying";
      readonly trials: Trial[];
      readonly current: Trial;
    }
  | { readonly type: "settled"; readonly drift: DriftDetector }
  | { readonly type: "measuring-drift"; readonly builder: ProfileBuilder; readonly ratio: number };

/** Each time that steps drifted makes the run look longer before it plans again: trying plans costs more than noise does. */
const patienceFactor = 4;

/** A process that began runs what was not compiled yet for about so long: short steps are not counted meanwhile… */
const warmupSeconds = 2;
/** …for up to so many times `warmupSteps`. */
const mostWarmups = 3;

/** A layout is probed until the relative error of its steps' mean is no more than this… */
const knownTo = 0.015;
/** …or for so many times the steps that are measured at least… */
const mostProbes = 4;
/** …or for so large a part of the steps that are left. */
const mostShare = 0.05;

/** A fastest plan that took so much longer than predicted is said to have been disturbed, perhaps. */
const noteworthyDelay = 0.1;

/** `times`: undefined until it has been tried. `ranBefore`: it is what the run had when it was planned again. */
type Trial = {
  readonly candidate: PlanCandidate;
  times: StepTimes | undefined;
  readonly ranBefore?: Unpredicted | undefined;
};
/** whether its `predictedSeconds` were measured, as the planner has proposed another of its mode */
type Unpredicted = { readonly isUnpredicted: boolean };

export class ReplannerState {
  readonly #input: ReplannerInput;
  readonly #builder: ProfileBuilder;
  #profile: Profile | undefined;
  #plan!: Plan;
  #layout!: RunningLayout;
  #phase: Phase;
  #numSteps = 0;
  /** of steps beyond `warmupSteps` */
  #warmSeconds = 0;
  #seconds: number[] = [];
  #hasSwaps = false;
  #numReplans = 0;
  /** whose explanation was told before any was tried */
  #explained: PlanCandidate | undefined;
  /** by layout, what its components took when it was measured last */
  readonly #measured = new Map<string, ProfileBuilder>();
  #news: string | undefined;
  #known: ReadonlyMap<string, KnownComponent>;
  /** of components that others have measured, but that take another time here, a sentence each */
  readonly #disagreements = new Map<string, string>();
  #stakes: TrialStakes = highestStakes;

  constructor(input: ReplannerInput) {
    this.#input = input;
    this.#builder = new ProfileBuilder(input.batch);
    this.#known = input.known ?? new Map();
    this.#profile = input.profile;
    this.#phase = { type: "probing", queue: [], hasAll: false };
  }

  /** Calls of the next step are to be observed. */
  get observes(): boolean {
    return this.#phase.type !== "settled";
  }

  /** What is known by now; it changes when probing ends, and with drift. */
  get profile(): Profile | undefined {
    return this.#profile;
  }

  get graph(): FlowGraph | undefined {
    return this.#profile?.graph ?? (this.#builder.numSteps > 0 ? this.#builder.graph() : undefined);
  }

  /** Swaps are worth measuring once, while a profile is being made. */
  get wantsSwaps(): boolean {
    return this.#phase.type === "probing" && !this.#hasSwaps;
  }

  swapsMeasured(swaps: ReadonlyMap<string, SwapCost>): void {
    this.#hasSwaps = true;
    for (const [component, cost] of swaps) this.#builder.addSwap(component, cost);
  }

  /** What the last step has told, where that changes no plan. */
  get news(): string | undefined {
    return this.#news;
  }

  /** The first plan. */
  start(stakes: TrialStakes = highestStakes): PlanChange {
    this.#stakes = stakes;
    if (this.#profile) return this.#choose(["the profile of an earlier run matches, so nothing is measured again"], []); // RP1
    const { devices, components } = this.#input;
    const [first] = planProbes({ devices, components, graph: undefined });
    return this.#change(first ? this.#probePlan(first) : this.#place({}), "profiling", [
      "measuring how long each component takes",
    ]);
  }

  /** A step has ended; answers what changes before the next. */
  step(seconds: number, calls: readonly ObservedCall[], stakes: TrialStakes = highestStakes): PlanChange | undefined {
    this.#stakes = stakes;
    this.#numSteps++;
    this.#news = undefined;
    if (this.#warmsUp(seconds)) return undefined; // RP4
    const { measuredSteps, measuredSeconds } = this.#input.options;
    if (this.#phase.type === "settled") return this.#watch(this.#phase.drift, seconds);
    this.#seconds.push(seconds);
    const step = { layout: this.#layout, seconds, calls };
    if (this.#phase.type === "measuring-drift") this.#phase.builder.add(step);
    else {
      this.#builder.add(step);
      this.#measuredOf(this.#layout.name).add(step);
    }
    const isProbing = this.#phase.type === "probing";
    const isLong = isProbing && sum(this.#seconds) >= measuredSeconds; // RP5
    const isPrecise = !isProbing || this.#isPrecise; // RP6
    const isEnough = isLong || (this.#seconds.length >= measuredSteps && isPrecise);
    if (!isEnough && !(isProbing && this.#isAllKnown)) return undefined;
    switch (this.#phase.type) {
      case "probing":
        return this.#probeNext(this.#phase);
      case "trying":
        return this.#tried(this.#phase);
      case "measuring-drift":
        return this.#judge(this.#phase.builder, this.#phase.ratio, median(this.#seconds));
    }
  }

  #warmsUp(seconds: number): boolean {
    const { warmupSteps } = this.#input.options;
    if (this.#numSteps <= warmupSteps) return true;
    if (this.#numSteps > mostWarmups * warmupSteps) return false;
    this.#warmSeconds += seconds;
    return this.#warmSeconds <= warmupSeconds;
  }

  get #isPrecise(): boolean {
    const mostSteps = Math.min(mostProbes * this.#input.options.measuredSteps, mostShare * this.#stakes.stepsLeft);
    return this.#seconds.length >= mostSteps || standardError(stepTimes(this.#seconds)) <= knownTo;
  }

  /** Of plans that are worth it whole steps are measured when they are tried, and of components nothing is left to find out. */
  get #isAllKnown(): boolean {
    const { components } = this.#input;
    if (components.length === 0 || this.#known.size < components.length) return false;
    return this.#agreeing().size === components.length;
  }

  /** Of the known ones, those that do here what they did where they were measured, and in that time. */
  #agreeing(): ReadonlyMap<string, KnownComponent> {
    if (this.#known.size === 0) return this.#known;
    const { header, traits } = this.#input;
    const measured = this.#builder.build(header, traits);
    const known = knownIn(measured.graph, this.#known);
    const profiles = new Map([...known].map(([name, { profile }]) => [name, profile]));
    const differing = disagreements(profiles, measured, sameSeconds);
    for (const name of known.keys()) this.#disagreements.delete(name);
    for (const [name, ratio] of differing) {
      const by = `'${name}' was measured by '${known.get(name)?.measuredBy.workflow}'`;
      const here = Number.isFinite(ratio) ? `, but takes ${percentOf(ratio)} time here` : ", but not as it runs here";
      this.#disagreements.set(name, `${by}${here}: measured again`);
    }
    return new Map([...known].filter(([name]) => !differing.has(name)));
  }

  #probeNext(phase: Extract<Phase, { type: "probing" }>): PlanChange {
    // More layouts may tell of a known component that it is another one here.
    const known = phase.hasAll && phase.queue.length > 0 ? this.#known : this.#agreeing();
    if (!phase.hasAll || known.size < this.#known.size) {
      this.#known = known;
      const { devices, components } = this.#input;
      const isKnown = (name: string): boolean => known.has(name);
      const probes = planProbes({ devices, components, graph: this.#builder.graph(), isKnown }).slice(1);
      const isNew = (probe: Probe): boolean => !this.#measured.has(layoutOf(this.#probePlan(probe)).name);
      phase.queue.push(...(phase.hasAll ? probes.filter(isNew) : probes));
      phase.hasAll = true;
    }
    const next = phase.queue.shift();
    if (next) {
      const plan = this.#probePlan(next);
      return this.#change(plan, "profiling", [describeProbe(next, layoutOf(plan))]);
    }
    const { header, traits, devices, components } = this.#input;
    this.#profile = withKnown(this.#builder.build(header, traits, { devices, components }), this.#known, traits);
    const reused = [...this.#known].map(
      ([name, { measuredBy }]) => `'${name}' was measured by '${measuredBy.workflow}'`,
    );
    const why = [`measured ${this.#builder.numSteps} steps`, ...reused, ...this.#disagreements.values()];
    return this.#choose(why, []);
  }

  /** RP2. */
  #choose(why: readonly string[], alreadyTried: readonly Trial[]): PlanChange {
    const profile = this.#profile as Profile;
    const proposed = this.#input.propose(profile);
    const best = proposed[0];
    if (!best) return this.#settle(this.#plan, undefined, this.#plan.mode, [...why, "no other plan is feasible"]);
    const trials = alreadyTried.map((trial): Trial => {
      const { name } = layoutOf(trial.candidate.plan);
      const same = proposed.find(({ plan }) => layoutOf(plan).name === name);
      const candidate = same ? { ...same, plan: trial.candidate.plan } : trial.candidate;
      return { candidate, times: trial.times, ranBefore: { isUnpredicted: !same } };
    });
    const known = new Set(alreadyTried.map(({ candidate }) => layoutOf(candidate.plan).name));
    for (const candidate of proposed) {
      const { name } = layoutOf(candidate.plan);
      if (known.has(name)) continue;
      known.add(name);
      trials.push({ candidate, times: timesOf(candidate, profile.steps) });
    }
    this.#explained = best;
    return this.#tryNext(trials, undefined, [...why, ...best.explanation]) as PlanChange;
  }

  /** Undefined where the plan that runs is tried once more. */
  #tryNext(trials: Trial[], last: Trial | undefined, why: readonly string[]): PlanChange | undefined {
    const { trialRounds, warmupSteps, measuredSteps, trialTolerance: tolerance } = this.#input.options;
    const plans = trials.map(({ candidate: { predictedSeconds }, times }) => ({ predictedSeconds, times }));
    const fastest = Math.min(...plans.map(({ predictedSeconds, times }) => times?.seconds ?? predictedSeconds));
    const layout = (this.#layout as RunningLayout | undefined)?.name; // none before the first plan
    const running = trials.findIndex(({ candidate }) => layoutOf(candidate.plan).name === layout);
    const options = {
      ...{ mostSamples: trialRounds * measuredSteps, tolerance, running },
      ...{ stakes: this.#stakes, stepsATrial: uncountedSteps(warmupSteps, fastest) + measuredSteps },
    };
    const next = nextTrial(plans, options);
    const current = next === undefined ? undefined : (trials[next] as Trial);
    if (!current) {
      const isOpen = nextTrial(plans, { ...options, stakes: highestStakes }) !== undefined;
      return this.#conclude(trials, why, isOpen);
    }
    this.#phase = { type: "trying", trials, current };
    this.#seconds = [];
    if (current === last) return undefined;
    return this.#change(current.candidate.plan, "trial", [...why, ...describeTrial(current, trials)]);
  }

  /** What this run has measured of a plan counts, whatever an earlier one has. */
  #tried({ trials, current }: Extract<Phase, { type: "trying" }>): PlanChange | undefined {
    const profile = this.#profile as Profile;
    const measured = [...this.#measured.values()].flatMap((builder) => builder.wholeSteps());
    const layouts = new Set(measured.map(({ layout }) => layout));
    this.#profile = { ...profile, steps: [...profile.steps.filter(({ layout }) => !layouts.has(layout)), ...measured] };
    current.times = timesOf(current.candidate, measured);
    return this.#tryNext(trials, current, []);
  }

  /** `isOpen`: which one is the fastest is not certain, and not worth finding out. */
  #conclude(trials: readonly Trial[], why: readonly string[], isOpen: boolean): PlanChange {
    const inOrder = trials.flatMap(({ times, ...trial }) => (times ? [{ ...trial, ...times }] : []));
    inOrder.sort((a, b) => a.seconds - b.seconds);
    const [best, ...others] = inOrder as [(typeof inOrder)[number], ...typeof inOrder];
    const named = nameIn(trials);
    const compared = inOrder.map(({ candidate, seconds, deviation, samples, ranBefore }) => {
      const took = `${named(candidate)} took ${format(seconds)} a step (± ${percent(standardError({ deviation, samples }), 1)}, ${samples} steps)`;
      return isUnproposed({ ranBefore })
        ? `${took}, measured as it ran; nothing was predicted of it`
        : `${took}, where ${format(candidate.predictedSeconds)} were predicted`;
    });
    // What is proposed is what 'treadle plan' compares, too; the plan that ran before is known to this run alone.
    const certaintyOver = (rivals: typeof others) =>
      describeCertainty(Math.min(...rivals.map((each) => certaintyOf(best, each))));
    const [before, proposed] = [true, false].map((is) => others.filter((each) => isUnproposed(each) === is));
    const certain = [
      ...(proposed!.length > 0
        ? [`${named(best.candidate)} is the fastest of those that were tried with ${certaintyOver(proposed!)}`]
        : []),
      ...(before!.length > 0
        ? [`${named(best.candidate)} is faster than the plan that ran before with ${certaintyOver(before!)}`]
        : []),
    ];
    const isSlow = best.seconds > (1 + noteworthyDelay) * best.candidate.predictedSeconds && !isUnproposed(best);
    const busy = isSlow ? ["predictions are of a machine that nothing else uses; this one may have been busy"] : [];
    const explained = best.candidate.explanation === this.#explained?.explanation ? [] : best.candidate.explanation;
    const left = `trying more would cost more than the ${this.#stakes.stepsLeft} steps that are left can gain by it`;
    return this.#settle(best.candidate.plan, best.seconds, named(best.candidate), [
      ...why,
      ...compared,
      ...busy,
      ...certain,
      ...explained,
      ...(isOpen ? [left] : []),
    ]);
  }

  #settle(plan: Plan, expectedSeconds: number | undefined, name: string, why: readonly string[]): PlanChange {
    this.#expect(expectedSeconds);
    const expected = expectedSeconds === undefined ? "" : `, expected to take ${format(expectedSeconds)} a step`;
    return this.#change(plan, "chosen", [...why, `chosen: ${name}${expected}`]);
  }

  /** RP3. */
  #watch(drift: DriftDetector, seconds: number): PlanChange | undefined {
    const ratio = drift.observe(seconds);
    if (ratio === undefined || !this.#profile) return undefined;
    this.#phase = { type: "measuring-drift", builder: new ProfileBuilder(this.#input.batch), ratio };
    this.#seconds = [];
    return undefined;
  }

  #judge(builder: ProfileBuilder, ratio: number, measured: number): PlanChange | undefined {
    const { header, traits, options } = this.#input;
    const now = builder.build(header, traits);
    const before = this.#measured.get(this.#layout.name)?.build(header, traits) ?? (this.#profile as Profile);
    const drifts = componentDrifts(before, now);
    if (disproportion(drifts) > 1 + options.driftThreshold) return this.#replan(builder, drifts, ratio, measured);
    this.#news = `steps take ${percentOf(ratio)} time than expected, and no component by itself: the machine is ${ratio > 1 ? "busier" : "less busy"}; the plan stays`;
    this.#expect(measured);
    return undefined;
  }

  /** The run stays with its plan, and looks again when steps take another time than this. */
  #expect(seconds: number | undefined): void {
    const { driftThreshold: threshold, driftWindow } = this.#input.options;
    const window = driftWindow * patienceFactor ** this.#numReplans;
    this.#phase = { type: "settled", drift: new DriftDetector({ threshold, window }, seconds) };
    this.#seconds = [];
  }

  #replan(builder: ProfileBuilder, drifts: readonly ComponentDrift[], ratio: number, measured: number): PlanChange {
    const { header, traits } = this.#input;
    this.#numReplans++;
    this.#profile = scaleProfile(this.#profile as Profile, builder.build(header, traits), header.createdAt);
    // What other layouts took was before the drift.
    this.#measured.clear();
    this.#measured.set(this.#layout.name, builder);
    const times = builder.wholeSteps()[0];
    const current = { plan: this.#plan, predictedSeconds: measured, explanation: [] };
    const [most] = drifts.toSorted((a, b) => Math.abs(Math.log(b.ratio)) - Math.abs(Math.log(a.ratio)));
    const culprit = most ? ` ('${most.component}' ${percentOf(most.ratio)})` : "";
    const why = [`steps take ${percentOf(ratio)} time than expected${culprit}: planned again`];
    return this.#choose(why, [{ candidate: current, times }]);
  }

  #measuredOf(layout: string): ProfileBuilder {
    const found = this.#measured.get(layout) ?? new ProfileBuilder(this.#input.batch);
    this.#measured.set(layout, found);
    return found;
  }

  #change(plan: Plan, phase: PlanChange["phase"], why: readonly string[]): PlanChange {
    this.#plan = plan;
    this.#layout = layoutOf(plan);
    this.#numSteps = 0;
    this.#warmSeconds = 0;
    this.#seconds = [];
    return { plan, phase, why };
  }

  #probePlan({ devices, granularity }: Probe): Plan {
    const { pinned, devices: all, components } = this.#input;
    const firstOf = (name: string, count: number): string => {
      const { deviceKind = all[0]?.kind } = components.find((component) => component.name === name) ?? {};
      const ofKind = all.filter(({ kind }) => kind === deviceKind);
      return formatDeviceNumbers(ofKind.slice(0, count).map(({ index }) => index));
    };
    const sets = Object.fromEntries(Object.entries(devices).map(([name, count]) => [name, firstOf(name, count)]));
    // Why it runs so is to measure; that its layout is an explicit one explains nothing.
    const isUneven = new Set(Object.values(devices)).size > 1;
    return { ...this.#place({ explicit: { ...sets, ...pinned }, granularity, isUneven }), explanation: [] };
  }

  #place({
    isUneven = false,
    ...how
  }: {
    explicit?: Readonly<Record<string, string>>;
    granularity?: number | "all";
    isUneven?: boolean;
  }): Plan {
    const { components, devices, numbered, nodeGroups, batch, maxStaleness, pinned } = this.#input;
    return resolvePlacement({
      mode: pinned || isUneven ? "hybrid" : "temporal",
      components,
      devices,
      ...(numbered ? { numbered } : {}),
      ...(nodeGroups ? { nodeGroups } : {}),
      batchItems: batch,
      maxStaleness,
      ...how,
    });
  }
}

/** RP4, as is to be expected of a plan whose steps take so long. */
function uncountedSteps(warmupSteps: number, seconds: number): number {
  return warmupSteps + Math.min((mostWarmups - 1) * warmupSteps, Math.floor(warmupSeconds / seconds));
}

function timesOf({ plan, stepDeviation }: PlanCandidate, steps: Profile["steps"]): StepTimes | undefined {
  const { name } = layoutOf(plan);
  const found = steps.find(({ layout }) => layout === name);
  return found && believed(found, stepDeviation);
}

const sum = (values: readonly number[]): number => values.reduce((total, each) => total + each, 0);

/** On the devices that its ranks have, which may be fewer than it could. */
function describeProbe({ granularity }: Probe, { components }: RunningLayout): string {
  const on = [...components].map(([name, { devices }]) => `'${name}' on ${devices}`);
  return `measuring all components in turn, ${on.join(", ")}, ${granularity === "all" ? "whole batches" : `${granularity} ${granularity === 1 ? "item" : "items"} at a time`}`;
}

const isUnproposed = ({ ranBefore }: Pick<Trial, "ranBefore">): boolean => ranBefore?.isUnpredicted ?? false;

/** Of plans of one mode, what is where tells them apart. */
function nameIn(trials: readonly Trial[]): (candidate: PlanCandidate) => string {
  return ({ plan }) => {
    const { name } = layoutOf(plan);
    const other = trials.find((trial) => {
      const own = trial.candidate.plan;
      return own.mode === plan.mode && layoutOf(own).name !== name;
    });
    return other ? `${plan.mode} (${whatIsWhere(plan, other.candidate.plan)})` : plan.mode;
  };
}

/** Where it is not as in the other one. */
function whatIsWhere(plan: Plan, other: Plan): string {
  const devicesOf = ({ components }: Plan, name: string): string[] =>
    (components[name]?.ranks ?? []).flatMap(({ devices }) => devices);
  const placed = Object.keys(plan.components).flatMap((name) => {
    const [own, others] = [devicesOf(plan, name), devicesOf(other, name)];
    if (own.join() === others.join()) return [];
    return [`'${name}' on ${own.length === others.length ? own.join(" ") : own.length}`];
  });
  const { granularity: own } = plan;
  const chunksOf = (channel: string, { default: all, channels }: Plan["granularity"]) => channels[channel] ?? all;
  const chunks = Object.keys({ ...own.channels, ...other.granularity.channels }).flatMap((channel) => {
    const items = chunksOf(channel, own);
    if (items === chunksOf(channel, other.granularity)) return [];
    return [`'${channel}' ${items === "all" ? "as whole batches" : `${items} at a time`}`];
  });
  const told = [...placed, ...chunks];
  return told.length > 0 ? told.join(", ") : layoutOf(plan).name;
}

function describeTrial({ candidate, times }: Trial, trials: readonly Trial[]): string[] {
  const { plan, predictedSeconds } = candidate;
  const named = nameIn(trials);
  if (!times) return [`trying ${named(candidate)}, predicted ${format(predictedSeconds)} a step`];
  const fastest = fastestOf(trials.flatMap((trial) => (trial.times ? [{ trial, ...trial.times }] : [])));
  const known = `${named(candidate)} took ${format(times.seconds)} a step`;
  return fastest === undefined || fastest.trial.candidate.plan === plan
    ? [`trying again, as it is not certain that it is the fastest: ${known}`]
    : [
        `trying again, as ${named(fastest.trial.candidate)} is faster with ${describeCertainty(certaintyOf(fastest, times))} only: ${known}`,
      ];
}

const percent = (share: number, digits: number): string => `${(100 * share).toFixed(digits)} %`;

function percentOf(ratio: number): string {
  const percent = Math.round(100 * (ratio - 1));
  return `${Math.abs(percent)} % ${percent >= 0 ? "more" : "less"}`;
}

function format(seconds: number): string {
  return seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1000).toPrecision(3)} ms`;
}
