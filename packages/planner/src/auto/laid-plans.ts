/** From schedules to plans: devices of each component, chunks, and what a step takes by its replay. Pure. */
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
import { isSlot, placementWithout } from "../placement-slots.ts";
import { brokenWishes } from "../placement-wishes.ts";
import { rankMemory, residentMemory, usedDevices } from "../plan/component-time.ts";
import { type Cost, overlapped, tryCost } from "../plan/evaluate.ts";
import { limitsOf } from "../plan/explain.ts";
import { compileModel } from "../plan/model.ts";
import type { PlanAlternative, PlanProblem, Schedule } from "../plan/problem.ts";
import { believed, type StepTimes } from "../profile/plan-trials.ts";
import { layoutOf } from "../profile/running-layout.ts";
import { asksPerTurn } from "../profile/step-samples.ts";
import { mayDiffer } from "../profile/take-stretch.ts";
import { isStaged } from "./cycle-model.ts";
import { turnSwapSeconds } from "./cycle-turns.ts";
import { leastGain } from "./descent.ts";
import { leastWorkSeconds, movedShares, moversOf } from "./moved-shares.ts";
import type { ReplayedStep } from "./plan-replay.ts";
import { type PlanTimeline, planTimeline, replayedTimeline } from "./plan-timeline.ts";
import { replayOf } from "./predict-plan.ts";
import { processorBoundOf } from "./processor-bound.ts";
import type { PlanTarget, ProfileProblem } from "./profile-problem.ts";
import { refinedChunks } from "./refined-chunks.ts";
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
  /** by how much its steps are predicted to differ: the standard deviation of their logarithm */
  readonly stepDeviation: number;
  /** whole steps under this very plan, where the profile has some, as far as they are believed */
  readonly measured: StepTimes | undefined;
  /** where its devices are others than the search's, what a step takes on those; nothing is proven of it then but `boundSeconds`, of all plans */
  readonly movedFromSeconds?: number | undefined;
  /** where its chunks are others than the search's, what a step takes with those; nothing is proven of it then, either */
  readonly refinedFromSeconds?: number | undefined;
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

/** With the devices that components have in the plan; `fewer`: only where these are fewer. `scale`: of chunks. */
export function asLaid(
  { schedule, plan }: Pick<PlannedMode, "schedule" | "plan">,
  { scale = 1, fewer = false }: { readonly scale?: number; readonly fewer?: boolean } = {},
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
    return held === 0 || (fewer && held > part.devices) ? part : { ...part, devices: held };
  };
  return relaid(schedule);
}

/** `isReplayed`: its seconds are not those of a schedule, but of the devices that components have. */
export type Placed = {
  readonly planned: Omit<PlannedMode, "timeline">;
  /** of the hundreds that are judged few are shown */
  readonly draw: () => PlanTimeline;
  readonly shares: readonly Share[];
  readonly question: ProfileProblem;
  readonly isReplayed: boolean;
  /** what keeps a step from being shorter, by its replay: of plans that are not as they were searched for */
  readonly busiest: readonly string[];
  /** with as many cores as slots */
  readonly secondsAlone: number;
};

export const asPlanned = ({ planned, draw }: Placed): PlannedMode => ({ ...planned, timeline: draw() });

type Placing = { readonly placed: readonly Placed[]; readonly dropped: readonly string[] };

/** Without those whose ranks do not fit the nodes. Throws as the first does where none is left. */
export function placeEach<Found extends PlanAlternative>(
  found: readonly Found[],
  placeOne: (one: Found) => readonly Placed[],
  mayBeNone = found.length === 0,
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
  if (placed.length === 0 && !mayBeNone) throw errors[0]![1];
  const isPlaced = (mode: PlacementMode): boolean => placed.some(({ planned }) => planned.mode === mode);
  const lost = errors.filter(([mode]) => !isPlaced(mode));
  const dropped = new Set(lost.map(([mode, { message }]) => `the ${mode} schedule cannot be laid out: ${message}`));
  return { placed, dropped: [...dropped] };
}

