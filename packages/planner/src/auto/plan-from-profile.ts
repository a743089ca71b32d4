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
import { resolvePlacement } from "../placement.ts";
import type { PlacementComponent } from "../placement-input.ts";
import { refuseDegrees } from "../placement-ranks.ts";
import { isSlot, placementWithout, withoutDevices, withSlots } from "../placement-slots.ts";
import { blamingFreeDevices, brokenWishes, mostRanksOf, withWishes } from "../placement-wishes.ts";
import { rankMemory, residentMemory, usedDevices } from "../plan/component-time.ts";
import { type Cost, costSchedule, overlapped } from "../plan/evaluate.ts";
import { explainPlan, limitsOf } from "../plan/explain.ts";
import { compileModel } from "../plan/model.ts";
import type { PlanAlternative, PlanAnswer, PlanProblem, Schedule } from "../plan/problem.ts";
import { solvePlan } from "../plan/solve.ts";
import { fastestOf, highestStakes, nextTrial, type StepTimes } from "../profile/plan-trials.ts";
import { layoutOf } from "../profile/running-layout.ts";
import { asksPerTurn } from "../profile/step-samples.ts";
import { type MissingMode, missingModes } from "./missing-modes.ts";
import { type MoreDevices, moreDevices } from "./more-devices.ts";
import { leastWorkSeconds, movedShares, moversOf } from "./moved-shares.ts";
import { planPinnedTogether, type Together } from "./pinned-together.ts";
import { pinsOf } from "./pins.ts";
import type { ReplayedStep } from "./plan-replay.ts";
import { type PlanTimeline, planTimeline, replayedTimeline } from "./plan-timeline.ts";
import { checkTogether } from "./pools.ts";
import { replayOf } from "./predict-plan.ts";
import { processorBoundOf, processorBoundSeconds } from "./processor-bound.ts";
import { type PlanTarget, type ProfileProblem, planProblemOf } from "./profile-problem.ts";
import {
  beginningAll,
  capacityOf,
  expressionsOf,
  granularityOf,
  modeOfShares,
  type Share,
  sharesOf,
} from "./schedule-placement.ts";
import { numRanks, overheadOf } from "./step-overhead.ts";
import { stepWithEnds } from "./stream-ends.ts";

export type PlanFromProfileOptions = Pick<PlanTarget, "devices" | "batch" | "maxStaleness"> & {
  readonly components: readonly PlacementComponent[];
  /** the devices that `pinned` names and counts, where not all of them may be used (`PlacementInput.numbered`) */
  readonly numbered?: readonly DeviceSpec[] | undefined;
  readonly nodeGroups?: Readonly<Record<string, readonly number[]>> | undefined;
  /** `placement.components` of only some components; the others are searched for */
  readonly pinned?: Readonly<Record<string, string>> | undefined;
  /**
   * `placement.auto.trialTolerance`: the plan that a run would choose by what it has measured, or try first, comes first;
   * without it predictions alone count
   */
  readonly trialTolerance?: number | undefined;
  /** `placement.wishes` */
  readonly wishes?: PlacementWishes | undefined;
} & Pick<SolveOptions, "deadlineMs" | "nowMs">;

