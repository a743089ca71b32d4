/** `placement.mode: auto`: a measured profile in, a plan out, with its prediction and what it won against. */
import {
  type DeviceSpec,
  type PlacementMode,
  type Plan,
  type Profile,
  type SolveOptions,
  TreadleError,
} from "@treadle/contracts";
import type { PlacementComponent } from "../placement-input.ts";
import { formatBytes, refuseDegrees } from "../placement-ranks.ts";
import { isSlot, withoutDevices, withSlots } from "../placement-slots.ts";
import { blamingFreeDevices, brokenWishes, mostRanksOf, withWishes } from "../placement-wishes.ts";
import { crampedCycles, describeCramped } from "../plan/cycle-room.ts";
import { explainPlan } from "../plan/explain.ts";
import { compileModel } from "../plan/model.ts";
import { type PlanAlternative, type PlanAnswer, type PlanProblem, planModes, type Schedule } from "../plan/problem.ts";
import { solvePlan, wishesToDrop } from "../plan/solve.ts";
import { fastestOf, highestStakes, nextTrial } from "../profile/plan-trials.ts";
import { mayBeBeyondSchedules } from "./beyond-schedules.ts";
import { inConfiguredWords } from "./configured-words.ts";
import { isStaged } from "./cycle-model.ts";
import { byTurns } from "./cycle-turns.ts";
import {
  asLaid,
  asPlanned,
  keepsWishes,
  moveEach,
  type Placed,
  type PlanFromProfileOptions,
  type PlannedMode,
  place,
  placeEach,
  refineChunks,
} from "./laid-plans.ts";

import { type MissingMode, missingModes } from "./missing-modes.ts";
import { type MoreDevices, moreDevices } from "./more-devices.ts";
import { leastWorkSeconds } from "./moved-shares.ts";
import { isParted, planPinnedTogether, type Together } from "./pinned-together.ts";
import { pinsOf } from "./pins.ts";
import { checkTogether } from "./pools.ts";
import { replaysOverlap } from "./predict-plan.ts";
import { processorBoundSeconds } from "./processor-bound.ts";
import { type ProfileProblem, planProblemOf } from "./profile-problem.ts";
import { overheadOf } from "./step-overhead.ts";

/** The key that keeps a component from more devices. */
export type DeviceLimit = "ranks.max" | "placement.wishes.maxRanks" | "placement.components";

export type PlanFromProfile = {
  readonly plan: Plan;
  readonly predicted: { readonly stepSeconds: number; readonly serialSeconds: number; readonly schedule: Schedule };
  /** the best plan of each mode that has one, the chosen one first, then the fastest by prediction */
  readonly alternatives: readonly PlannedMode[];
  /** the modes without one */
  readonly missing: readonly MissingMode[];
  /** what keeps the plan from being faster, a sentence each */
  readonly limits: readonly string[];
  readonly explanation: readonly string[];
  /** what more devices would bring, the most helpful first, none where devices were moved; `atMost`: who may not have more, and what says so */
  readonly moreDevices: readonly (Omit<MoreDevices, "atMostRanks"> & {
    readonly atMost: readonly { readonly name: string; readonly by: DeviceLimit }[];
  })[];
  /**
   * no plan that is searched takes less than this a step; equal to the prediction where the search came to its end. Where
   * devices were moved or chunks refined to something faster, steps overlap, or a larger batch was searched, no plan at all takes less
   */
  readonly boundSeconds: number;
};

/**
 * Pure. Throws as `planProblemOf` and `resolvePlacement` do, and `placement.impossible` where no schedule fits the
 * devices and their memory.
 */
export function planFromProfile(profile: Profile, asked: PlanFromProfileOptions): PlanFromProfile {
  return blamingFreeDevices(asked, (each) => planOnce(profile, each)).found;
}

type Planned = {
  readonly found: PlanFromProfile;
  /** of each schedule of its alternatives, what was searched for */
  readonly questionOf: ReadonlyMap<Schedule, ProfileProblem>;
};

