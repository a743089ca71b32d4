/** `placement.mode: auto`: a measured profile in, a plan out, with its prediction and what it won against. */
import {
  type DeviceSpec,
  type PlacementMode,
  type PlacementWishes,
  type Plan,
  type Profile,
  type SolveOptions,
  TreadleError,
} from "@treadle/contracts";
import type { PlacementComponent } from "../placement-input.ts";
import { refuseDegrees } from "../placement-ranks.ts";
import { isSlot, withoutDevices, withSlots } from "../placement-slots.ts";
import { blamingFreeDevices, brokenWishes, mostRanksOf, withWishes } from "../placement-wishes.ts";
import { explainPlan } from "../plan/explain.ts";
import { compileModel } from "../plan/model.ts";
import { type PlanAlternative, type PlanAnswer, type PlanProblem, planModes, type Schedule } from "../plan/problem.ts";
import { solvePlan, wishesToDrop } from "../plan/solve.ts";
import { fastestOf, highestStakes, nextTrial } from "../profile/plan-trials.ts";
import { byTurns } from "./cycle-turns.ts";
import {
  asLaid,
  asPlanned,
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
import { planPinnedTogether, type Together } from "./pinned-together.ts";
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
  return blamingFreeDevices(asked, (each) => planOnce(profile, each));
}

function planOnce(profile: Profile, asked: PlanFromProfileOptions): PlanFromProfile {
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
  const begun = startsOf(question, wishes, { deadlineMs: leftMs(), nowMs });
  const { placed: starts } = placeEach(begun, (one) => place(profile, options, one.question, one), true);
  let isCutShort = false;
  const isLate = () => {
    isCutShort ||= (leftMs() ?? 1) <= 0;
    return isCutShort;
  };
  const moved = moveEach([...laid, ...starts], profile, options, isLate);
  const answer = answers.find(({ schedule }) => schedule !== null) ?? (moved.length > 0 ? answers[0] : undefined);
  if (answer === undefined) {
    const pinnedTogether = planPinnedTogether({ ...asked, deadlineMs: leftMs() }, names, devicesOf, (more) =>
      planOnce(profile, more),
    );
    if (pinnedTogether !== undefined) {
      const boundSeconds = processorBoundSeconds(profile, devices) + question.serialSeconds;
      return asPinned(pinnedTogether, boundSeconds);
    }
    const { stats, explanation } = answers.find((each) => !each.stats.exact) ?? (answers[0] as PlanAnswer);
    const said = stats.exact && !mayBeUncut(question.problem) ? "no plan is possible" : "no plan was found";
    const remedies = stats.exact ? wishesToDrop(question.problem, { nowMs, deadlineMs }) : [];
    const message = [...explanation, ...remedies].join("; ");
    throw new TreadleError("placement.impossible", `${said}: ${message}`, { details: { explanation } });
  }
  const questionOf = new Map([...found, ...begun].map((each) => [each.schedule, each.question]));
  // Where the cores that slots share bound several of them alike, the one that would be faster without.
  const inLine = [...laid, ...moved].sort((a, b) => a.secondsAlone - b.secondsAlone);
  // Of devices, which chunks change nothing of.
  const broken = inLine.map(({ planned }) => brokenWishes(planned.plan, wishes, devices));
  const mayBe = inLine.filter((_, i) => broken[i]!.length === 0);
  const refine = (each: Placed) => refineChunks(each, profile, options, isLate);
  const fastestOnes = new Set(planModes.map((mode) => fastestOfMode(mayBe, mode)));
  const placed = inLine.map((each) => asPlanned(fastestOnes.has(each) ? refine(each) : each));
  if (broken.every((reasons) => reasons.length > 0)) {
    const reasons = [...new Set(placed.map(({ mode }, i) => `of the ${mode} one, ${broken[i]!.join(" and ")}`))];
    throw new TreadleError(
      "placement.impossible",
      `no plan that was found keeps placement.wishes: ${reasons.join("; ")}; drop or loosen one of them`,
      { details: { reasons } },
    );
  }
  const alternatives = placed
    .filter((_, i) => broken[i]!.length === 0)
    .sort((a, b) => a.stepSeconds - b.stepSeconds)
    .filter(({ mode }, i, all) => all.findIndex((other) => other.mode === mode) === i);
  const best = fastest(alternatives, trialTolerance);
  const [shortest] = alternatives;
  const { serialSeconds } = question;
  const searched = questionOf.get(best.schedule) as ProfileProblem;
  const bound = Math.min(...answers.map(({ stats }) => stats.bound ?? Number.POSITIVE_INFINITY));
  const isProvable = !overlaps && question.problem.batch === batch;
  const least = isProvable
    ? Math.max(bound, processorBoundSeconds(profile, devices)) + serialSeconds
    : leastWorkSeconds(question, profile, batch);
  const boundOf = (each: PlannedMode): number =>
    Math.min(each.stepSeconds, isAsSearched(each) ? Math.max(each.boundSeconds, least) : each.boundSeconds);
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
  const words = explainPlan(compileModel(searched.problem), best.schedule, named, answer.stats, {
    batch,
    empty: answer.empty,
    unsearched: answer.unsearched,
    found: answer.alternatives.map(({ mode }) => mode),
    limits: best.limits,
  });
  const explanation = [...words, ...dropped, ...question.notes, ...(isCutShort ? [cutShort] : [])];
  const helpFor = ({ problem }: ProfileProblem, schedule: Schedule): PlanFromProfile["moreDevices"] => {
    const costs = asSearched(planProblemOf(profile, { ...target, devices: twice(devices) }).problem, problem);
    return moreDevices(costs, problem, schedule)
      .filter((help) => help.components.some((name) => !without.has(name)))
      .map(({ atMostRanks, ...help }) => ({
        ...help,
        atMost: atMostRanks.map((name) => ({ name, by: limitOf(name) })),
      }));
  };
  return {
    plan: { ...best.plan, explanation: [...explanation] },
    predicted: {
      stepSeconds: best.stepSeconds,
      serialSeconds: serialSeconds + overheadOf(profile, best.plan),
      schedule: best.schedule,
    },
    alternatives: inOrder,
    missing: missingModes(
      answers,
      inOrder.map(({ mode }) => mode),
      wishes,
    ),
    limits: best.limits,
    explanation,
    moreDevices: best.movedFromSeconds === undefined ? helpFor(searched, best.schedule) : [],
    boundSeconds: Math.min(shortest!.stepSeconds, isAsSearched(shortest!) ? least : shortest!.boundSeconds),
  };
}