/** In turns all are on all devices; where fewer are faster for some, that is another plan, of another mode. */
export function place(
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
  const boundSeconds = Math.min(placed.planned.stepSeconds, leastWorkSeconds(question, profile, options.batch));
  const other = { ...placed, planned: { ...placed.planned, proven: false, boundSeconds } };
  return [placeShares(profile, options, question, found, whole), other];
}

/** Of the plans that were placed, the fastest; and ranks of all layouts that are judged of them, which a replay takes its time for. */
const mostMoved = 4;

const mostRanksJudged = 2_000;

/** Of steps that overlap there are more. */
const stepsReplayed = ({ maxStaleness }: Pick<PlanFromProfileOptions, "maxStaleness">): number =>
  maxStaleness > 0 ? 2 + maxStaleness : 1;

/** Whether a layout that no search made does: in a hybrid some share devices, however few of them their ranks fill. */
export function keepsWishes(
  { planned: { plan } }: Placed,
  { wishes, devices }: Pick<PlanFromProfileOptions, "wishes" | "devices">,
): boolean {
  const isHybridByName = plan.mode === "hybrid" && plan.sharing.length === 0 && wishes?.modes !== undefined;
  return !isHybridByName && brokenWishes(plan, wishes, devices).length === 0;
}

/** The fastest plans on other devices, where a step of them is then shorter. */
export function moveEach(
  placed: readonly Placed[],
  profile: Profile,
  options: PlanFromProfileOptions,
  isLate: () => boolean,
): Placed[] {
  const { wishes, devices, batch } = options;
  let ranksJudged = 0;
  return placed
    .filter(({ isReplayed }) => isReplayed)
    .sort((a, b) => a.planned.stepSeconds - b.planned.stepSeconds)
    .slice(0, mostMoved)
    .flatMap((first) => {
      const { planned, question } = first;
      const { mode, schedule, stepSeconds: fromSeconds } = planned;
      const isBroken = brokenWishes(planned.plan, wishes, devices).length > 0;
      const found = {
        mode,
        schedule,
        time: fromSeconds,
        proven: false,
        bound: leastWorkSeconds(question, profile, batch),
      };
      const judge = (shares: readonly Share[], isDrawn = false): Placed | undefined => {
        ranksJudged += numRanks(planned.plan) * stepsReplayed(options);
        const judged = replayedOr(() => placeShares(profile, options, question, found, shares, { isDrawn }));
        return judged && keepsWishes(judged, options) ? judged : undefined;
      };
      // Hundreds of layouts are judged, so these are replayed without draws; the best one is then compared with them.
      const expected = mayDiffer(profile) ? { ...first, planned: judge(first.shares)?.planned ?? planned } : first;
      const best = movedShares(expected, moversOf(question, profile.graph, wishes), {
        judge,
        secondsOf: (each) => (each === expected && isBroken ? Number.POSITIVE_INFINITY : each.planned.stepSeconds),
        isOver: () => ranksJudged > mostRanksJudged || isLate(),
      });
      const moved = best === expected ? undefined : judge(best.shares, true);
      if (moved === undefined || (!isBroken && moved.planned.stepSeconds > fromSeconds * (1 - leastGain))) return [];
      return [
        {
          ...moved,
          planned: {
            ...moved.planned,
            movedFromSeconds: fromSeconds,
            limits: [...moved.busiest, isBroken ? asWished : asMoved(moved.planned, fromSeconds)],
          },
        },
      ];
    });
}

/** For the chunks of one mode, ranks of all steps are replayed until there are so many. */
const mostRanksChunked = 400;

/**
 * With other chunks, where a step is then shorter. Those of parts that take turns within a pipeline are left as they are, as they bound what it
 * holds, and so are those of a plan that was measured: what it takes is known.
 */