/** `isPinned`: parts are pinned already to see whether that is better. */
function planOnce(profile: Profile, asked: PlanFromProfileOptions, isPinned = false): Planned {
  refuseDegrees(asked.components);
  const launched = asked.components.map((component) => asProfiled(component, profile));
  const { explicit, ...wanted } = withSlots(withWishes(withoutDevices(wantingOf({ ...asked, components: launched }))));
  const options: PlanFromProfileOptions = { ...asked, ...wanted, pinned: explicit };
  const { wishes } = options;
  const { devices, numbered, batch, maxStaleness, components, nodeGroups, pinned, trialTolerance, deadlineMs, nowMs } =
    options;
  const without = new Set(components.flatMap(({ name, deviceKind: kind = "" }) => (isSlot({ kind }) ? [name] : [])));
  const pins = pinsOf(pinned ?? {}, { components, devices, numbered, nodeGroups });
  const target = { batch, maxStaleness, components, pins, wishes };
  const strict = planProblemOf(profile, { ...target, devices });
  // What its members need together is no limit of plans: it is one of the first way of searching.
  const question = byTurns(strict) ?? strict;
  checkTogether(question.pools, wishes);
  const names = components.map(({ name }) => name);
  const devicesOf = (name: string) => question.pools.find((pool) => pool.components.includes(name))!.devices;
  const questions = [...waysOf(question), ...(question === strict ? [] : waysOf(strict))];
  const startMs = nowMs?.() ?? 0;
  const leftMs = () => (deadlineMs === undefined ? undefined : deadlineMs - ((nowMs?.() ?? startMs) - startMs));
  const answers = questions.map(({ problem }, way) => {
    const left = leftMs();
    return solvePlan(problem, { deadlineMs: left && Math.max(1, left / (questions.length - way)), nowMs });
  });
  const overlaps = maxStaleness > 0 && replaysOverlap(question.problem, devices);
  // A replay may prefer what a schedule is best for where no steps overlap.
  const inTurn = overlaps
    ? solvePlan({ ...question.problem, maxStaleness: 0 }, { deadlineMs: leftMs(), nowMs })
    : undefined;
  const found = [
    ...answers.flatMap((each, way) => asFound(each, answers, questions[way] as ProfileProblem)),
    ...(inTurn?.alternatives ?? []).map((each) => ({ ...each, proven: false, question })),
  ];
  const { placed: laid, dropped } = placeEach(found, (one) => place(profile, options, one.question, one));
  // What may not be of some mode may become of another when its parts are moved.
  const modesFound = answers.flatMap(({ alternatives }) => alternatives.map(({ mode }) => mode));
  const begun = startsOf(question, modesFound, { deadlineMs: leftMs(), nowMs });
  const { placed: starts } = placeEach(begun, (one) => place(profile, options, one.question, one), true);
  let isCutShort = false;
  const isLate = () => {
    isCutShort ||= (leftMs() ?? 1) <= 0;
    return isCutShort;
  };
  const moved = moveEach([...laid, ...starts], profile, options, isLate);
  const kept = starts.filter((each) => keepsWishes(each, options));
  const isOfStarts = moved.length + kept.length > 0;
  const answer = answers.find(({ schedule }) => schedule !== null) ?? (isOfStarts ? answers[0] : undefined);
  const isWhole = answer === undefined;
  const pinning = isWhole || (!isPinned && isParted(wishes, profile.graph));
  const pinnedTogether = pinning
    ? planPinnedTogether({ ...asked, deadlineMs: leftMs() }, names, devicesOf, {
        plan: (more) => planOnce(profile, more, true),
        secondsOf: ({ found: { predicted } }) => predicted.stepSeconds,
        isOnly: isWhole,
      })
    : undefined;
  const ofPins =
    pinnedTogether &&
    asPinned(
      pinnedTogether,
      Math.max(
        processorBoundSeconds(profile, devices) + question.serialSeconds,
        leastWorkSeconds(question, profile, batch),
      ),
    );
  if (answer === undefined) {
    if (ofPins !== undefined) return ofPins;
    // The last way of searching has members of cycles together in memory, and so names the bytes that lack.
    const { stats, explanation: lines } = answers.find((each) => !each.stats.exact) ?? (answers.at(-1) as PlanAnswer);
    const inBytes = new Map(
      crampedCycles(strict.problem).map((one) => [describeCramped(one, String), describeCramped(one, formatBytes)]),
    );
    const explanation = lines.map((line) => inBytes.get(line) ?? line);
    const isProven = stats.exact && !mayBeBeyondSchedules(question.problem, { deadlineMs: leftMs(), nowMs });
    const said = isProven ? "no plan is possible" : "no plan was found";
    const remedies = stats.exact ? wishesToDrop(question.problem, { nowMs, deadlineMs }) : [];
    const message = [...explanation, ...remedies].map(inConfiguredWords).join("; ");
    throw new TreadleError("placement.impossible", `${said}: ${message}`, { details: { explanation } });
  }
  const questionOf = new Map([...found, ...begun].map((each) => [each.schedule, each.question]));
  // Where the cores that slots share bound several of them alike, the one that would be faster without.
  const inLine = [...laid, ...kept, ...moved].sort((a, b) => a.secondsAlone - b.secondsAlone);
  // Of devices, which chunks change nothing of.
  const broken = inLine.map(({ planned }) => brokenWishes(planned.plan, wishes, devices));
  const mayBe = inLine.filter((_, i) => broken[i]!.length === 0);
  const refine = (each: Placed) => refineChunks(each, profile, options, isLate);
  const fastestOnes = new Set(planModes.map((mode) => fastestOfMode(mayBe, mode)));
  const placed = inLine.map((each) => asPlanned(fastestOnes.has(each) ? refine(each) : each));
  const pinnedOnes = ofPins?.found.alternatives ?? [];
  if (pinnedOnes.length === 0 && broken.every((reasons) => reasons.length > 0)) {
    const reasons = [...new Set(placed.map(({ mode }, i) => `of the ${mode} one, ${broken[i]!.join(" and ")}`))];
    throw new TreadleError(
      "placement.impossible",
      `no plan that was found keeps placement.wishes: ${reasons.join("; ")}; drop or loosen one of them`,
      { details: { reasons } },
    );
  }
  const alternatives = [...placed.filter((_, i) => broken[i]!.length === 0), ...pinnedOnes]
    .sort((a, b) => a.stepSeconds - b.stepSeconds)
    .filter(({ mode }, i, all) => all.findIndex((other) => other.mode === mode) === i);
  const best = fastest(alternatives, trialTolerance);
  const [shortest] = alternatives;
  const { serialSeconds } = question;
  const searched = (questionOf.get(best.schedule) ?? ofPins?.questionOf.get(best.schedule)) as ProfileProblem;
  const ofSearch = new Set(found.map(({ schedule }) => schedule));
  const isAsFound = (each: PlannedMode): boolean => isAsSearched(each) && ofSearch.has(each.schedule);
  const bound = Math.min(...answers.map(({ stats }) => stats.bound ?? Number.POSITIVE_INFINITY));
  const isProvable = !overlaps && question.problem.batch === batch && !isStaged(profile.graph);
  const least = isProvable
    ? Math.max(bound, processorBoundSeconds(profile, devices)) + serialSeconds
    : leastWorkSeconds(question, profile, batch);
  const boundOf = (each: PlannedMode): number =>
    Math.min(each.stepSeconds, isAsFound(each) ? Math.max(each.boundSeconds, least) : each.boundSeconds);
  const inOrder = [best, ...alternatives.filter((each) => each !== best)].map((each) => ({
    ...each,
    boundSeconds: boundOf(each),
  }));
  const limitOf = (name: string): DeviceLimit => {
    if (pins.some((pin) => pin.components.includes(name))) return "placement.components";
    return !wishes || mostRanksOf(wishes, name) === undefined ? "ranks.max" : "placement.wishes.maxRanks";
  };
  const scale = batch / searched.problem.batch;
  const named = inOrder.map((each) => asAlternative(each, scale));
  const isWanted = (mode: PlacementMode): boolean => question.problem.modes.includes(mode);
  const words = explainPlan(compileModel(searched.problem), best.schedule, named, answer.stats, {
    batch,
    empty: answer.empty,
    unsearched: answer.unsearched,
    // Of a mode that nobody asked for, where a plan's parts began in it, nothing is said.
    found: [...answer.alternatives.map(({ mode }) => mode), ...planModes.filter((mode) => !isWanted(mode))],
    limits: best.limits,
  });
  const isOfPins = pinnedOnes.includes(best);
  const said = [...(isOfPins ? [asPinnedNote(pinnedTogether!.group)] : []), ...(isCutShort ? [cutShort] : [])];
  const explanation = [...words, ...dropped, ...question.notes, ...said];
  const helpFor = ({ problem }: ProfileProblem, schedule: Schedule): PlanFromProfile["moreDevices"] => {
    const costs = asSearched(planProblemOf(profile, { ...target, devices: twice(devices) }).problem, problem);
    return moreDevices(costs, problem, schedule)
      .filter((help) => help.components.some((name) => !without.has(name)))
      .map(({ atMostRanks, ...help }) => ({
        ...help,
        atMost: atMostRanks.map((name) => ({ name, by: limitOf(name) })),
      }));
  };
  const result: PlanFromProfile = {
    plan: { ...best.plan, explanation: [...explanation] },
    predicted: {
      stepSeconds: best.stepSeconds,
      serialSeconds: serialSeconds + overheadOf(profile, best.plan),
      schedule: best.schedule,
    },
    alternatives: inOrder,
    missing: missingModes(
      question.problem,
      answers,
      inOrder.map(({ mode }) => mode),
      wishes,
    ),
    limits: best.limits,
    explanation,
    moreDevices: best.movedFromSeconds === undefined && !isOfPins ? helpFor(searched, best.schedule) : [],
    boundSeconds: Math.min(shortest!.stepSeconds, isAsFound(shortest!) ? least : shortest!.boundSeconds),
  };
  return { found: result, questionOf: new Map([...questionOf, ...(ofPins?.questionOf ?? [])]) };
}