const cutShort =
  "the time for the search ran out before devices and chunks of its plans were all refined; give it a longer deadline";

/** Of more, nothing is proven: what feeds nothing has many more cuts. */
const mostUncut = 6;

/** Whether sets of devices that no cut of the flow makes may keep the wishes: those of components that feed nobody are any sets. */
function mayBeUncut(problem: PlanProblem): boolean {
  if (problem.together.length + problem.apart.length === 0) return false;
  return problem.nodes.length > mostUncut || solvePlan({ ...problem, edges: [] }).feasible;
}

/** Nothing is proven of plans whose pins were tried one by one. */
function asPinned({ found, group }: Together<PlanFromProfile>, boundSeconds: number): PlanFromProfile {
  const both = group.map((name) => `'${name}'`).join(" and ");
  const note = `no cut of the flow keeps all wishes, so ${both} were pinned to the same devices, of which some numbers were tried`;
  const explanation = [...found.explanation, note];
  const unproven = (each: PlannedMode): PlannedMode => ({ ...each, proven: false, boundSeconds });
  return {
    ...found,
    plan: { ...found.plan, explanation },
    explanation,
    alternatives: found.alternatives.map(unproven),
    boundSeconds,
  };
}

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

/** Schedules of the modes that are not wanted. */
function startsOf(
  question: ProfileProblem,
  wishes: PlacementWishes | undefined,
  limits: Pick<SolveOptions, "deadlineMs" | "nowMs">,
): Found[] {
  if (!wishes?.modes?.some((mode) => mode !== "temporal") || wishes.modes.length === planModes.length) return [];
  const problem = { ...question.problem, modes: [...planModes] };
  const { alternatives } = solvePlan(problem, limits);
  return alternatives.flatMap((each) =>
    wishes.modes!.includes(each.mode) ? [] : [{ ...each, proven: false, question: { ...question, problem } }],
  );
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