export function refineChunks(
  first: Placed,
  profile: Profile,
  options: PlanFromProfileOptions,
  isLate: () => boolean,
): Placed {
  const { planned, question, shares, isReplayed } = first;
  const { mode, schedule, plan, stepSeconds: fromSeconds } = planned;
  const { batch } = options;
  if (!isReplayed || plan.capacity !== undefined || planned.measured !== undefined) return first;
  const ranksReplayed = numRanks(plan) * stepsReplayed(options);
  let ranksJudged = 0;
  const isOver = () => ranksJudged + ranksReplayed > mostRanksChunked || isLate();
  if (isOver()) return first;
  const bound = leastWorkSeconds(question, profile, batch);
  const found = { mode, schedule, time: fromSeconds, proven: false, bound };
  const judge = (chunks: Plan["granularity"], isDrawn = false): Placed | undefined => {
    ranksJudged += ranksReplayed;
    return replayedOr(() => placeShares(profile, options, question, found, shares, { isDrawn, chunks }));
  };
  const expected = mayDiffer(profile) ? (judge(plan.granularity) ?? first) : first;
  const chunks = refinedChunks(
    { choice: plan.granularity, layout: expected },
    { graph: profile.graph, batch },
    { judge, secondsOf: ({ planned: { stepSeconds } }) => stepSeconds, isOver },
  );
  const refined = chunks === plan.granularity ? undefined : judge(chunks, true);
  if (refined === undefined || refined.planned.stepSeconds > fromSeconds * (1 - leastGain)) return first;
  const { stepSeconds } = refined.planned;
  return {
    ...refined,
    planned: {
      ...refined.planned,
      boundSeconds: Math.min(bound, stepSeconds),
      movedFromSeconds: planned.movedFromSeconds,
      refinedFromSeconds: fromSeconds,
      limits: [
        ...(planned.movedFromSeconds === undefined ? refined.busiest : planned.limits),
        asRefined(stepSeconds, fromSeconds),
      ],
    },
  };
}

const asRefined = (stepSeconds: number, fromSeconds: number): string =>
  `chunks are others than the search gave them, which is predicted to save ${saved(stepSeconds, fromSeconds)}`;

const saved = (stepSeconds: number, fromSeconds: number): string =>
  `${Number((fromSeconds - stepSeconds).toPrecision(2))} s of ${Number(fromSeconds.toPrecision(4))} s`;

const asWished = "parts share other devices than the search gave them, whose layout does not keep placement.wishes";
const asMoved = ({ stepSeconds }: Pick<PlannedMode, "stepSeconds">, fromSeconds: number): string =>
  `parts share other devices than the search gave them, which is predicted to save ${saved(stepSeconds, fromSeconds)}`;