const cutShort =
  "the time for the search ran out before devices and chunks of its plans were all refined; give it a longer deadline";

/** Nothing is proven of plans whose pins were tried one by one. */
function asPinned({ found: { found, questionOf }, group }: Together<Planned>, boundSeconds: number): Planned {
  const explanation = [...found.explanation, `no cut of the flow keeps all wishes, so ${asPinnedNote(group)}`];
  const unproven = (each: PlannedMode): PlannedMode => ({
    ...{ ...each, proven: false },
    boundSeconds: Math.min(each.stepSeconds, boundSeconds),
  });
  const result = {
    ...{ ...found, explanation, boundSeconds },
    plan: { ...found.plan, explanation },
    alternatives: found.alternatives.map(unproven),
  };
  return { found: result, questionOf };
}

const asPinnedNote = (group: readonly string[]): string =>
  `${group.map((name) => `'${name}'`).join(" and ")} were pinned to the same devices, of which some numbers were tried`;

/** With the width of its ranks as it was measured, where the workflow does not say. */
function asProfiled(component: PlacementComponent, profile: Profile): PlacementComponent {
  const measured = (profile.components as Partial<Profile["components"]> | undefined)?.[component.name]?.devicesPerRank;
  const isWider = measured !== undefined && measured > 1 && component.devices === undefined;
  return isWider ? { devicesPerRank: measured, ...component } : component;
}