/** One way to run the workflow. */
export type PlannedMode = {
  readonly mode: PlacementMode;
  /** predicted, `serialSeconds` included */
  readonly stepSeconds: number;
  /** whether its schedule is proven to be the best of the mode */
  readonly proven: boolean;
  /** no schedule of the mode takes less; at most `stepSeconds` */
  readonly boundSeconds: number;
  /** whole steps under this very plan, where the profile has some */
  readonly measured: StepTimes | undefined;
  /** where its devices are others than the search's, what a step takes on those; nothing is proven of it then but `boundSeconds`, of all plans */
  readonly movedFromSeconds?: number | undefined;
  /** of the batch that was searched for, which may be a little larger than the step's (`divisibleBatch`) */
  readonly schedule: Schedule;
  /** in the grammar of `placement.components` */
  readonly placement: Readonly<Record<string, string>>;
  readonly plan: Plan;
  /** what keeps it from being faster, a sentence each */
  readonly limits: readonly string[];
  /** one step, from its beginning to its end */
  readonly timeline: PlanTimeline;
};

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
   * devices were moved to something faster, no plan at all takes less
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
  const question = planProblemOf(profile, { ...target, devices });
  checkTogether(question.pools, wishes);
  const names = components.map(({ name }) => name);
  const devicesOf = (name: string) => question.pools.find((pool) => pool.components.includes(name))!.devices;
  const questions = waysOf(question);
  const startMs = nowMs?.() ?? 0;
  const leftMs = () => (deadlineMs === undefined ? undefined : deadlineMs - ((nowMs?.() ?? startMs) - startMs));
  const answers = questions.map(({ problem }, way) => {
    const left = leftMs();
    return solvePlan(problem, { deadlineMs: left && Math.max(1, left / (questions.length - way)), nowMs });
  });
  const answer = answers.find(({ schedule }) => schedule !== null);
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
    throw new TreadleError("placement.impossible", `${said}: ${explanation.join("; ")}`, { details: { explanation } });
  }
  const found = answers.flatMap(({ alternatives }, way) =>
    alternatives.map((each) => ({
      ...each,
      ...ofMode(answers, each.mode),
      question: questions[way] as ProfileProblem,
    })),
  );
  const questionOf = new Map<Schedule, ProfileProblem>(found.map((each) => [each.schedule, each.question]));
  const { placed: laid, dropped } = placeEach(found, (one) => place(profile, options, one.question, one));
  const moved = moveEach(laid, profile, options, () => (leftMs() ?? 1) <= 0);
  // Where the cores that slots share bound several of them alike, the one that would be faster without.
  const placed = [...laid, ...moved].sort((a, b) => a.secondsAlone - b.secondsAlone).map(({ planned }) => planned);
  const broken = placed.map(({ plan }) => brokenWishes(plan, wishes, devices));
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
  const least = Math.max(bound, processorBoundSeconds(profile, devices)) + serialSeconds;
  const boundOf = ({ movedFromSeconds, boundSeconds, stepSeconds }: PlannedMode): number =>
    Math.min(stepSeconds, movedFromSeconds === undefined ? Math.max(boundSeconds, least) : boundSeconds);
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
  const explanation = [...words, ...dropped, ...question.notes];
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
    boundSeconds: Math.min(
      shortest!.stepSeconds,
      shortest!.movedFromSeconds === undefined ? least : shortest!.boundSeconds,
    ),
  };
}

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

/** With the devices that components have in the plan, and chunks of the step's items; `scale`: of these for one of the search's. */
function asAlternative(each: PlannedMode, scale: number): PlanAlternative {
  const { mode, stepSeconds, proven, boundSeconds } = each;
  return { mode, time: stepSeconds, schedule: asLaid(each, scale), proven, bound: boundSeconds };
}