/** Undefined where that is impossible, or cannot be replayed. */
function replayedOr(place: () => Placed): Placed | undefined {
  try {
    const placed = place();
    return placed.isReplayed ? placed : undefined;
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
  { isDrawn = true, chunks }: { readonly isDrawn?: boolean; readonly chunks?: Plan["granularity"] } = {},
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
  const laid = asLaid({ schedule, plan }, { fewer: true });
  // What the nodes leave idle breaks a wish of the plan, which is judged by its devices; it may be where a better one begins.
  const { cost, illegal } = isNarrower
    ? tryCost(compileModel({ ...asPlaced, useAll: false }), laid)
    : tryCost(compileModel(asPlaced), schedule);
  if (cost === null)
    throw new TreadleError(
      "placement.impossible",
      `no rank may cross a node, and on the devices that are left ${illegal.problem}`,
      { details: { path: illegal.path } },
    );
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
  const replay = (one: Plan, drawn: boolean) => replayOf(one, { profile, problem, devices, batch, isDrawn: drawn });
  const { placed, replayed: expected } = fastestOfReplays(
    (chunks ? [chunks] : [...streamed, inChunks, ...(isSmaller ? [smaller] : [])]).map((granularity) => ({
      ...plan,
      granularity,
      ...(Object.keys(capacity).length > 0 ? { capacity } : {}),
    })),
    (one) => replay(one, false),
  );
  const replayed = expected && isDrawn && mayDiffer(profile) ? replay(placed, true) : expected;
  const isOverlap = replayed !== undefined && maxStaleness > 0;
  const isByTurns = problem.cycleMemory === "by-turns";
  const atLeast = processorBoundOf(profile, devices, problem, cost);
  const time =
    replayed?.seconds ??
    overlapped(asPlaced, stepWithEnds(cost, profile, problem.batch), cost.busy) +
      messageSeconds(profile, cost) +
      (isByTurns ? turnSwapSeconds(problem, placed, profile.graph) : 0);
  // Swaps are in a replay as they come, and in the schedule by pairs of parts: cores are behind by what work lacks alone.
  const onCores = replayed === undefined || isOverlap ? atLeast : time + Math.max(0, atLeast - cost.step);
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
      isOverlap ? [] : Object.entries(profile.components).map(([name, own]) => [name, own.serialSeconds] as const),
    ),
  };
  // Where steps overlap, a replay has all of it.
  const besides = isOverlap ? 0 : serialSeconds + overheadOf(profile, placed);
  const stepSeconds = Math.max(time, onCores) + besides;
  const busiest = replayed === undefined ? [] : [...shared, ...busiestOf(replayed)];
  // A proof is of schedules of the batch that was searched for; steps that overlap, swaps of a cycle's turns, and members of a cycle
  // that work at the same time are in no schedule.
  const isProvable = !isOverlap && problem.batch === batch && !isByTurns && !isStaged(profile.graph);
  const planned: Placed["planned"] = {
    mode: realised,
    stepSeconds,
    proven: proven && realised === mode && !isNarrower && isProvable,
    boundSeconds: Math.min(stepSeconds, isProvable ? bound + besides : leastWorkSeconds(question, profile, batch)),
    schedule,
    placement: Object.fromEntries(
      shares.map(({ component, devices: own }) => [
        component,
        own.every(isSlot) ? placementWithout(plan.components[component]!.ranks.length) : placement[component]!,
      ]),
    ),
    // Of another batch, chunks and shares are others.
    limits:
      problem.batch === batch || replayed === undefined
        ? [...shared, ...limitsOf(withSchedule(cost, laid), stepSeconds)]
        : busiest,
    plan: placed,
    stepDeviation: replayed?.deviation ?? 0,
    measured: measuredSteps(profile, placed, { batch, deviation: replayed?.deviation }),
  };
  const draw = () => (replayed ? replayedTimeline(replayed, { ...beside, stepSeconds }) : planTimeline(cost, beside));
  return { planned, draw, shares, question, isReplayed: replayed !== undefined, busiest, secondsAlone: time };
}

/** The same seconds, told of the devices that components have in the plan: those beyond are of no use to them. */
function withSchedule(cost: Cost, schedule: Schedule): Cost {
  if (schedule.op === "node") return { ...cost, schedule };
  const own = "stages" in schedule ? schedule.stages : [schedule.first, schedule.second];
  return { ...cost, schedule, parts: cost.parts.map((part, i) => withSchedule(part, own[i]!)) };
}

/** Who computes for the largest part of a step, on the busiest of its devices. */
function busiestOf({ stretches, lastSeconds }: ReplayedStep): string[] {
  const computing = new Map<string, Map<string, number>>();
  for (const { component, devices, kind, startSeconds, endSeconds } of stretches) {
    if (kind !== "run") continue;
    const own = computing.get(component) ?? new Map<string, number>();
    computing.set(component, own);
    for (const device of devices) own.set(device, (own.get(device) ?? 0) + endSeconds - startSeconds);
  }
  const all = [...computing].map(([component, own]) => ({
    component,
    devices: own.size,
    seconds: Math.max(...own.values()),
  }));
  const [most] = all.toSorted((a, b) => b.seconds - a.seconds);
  if (most === undefined || most.seconds <= 0) return [];
  const { component, devices, seconds } = most;
  const part = `${Math.round((100 * seconds) / lastSeconds)} %`;
  return [
    `'${component}' is the busiest: it computes for ${part} of a step, on ${devices} ${devices === 1 ? "device" : "devices"}`,
  ];
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

function measuredSteps(
  { graph, steps }: Profile,
  plan: Plan,
  { batch, deviation }: { readonly batch: number; readonly deviation: number | undefined },
): PlannedMode["measured"] {
  const { name } = layoutOf(plan);
  const found = graph.batch === batch ? steps.find(({ layout }) => layout === name) : undefined;
  if (found === undefined) return undefined;
  const { seconds, deviation: seen, samples, meanSeconds } = found;
  return believed({ seconds, deviation: seen, samples, meanSeconds }, deviation);
}