const isAsSearched = ({ movedFromSeconds, refinedFromSeconds }: PlannedMode): boolean =>
  movedFromSeconds === undefined && refinedFromSeconds === undefined;

/** With the devices that components have in the plan, and chunks of the step's items; `scale`: of these for one of the search's. */
function asAlternative(each: PlannedMode, scale: number): PlanAlternative & { layout: string | undefined } {
  const { mode, stepSeconds, proven, boundSeconds, refinedFromSeconds, placement, plan } = each;
  const layout = Object.entries(placement).map(([name, expression]) => `'${name}' on '${expression}'`);
  const chunks = Object.entries(plan.granularity.channels).map(([name, items]) => `'${name}' ${items}`);
  const inChunks = refinedFromSeconds === undefined ? "" : `, in chunks of ${chunks.join(", ")}`;
  return {
    ...{ mode, time: stepSeconds, schedule: asLaid(each, { scale }), proven, bound: boundSeconds },
    layout: isAsSearched(each) ? undefined : `${layout.join(", ")}${inChunks}`,
  };
}

type Found = PlanAlternative & { readonly question: ProfileProblem };

const asFound = ({ alternatives }: PlanAnswer, answers: readonly PlanAnswer[], question: ProfileProblem): Found[] =>
  alternatives.map((each) => {
    const { proven, bound } = ofMode(answers, each.mode);
    // Another way of searching may have found something faster.
    return { ...each, proven: proven && each.time <= bound * (1 + 1e-9), bound, question };
  });

