/** What a step of a plan takes, whoever made it: its replay by what was measured of its components. Pure. */
import type { DeviceSpec, Plan, Profile } from "@treadle/contracts";
import { withSlots } from "../placement-slots.ts";
import { rankMemory } from "../plan/component-time.ts";
import type { PlanProblem } from "../plan/problem.ts";
import { type ReplayedStep, replayStep } from "./plan-replay.ts";
import { processorBoundSeconds } from "./processor-bound.ts";
import { type PlanTarget, planProblemOf } from "./profile-problem.ts";
import { replayedCalls } from "./replayed-calls.ts";
import { isInTurn, numRanks, overheadOf } from "./step-overhead.ts";

export type PredictedWith = Pick<PlanTarget, "devices" | "batch" | "components">;

/**
 * What a step of a given plan takes by the profile, whatever else a search would find. Undefined where that is not known of
 * plans without a schedule: several ranks share the turns of a cycle. Throws as `planProblemOf` does.
 */
export function predictPlan(profile: Profile, plan: Plan, target: PredictedWith): number | undefined {
  const { devices, batch } = target;
  const { components } = target;
  const slotted = components === undefined ? target : { ...target, ...withSlots({ components, devices }) };
  const { problem, serialSeconds } = planProblemOf(profile, { ...slotted, maxStaleness: 0 });
  const replayed = replayOf(plan, { profile, problem, devices, batch });
  if (replayed === undefined) return undefined;
  const seconds = Math.max(replayed.seconds, processorBoundSeconds(profile, devices));
  return plan.maxStaleness > 0 ? seconds : seconds + serialSeconds + overheadOf(profile, plan);
}

type ReplayedWith = {
  readonly profile: Profile;
  readonly problem: PlanProblem;
  readonly devices: readonly DeviceSpec[];
  readonly batch: number;
  /** as `ReplayTarget` has it; default true */
  readonly isDrawn?: boolean | undefined;
};

/** With more, a replay would take longer than the search; what single ranks do matters less there. */
const mostRanks = 256;

/**
 * Whether plans of steps that overlap are replayed, all of them or none: by a schedule alone they look faster than they are, so the two
 * do not compare.
 */
export const replaysOverlap = ({ nodes }: Pick<PlanProblem, "nodes">, devices: readonly unknown[]): boolean =>
  nodes.length * devices.length <= mostRanks;

/**
 * Where steps overlap, with all that they do: calls that use no channel and what a step takes besides pass beside other steps then.
 * Undefined where what flows is unknown, ranks are very many, or some may share the turns of a cycle.
 */
export function replayOf(
  plan: Plan,
  { profile, problem, devices, batch, isDrawn = true }: ReplayedWith,
): ReplayedStep | undefined {
  if (plan.maxStaleness > 0 && !replaysOverlap(problem, devices)) return undefined;
  if (numRanks(plan) > mostRanks || !isTraced(profile) || mayShareTurns(profile)) return undefined;
  const workers = problem.nodes.map((node) => {
    const { onload = 0, offload = 0, id, tags } = node;
    const own = new Set(plan.components[id]!.ranks.flatMap((rank) => rank.devices));
    const bytes = rankMemory(node, Math.max(1, own.size), batch);
    const parts = tags?.map(({ share, ...own }) => {
      return { bytes: share * bytes, onloadSeconds: own.onload, offloadSeconds: own.offload };
    });
    return [id, { bytes, onloadSeconds: onload, offloadSeconds: offload, parts }] as const;
  });
  // In turn, with whole batches, all wait for the last rank, which is what was measured.
  const draws = isDrawn && !isInTurn(plan);
  return replayStep({
    calls: replayedCalls({ plan, profile, batch, isDrawn: draws }),
    overlap: {
      maxStaleness: plan.maxStaleness,
      overheadSeconds: overheadOf(profile, plan),
      serial: Object.entries(profile.components).flatMap(([component, { serialSeconds, gang }]) => {
        const ranks = plan.components[component]!.ranks.map((rank) => rank.devices);
        return serialSeconds > 0 ? [{ component, ranks, isGang: gang, onceSeconds: serialSeconds }] : [];
      }),
    },
    workers: new Map(workers),
    memory: new Map(devices.map(({ id, memoryBytes }) => [id, memoryBytes])),
  });
}

/** Which rank of a cycle's member answers whom is not known, and neither are the turns of each, where it may have several. */
const mayShareTurns = ({ graph, components }: Profile): boolean =>
  graph.cycles.flat().some((name) => {
    const { maxDevices = 1, devicesPerRank = 1 } = (components as Partial<Profile["components"]>)[name] ?? {};
    return maxDevices > devicesPerRank;
  });

/** A graph by hand may have edges alone, without the methods that take and put. */
function isTraced({ graph, components }: Profile): boolean {
  const methodsOf = (name: string) => Object.values(graph.components[name]?.methods ?? {});
  return (
    graph.edges.every(
      ({ from, to, channel }) =>
        methodsOf(from).some(({ puts }) => puts.includes(channel)) &&
        methodsOf(to).some(({ takes }) => takes.includes(channel)),
    ) &&
    Object.entries(components).every(
      ([name, { samples }]) =>
        methodsOf(name).some(({ takes, puts }) => takes.length + puts.length > 0) ||
        samples.every(({ seconds }) => seconds === 0),
    )
  );
}