/** `most`: of a component's devices, relative to the schedule's. */
function asLaid(
  { schedule, plan }: Pick<PlannedMode, "schedule" | "plan">,
  scale = 1,
  most = Number.POSITIVE_INFINITY,
): Schedule {
  const relaid = (part: Schedule): Schedule => {
    if (part.op === "temporal" || part.op === "parallel")
      return { ...part, first: relaid(part.first), second: relaid(part.second) };
    if (part.op === "pipeline") {
      const chunk = Math.ceil(part.chunk * scale);
      return "stages" in part
        ? { ...part, chunk, stages: part.stages.map(relaid) }
        : { ...part, chunk, first: relaid(part.first), second: relaid(part.second) };
    }
    const { ranks } = plan.components[part.node.split("+")[0]!]!;
    const held = new Set(ranks.flatMap((rank) => rank.devices)).size;
    return held > 0 ? { ...part, devices: Math.min(held, part.devices * most) } : part;
  };
  return relaid(schedule);
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

/** `isReplayed`: its seconds are not those of a schedule, but of the devices that components have. */
type Placed = {
  readonly planned: PlannedMode;
  readonly shares: readonly Share[];
  readonly question: ProfileProblem;
  readonly isReplayed: boolean;
  /** with as many cores as slots */
  readonly secondsAlone: number;
};

type Placing = { readonly placed: readonly Placed[]; readonly dropped: readonly string[] };

/** Without those whose ranks do not fit the nodes. Throws as the first does where none is left. */
function placeEach<Found extends PlanAlternative>(
  found: readonly Found[],
  placeOne: (one: Found) => readonly Placed[],
): Placing {
  const placed: Placed[] = [];
  const errors: [PlacementMode, TreadleError][] = [];
  for (const one of found) {
    try {
      placed.push(...placeOne(one));
    } catch (error) {
      if (!(error instanceof TreadleError) || error.code !== "placement.impossible") throw error;
      errors.push([one.mode, error]);
    }
  }
  if (placed.length === 0) throw errors[0]![1];
  const isPlaced = (mode: PlacementMode): boolean => placed.some(({ planned }) => planned.mode === mode);
  const lost = errors.filter(([mode]) => !isPlaced(mode));
  const dropped = new Set(lost.map(([mode, { message }]) => `the ${mode} schedule cannot be laid out: ${message}`));
  return { placed, dropped: [...dropped] };
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

/** In turns all are on all devices; where fewer are faster for some, that is another plan, of another mode. */
function place(
  profile: Profile,
  options: PlanFromProfileOptions,
  question: ProfileProblem,
  found: PlanAlternative,
): Placed[] {
  const { problem, pools } = question;
  const shares = sharesOf(found.schedule, problem, pools);
  const placed = placeShares(profile, options, question, found, shares);
  if (found.mode !== "temporal" || placed.planned.mode === "temporal") return [placed];
  const whole = sharesOf(found.schedule, problem, pools, { fewer: false });
  const other = { ...placed, planned: { ...placed.planned, proven: false, boundSeconds: 0 } };
  return [placeShares(profile, options, question, found, whole), other];
}

/** Of the plans that were placed, the fastest; and ranks of all layouts that are judged of them, which a replay takes its time for. */
const mostMoved = 4;
const mostRanksJudged = 2_000;

/** The fastest plans on other devices, where a step of them is then shorter. */
function moveEach(
  placed: readonly Placed[],
  profile: Profile,
  options: PlanFromProfileOptions,
  isLate: () => boolean,
): Placed[] {
  const { wishes, devices } = options;
  let ranksJudged = 0;
  return placed
    .filter(({ isReplayed }) => isReplayed)
    .sort((a, b) => a.planned.stepSeconds - b.planned.stepSeconds)
    .slice(0, mostMoved)
    .flatMap((first) => {
      const { planned, question } = first;
      const { mode, schedule, stepSeconds: fromSeconds } = planned;
      const found = { mode, schedule, time: fromSeconds, proven: false, bound: leastWorkSeconds(question) };
      const judge = (shares: readonly Share[]): Placed | undefined => {
        ranksJudged += numRanks(planned.plan);
        const judged = placedOr(() => placeShares(profile, options, question, found, shares));
        return judged?.isReplayed && brokenWishes(judged.planned.plan, wishes, devices).length === 0
          ? judged
          : undefined;
      };
      const moved = movedShares(first, moversOf(question, profile.graph, wishes), {
        judge,
        secondsOf: ({ planned }) => planned.stepSeconds,
        isOver: () => ranksJudged > mostRanksJudged || isLate(),
      });
      if (moved === first) return [];
      return [
        {
          ...moved,
          planned: { ...moved.planned, movedFromSeconds: fromSeconds, limits: [asMoved(moved.planned, fromSeconds)] },
        },
      ];
    });
}

const asMoved = ({ stepSeconds }: PlannedMode, fromSeconds: number): string =>
  `parts share other devices than the search gave them, which is predicted to save ${Number((fromSeconds - stepSeconds).toPrecision(2))} s of ${Number(fromSeconds.toPrecision(4))} s`;

function placedOr(place: () => Placed): Placed | undefined {
  try {
    return place();
  } catch (error) {
    if (!(error instanceof TreadleError) || !error.code.startsWith("placement.")) throw error;
    return undefined;
  }
}

function placeShares(
  profile: Profile,
  { components, devices, nodeGroups, batch, maxStaleness }: PlanFromProfileOptions,
  question: ProfileProblem,
  { mode, schedule, proven, bound }: PlanAlternative,
  shares: readonly Share[],
): Placed {
  const { problem, pools, serialSeconds } = question;
  const placement = expressionsOf(shares);
  const realised = modeOfShares(shares, mode);
  const kinds = new Map(pools.flatMap((pool) => pool.components.map((name) => [name, pool.kind] as const)));
  const nodes = new Map(problem.nodes.map((node) => [node.id, node]));
  const memory = new Map(
    shares.map(({ component, devices: own }) => {
      const [node, used] = [nodes.get(component)!, Math.max(1, own.length)];
      return [component, { ofRank: rankMemory(node, used, batch), resident: residentMemory(node, used, batch) }];
    }),
  );
  const plan = resolvePlacement({
    mode: realised,
    // What the profile knows and the workflow did not say: wider ranks, the kind, and memory.
    components: components.map((component) => ({
      ...component,
      ...(memory.get(component.name)!.ofRank > 0 ? { memoryBytesPerDevice: memory.get(component.name)!.ofRank } : {}),
      deviceKind: kinds.get(component.name)!,
      ...(nodes.get(component.name)!.unit > 1 ? { devicesPerRank: nodes.get(component.name)!.unit } : {}),
    })),
    explicit: placement,
    devices,
    ...(nodeGroups === undefined ? {} : { nodeGroups }),
    granularity: "all",
    batchItems: batch,
    maxStaleness,
  });
  const neverSwaps = devices.every(({ id, memoryBytes }) => {
    const residents = shares.filter((share) => share.devices.some((device) => device.id === id));
    return residents.reduce((sum, { component }) => sum + memory.get(component)!.resident, 0) <= memoryBytes;
  });
  const asPlaced = neverSwaps ? withRoom(problem) : problem;
  const heldBy = (name: string) => new Set(plan.components[name]!.ranks.flatMap((rank) => rank.devices)).size;
  // Wide ranks cross no nodes, so some may find no place on the devices that a search gives them.
  const isNarrower = shares.some(({ component, devices: { length } }) => {
    const node = nodes.get(component)!;
    return !problem.pools[node.pool ?? ""]?.shared && heldBy(component) < usedDevices(node, length);
  });
  const cost = costSchedule(compileModel(asPlaced), isNarrower ? asLaid({ schedule, plan }, 1, 1) : schedule);
  const batches = { searched: problem.batch, batch };
  const capacity = capacityOf(schedule, batches, profile.graph, plan.components, (name) => {
    return profile.components[name]?.gang === true;
  });
  const chunksOf = (round: (items: number) => number) =>
    granularityOf(shares, batches, profile.graph, plan.components, round);
  const inChunks = chunksOf(Math.ceil);
  // Ranks take whole items: more than their part of a chunk, or fewer, whichever leaves them less uneven at the end.
  const smaller = chunksOf(Math.floor);
  const isSmaller = Object.entries(smaller.channels).some(([channel, items]) => items !== inChunks.channels[channel]);
  const streamed = problem.nodes.some(({ stream }) => stream)
    ? [beginningAll(inChunks, capacity, { graph: profile.graph, nodes: problem.nodes })]
    : [];
  const { placed, replayed } = fastestOfReplays(
    [...streamed, inChunks, ...(isSmaller ? [smaller] : [])].map((granularity) => ({
      ...plan,
      granularity,
      ...(Object.keys(capacity).length > 0 ? { capacity } : {}),
    })),
    (one) => (maxStaleness === 0 ? replayOf(one, { profile, problem, devices, batch }) : undefined),
  );
  const atLeast = processorBoundOf(profile, devices, problem, cost);
  const time =
    replayed?.seconds ??
    overlapped(asPlaced, stepWithEnds(cost, profile, problem.batch), cost.busy) + messageSeconds(profile, cost);
  // Swaps are in a replay as they come, and in the schedule by pairs of parts: cores are behind by what work lacks alone.
  const onCores = replayed === undefined ? atLeast : time + Math.max(0, atLeast - cost.step);
  const shared =
    onCores > time * (1 + 1e-9)
      ? [`the cores, which slots share, need ${atLeast.toPrecision(3)} s for a step's work: more slots bring nothing`]
      : [];
  const beside = {
    shares: shares.map(({ component, devices: own, items }) => {
      const ranks = new Set(plan.components[component]!.ranks.flatMap((rank) => rank.devices));
      return {
        component,
        items,
        devices: own.some(({ id }) => ranks.has(id)) ? own.filter(({ id }) => ranks.has(id)) : own,
      };
    }),
    serialSeconds: new Map(
      Object.entries(profile.components).map(([name, { serialSeconds }]) => [name, serialSeconds]),
    ),
  };
  const besides = serialSeconds + overheadOf(profile, placed);
  const stepSeconds = Math.max(time, onCores) + besides;
  const planned: PlannedMode = {
    mode: realised,
    stepSeconds,
    proven: proven && realised === mode && !isNarrower,
    boundSeconds: Math.min(stepSeconds, bound + besides),
    schedule,
    placement: Object.fromEntries(
      shares.map(({ component, devices: own }) => [
        component,
        own.every(isSlot) ? placementWithout(plan.components[component]!.ranks.length) : placement[component]!,
      ]),
    ),
    limits: [...shared, ...limitsOf(cost)],
    timeline: replayed ? replayedTimeline(replayed, { ...beside, stepSeconds }) : planTimeline(cost, beside),
    plan: placed,
    measured: measuredSteps(profile, placed, batch),
  };
  return { planned, shares, question, isReplayed: replayed !== undefined, secondsAlone: time };
}

/** The first one where none can be replayed. */
function fastestOfReplays(plans: readonly Plan[], replay: (plan: Plan) => ReplayedStep | undefined) {
  const all = plans.map((placed) => ({ placed, replayed: replay(placed) }));
  const secondsOf = ({ replayed }: (typeof all)[number]): number => replayed?.seconds ?? Number.POSITIVE_INFINITY;
  return all.reduce((best, each) => (secondsOf(each) < secondsOf(best) * (1 - 1e-9) ? each : best));
}

/** Who takes turns does so one after the other. */
function messageSeconds(profile: Profile, { schedule, parts }: Cost): number {
  if (schedule.op === "node")
    return Math.max(
      ...schedule.node.split("+").map((name) => asksPerTurn * (profile.components[name]?.askSeconds ?? 0)),
    );
  const seconds = parts.map((part) => messageSeconds(profile, part));
  return schedule.op === "temporal" ? seconds.reduce((sum, each) => sum + each, 0) : Math.max(...seconds);
}

/** The search judges residency as if all were on every device of a turn; by now it is known who is on which. */
function withRoom({ memoryPerDevice: _, pools, ...problem }: PlanProblem): PlanProblem {
  const roomy = Object.entries(pools).map(([name, { memoryPerDevice: _of, ...pool }]) => [name, pool] as const);
  return { ...problem, pools: Object.fromEntries(roomy) };
}

function measuredSteps({ graph, steps }: Profile, plan: Plan, batch: number): PlannedMode["measured"] {
  const { name } = layoutOf(plan);
  const found = graph.batch === batch ? steps.find(({ layout }) => layout === name) : undefined;
  return found && { seconds: found.seconds, deviation: found.deviation, samples: found.samples };
}