/**
 * Schedules of the modes that are not wanted. Where some mode has none that leaves no device idle, also of those that leave some: on all of
 * them a component may take longer than a schedule has it take.
 */
function startsOf(
  question: ProfileProblem,
  found: readonly PlacementMode[],
  limits: Pick<SolveOptions, "deadlineMs" | "nowMs">,
): Found[] {
  const { modes, useAll } = question.problem;
  const isOther = modes.some((mode) => mode !== "temporal") && modes.length < planModes.length;
  const isIdle = useAll && modes.some((mode) => !found.includes(mode));
  const others = isOther ? { modes: [...planModes] } : {};
  return [...(isOther ? [others] : []), ...(isIdle ? [{ ...others, useAll: false }] : [])].flatMap((loosened) => {
    const problem = { ...question.problem, ...loosened };
    const { alternatives } = solvePlan(problem, limits);
    return alternatives.flatMap((each) =>
      found.includes(each.mode) ? [] : [{ ...each, proven: false, question: { ...question, problem } }],
    );
  });
}

/** What is proven of a mode is what every way of searching it has proven, and nothing takes less than the least of their bounds. */
function ofMode(answers: readonly PlanAnswer[], mode: PlacementMode): Pick<PlanAlternative, "proven" | "bound"> {
  const own = answers.flatMap(({ alternatives }) => alternatives.filter((each) => each.mode === mode));
  return { proven: own.every(({ proven }) => proven), bound: Math.min(...own.map(({ bound }) => bound)) };
}

/** A problem whose components begin as much at once as those of the other do. */
function asSearched(problem: PlanProblem, { nodes }: PlanProblem): PlanProblem {
  const streaming = new Set(nodes.flatMap(({ id, stream }) => (stream ? [id] : [])));
  return { ...problem, nodes: problem.nodes.map((node) => ({ ...node, stream: streaming.has(node.id) })) };
}

/**
 * A component whose items stream may begin all of its batch at once, and so puts evenly; or it may have no more in flight than
 * the chunk that its consumers take, as everybody else. Which is better depends on who waits for whom, so both are searched.
 */
function waysOf(question: ProfileProblem): ProfileProblem[] {
  const { nodes } = question.problem;
  if (!nodes.some(({ stream }) => stream)) return [question];
  const inChunks = { ...question.problem, nodes: nodes.map((node) => ({ ...node, stream: false })) };
  return [question, { ...question, problem: inChunks }];
}

type Wanting = Pick<PlanFromProfileOptions, "components" | "devices" | "numbered" | "nodeGroups" | "wishes" | "pinned">;

export const wantingOf = ({ components, devices, numbered, nodeGroups, wishes, pinned }: Wanting) => ({
  components: [...components],
  devices: [...devices],
  ...(numbered === undefined ? {} : { numbered: [...numbered] }),
  nodeGroups,
  wishes,
  explicit: pinned,
});

function fastestOfMode(placed: readonly Placed[], mode: PlacementMode): Placed | undefined {
  const ofMode = placed.filter(({ planned }) => planned.mode === mode);
  return fastestOf(ofMode.map((each) => ({ each, seconds: each.planned.stepSeconds })))?.each;
}

/** What a run would choose, or try first. */
function fastest(alternatives: readonly PlannedMode[], tolerance: number | undefined): PlannedMode {
  const [first] = alternatives as readonly [PlannedMode];
  if (tolerance === undefined) return first;
  const plans = alternatives.map(({ stepSeconds, measured }) => ({ predictedSeconds: stepSeconds, times: measured }));
  const untried = nextTrial(plans, { mostSamples: 0, tolerance, stakes: highestStakes, stepsATrial: 1 });
  if (untried !== undefined) return alternatives[untried]!;
  const tried = alternatives.flatMap((plan) => (plan.measured ? [{ plan, seconds: plan.measured.seconds }] : []));
  return fastestOf(tried)?.plan ?? first;
}

/** A cluster in which every device has a double, on a node of doubles. */
function twice(devices: readonly DeviceSpec[]): DeviceSpec[] {
  const double = (device: DeviceSpec): DeviceSpec => ({
    ...device,
    id: `${device.id} double`,
    index: device.index + devices.length,
    node: `${device.node} double`,
  });
  return [...devices, ...devices.map(double)];
}
