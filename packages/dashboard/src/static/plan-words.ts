/** What is said of plans, on a page and in a terminal alike. */
import type { DeviceSpec } from "@treadle/contracts";
import {
  certaintyOf,
  describeCertainty,
  type PlanFromProfile,
  type PlannedMode,
  type PlanTimeline,
  standardError,
  type WeightPath,
} from "@treadle/planner";
import { formatPercent, formatSeconds, plural } from "../view/format.ts";

export type PlannedCase = {
  readonly title: string;
  readonly devices: readonly DeviceSpec[];
  readonly batch: number;
  readonly maxStaleness: number;
  readonly found: PlanFromProfile;
  readonly searchMs: number;
  /** how weights travel, where workers say what their engines are */
  readonly weights: readonly WeightPath[];
};

/** One that cannot be planned, such as a what-if that leaves wishes no devices. */
export type RefusedCase = Pick<PlannedCase, "title" | "devices" | "batch" | "maxStaleness"> & {
  readonly refused: { readonly code: string; readonly message: string };
};

/** `actor → rollout, 3 ranks: disk`, and one line for each reason. */
export function weightWords({ from, to, numRanks, path, isThroughNode, why, refused }: WeightPath): {
  readonly head: string;
  readonly reasons: readonly string[];
} {
  const way = path === "disk" && isThroughNode ? "disk, through Node" : path;
  return {
    head: `${from} → ${to}, ${plural(numRanks, "rank")}: ${way}`,
    reasons: [why, ...refused.map((other) => `not ${other.path}: ${other.why}`)],
  };
}

/** How a plan compares with the chosen one, by prediction. */
export function standing(plan: PlannedMode, [chosen]: readonly PlannedMode[]): string {
  return plan === chosen ? "chosen" : `${(plan.stepSeconds / chosen!.stepSeconds).toFixed(2)} times as long`;
}

/** A shorter rest of a step than this is not seen. */
const noteworthyRest = 0.03;

/** Where the picture of a plan ends at another time than a step of it is predicted to take, or nothing is drawn up to there: both, and why. */
export function pictureWords({ timeline, stepSeconds, plan: { maxStaleness } }: PlannedMode): string[] {
  const [drawn, predicted] = [formatSeconds(timeline.seconds), formatSeconds(stepSeconds)];
  if (drawn === predicted) return restWords(timeline);
  const shown = `the picture shows the schedule by itself, ${drawn} from its beginning to its end`;
  return maxStaleness > 0
    ? [`${shown}; up to ${maxStaleness + 1} steps overlap, so one is predicted to end every ${predicted}`]
    : [
        `${shown}; a step is predicted to take ${predicted}, with messages, cores that slots share, and what it takes besides`,
      ];
}

function restWords({ lanes, seconds }: PlannedMode["timeline"]): string[] {
  const end = Math.max(0, ...lanes.flatMap(({ segments }) => segments.map(({ endSeconds }) => endSeconds)));
  if (seconds - end <= noteworthyRest * seconds) return [];
  return [
    `what is drawn ends at ${formatSeconds(end)}; the other ${formatSeconds(seconds - end)} of a step are what it takes besides: calls, replies and messages on their way, and cores that slots share`,
  ];
}

/** What would make a step shorter, and why more devices would not. */
export function helpOf({ moreDevices, alternatives: [best], predicted: { stepSeconds } }: PlanFromProfile): {
  readonly helpful: PlanFromProfile["moreDevices"];
  readonly limits: readonly string[];
} {
  if (best?.movedFromSeconds !== undefined)
    return {
      helpful: [],
      limits: ["its parts were moved, so ask what more devices would bring: --what-if devices=<count>"],
    };
  const helpful = moreDevices.filter(({ savedSeconds }) => savedSeconds > 0.001 * stepSeconds);
  const limited = moreDevices.flatMap(({ atMost }) => atMost);
  const keys = [...new Set(limited.map(({ by }) => by))];
  if (keys.length > 0)
    return {
      helpful,
      limits: keys.map((key) => {
        const names = [...new Set(limited.flatMap(({ name, by }) => (by === key ? [`'${name}'`] : [])))].join(", ");
        return `${names}: all that ${key} allows, so more devices need a change of it first`;
      }),
    };
  return {
    helpful,
    limits:
      helpful.length > 0
        ? []
        : [
            "no part would gain from a few more devices while all else stays as it is; --what-if devices=<count> plans anew",
          ],
  };
}

/** A prediction that is further off is said to be. */
const noteworthyMiss = 0.05;

/** What a run has seen of a plan, where one has tried it. */
export function experience(plan: PlannedMode, [chosen, ...others]: readonly PlannedMode[]): string[] {
  const { measured } = plan;
  if (measured === undefined) {
    const seen = others.flatMap(({ mode, measured: of }) => (of ? [{ mode, seconds: of.seconds }] : []));
    const [fastest] = seen.toSorted((a, b) => a.seconds - b.seconds);
    if (plan !== chosen || fastest === undefined) return [];
    return [
      `no run has measured it; it is chosen as ${formatSeconds(plan.stepSeconds)} are predicted, and the ${fastest.mode} plan took ${formatSeconds(fastest.seconds)} when it was measured, perhaps on a busier machine`,
    ];
  }
  const { seconds, samples } = measured;
  const off = plan.stepSeconds / seconds - 1;
  const judged =
    Math.abs(off) > noteworthyMiss
      ? `; predicted ${formatPercent(Math.abs(off), 0)} too ${off > 0 ? "high" : "low"}`
      : "";
  const seen = `measured: ${formatSeconds(seconds)} a step ± ${formatPercent(standardError(measured))}, ${plural(samples, "step")}${judged}`;
  const rivals = others.flatMap((other) => (other.measured ? [certaintyOf(measured, other.measured)] : []));
  if (plan !== chosen || rivals.length === 0) return [seen];
  return [
    `${seen}: the fastest of those that are predicted near the best, with ${describeCertainty(Math.min(...rivals))}`,
  ];
}

export function describeDevices(devices: readonly DeviceSpec[]): string {
  const kinds = new Map<string, number>();
  for (const { kind } of devices) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  return [...kinds].map(([kind, count]) => `${count} ${kind}`).join(" and ");
}

export function componentsOf({ lanes }: PlanTimeline): string[] {
  const segments = lanes.flatMap((lane) => lane.segments).filter((segment) => segment.kind === "run");
  const starts = new Map<string, number>();
  for (const { component, startSeconds } of segments)
    starts.set(component, Math.min(startSeconds, starts.get(component) ?? Number.POSITIVE_INFINITY));
  return [...starts].sort((a, b) => a[1] - b[1]).map(([name]) => name);
}
