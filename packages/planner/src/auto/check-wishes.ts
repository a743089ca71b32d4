/** Whether any plan can keep `placement.wishes`, before anything is measured. Pure. */
import { type PlacementWishes, type Profile, type SolveOptions, TreadleError } from "@treadle/contracts";
import { withoutDevices, withSlots } from "../placement-slots.ts";
import { blamingFreeDevices, withWishes } from "../placement-wishes.ts";
import type { PlanNode, PlanProblem } from "../plan/problem.ts";
import { solvePlan, wishesToDrop } from "../plan/solve.ts";
import { crowdedClique } from "./apart-cliques.ts";
import { mayBeBeyondSchedules } from "./beyond-schedules.ts";
import { inConfiguredWords } from "./configured-words.ts";
import type { PlanFromProfileOptions } from "./laid-plans.ts";
import { pinsOf } from "./pins.ts";
import { wantingOf } from "./plan-from-profile.ts";
import { checkTogether } from "./pools.ts";
import { planProblemOf } from "./profile-problem.ts";

/** Without a flow there are many more ways to cut a workflow; of larger ones it is only checked what needs no search. */
const mostComponents = 10;

type Facts = Pick<PlanFromProfileOptions, "components" | "devices" | "numbered" | "nodeGroups" | "pinned"> & {
  readonly wishes: PlacementWishes | undefined;
} & Pick<SolveOptions, "deadlineMs" | "nowMs">;

/**
 * Throws `placement.impossible` where it is proven that no plan keeps the wishes, whatever components cost and whichever
 * feeds which: all take one second, and nothing feeds anything, so what has no schedule here has none.
 */
export function checkWishes(facts: Facts): void {
  blamingFreeDevices(facts, checkOnce);
}

function checkOnce({ deadlineMs, nowMs, ...facts }: Facts): void {
  if (facts.wishes === undefined) return;
  const { explicit, ...wanted } = withSlots(withWishes(withoutDevices(wantingOf(facts))));
  const { components, devices, numbered, nodeGroups, wishes } = wanted;
  const pins = pinsOf(explicit ?? {}, { components, devices, numbered, nodeGroups });
  const profile = unitProfile(components.map(({ name }) => name));
  const question = planProblemOf(profile, { maxStaleness: 0, devices, components, pins, wishes, batch: 1 });
  checkTogether(question.pools, wishes);
  checkUseAll(question.problem);
  checkApart(question.problem);
  if (facts.components.length > mostComponents) return;
  const problem = { ...question.problem, edges: [] };
  const answer = solvePlan(problem, { deadlineMs, nowMs });
  if (answer.feasible || !answer.stats.exact || mayBeBeyondSchedules(problem, { deadlineMs, nowMs })) return;
  const said = [...answer.explanation, ...wishesToDrop(problem, { deadlineMs, nowMs })].map(inConfiguredWords);
  throw new TreadleError("placement.impossible", `no plan is possible: ${said.join("; ")}`, {
    details: { explanation: answer.explanation },
  });
}

/** A search finds this, too, but not in time where devices are many. */
function checkUseAll({ useAll, devices: own, nodes, pools }: PlanProblem): void {
  if (!useAll) return;
  const mostOf = ({ maxRanks, maxDevices, unit }: PlanNode): number =>
    maxRanks === undefined ? (maxDevices ?? Number.POSITIVE_INFINITY) : maxRanks * unit;
  // Whoever is pinned is told by a search.
  const searched = Object.entries(pools).filter(([, { shared }]) => !shared);
  for (const [pool, devices] of [
    [undefined, own] as const,
    ...searched.map(([name, each]) => [name, each.devices] as const),
  ]) {
    const there = nodes.filter((node) => node.pool === pool);
    const most = there.reduce((sum, node) => sum + mostOf(node), 0);
    if (there.length === 0 || most >= devices) continue;
    const names = pool === undefined ? "components" : there.map(({ id }) => `'${id}'`).join(" and ");
    const kind = pool === undefined ? "" : ` of their kind`;
    throw new TreadleError(
      "placement.impossible",
      `placement.wishes.useAllDevices cannot be kept: with as many ranks as 'ranks' and placement.wishes.maxRanks allow, ${names} fill ${most} of ${devices} devices${kind}; allow more ranks, or keep devices free with placement.wishes.freeDevices`,
      { details: { most, devices } },
    );
  }
}

/** A search finds this, too, but of many components not in time. */
function checkApart(problem: PlanProblem): void {
  const clique = crowdedClique(problem);
  if (clique === undefined) return;
  const { ids, needed, devices } = clique;
  const names = ids.map((id) => `'${id}'`).join(" and ");
  throw new TreadleError(
    "placement.impossible",
    `no plan is possible: ${names} are all to be kept apart, for which they need at least ${needed} devices, and may have ${devices}; add ${needed - devices}, or let ${names} share devices (apart)`,
    { details: { components: ids, needed, devices } },
  );
}

/** A chain in which all take one second, on any number of devices. */
function unitProfile(names: readonly string[]): Profile {
  const sample = { devices: 1, items: 1, seconds: 1, spread: 0, accepted: 1, rejected: 0, contended: false };
  const component: Profile["components"][string] = {
    ...{ key: "unit", devicesPerRank: 1, minDevices: 1, maxDevices: 65536, samples: [sample], fit: null, memory: [] },
    ...{ onloadSeconds: 0, offloadSeconds: 0, serialSeconds: 0 },
  };
  const edges = names.slice(1).map((to, i) => ({
    ...{ from: names[i]!, to, channel: `to ${to}`, itemsPerStep: 1, bytesPerStep: 0 },
  }));
  return {
    version: 1,
    workflow: "w",
    createdAt: new Date(0).toISOString(),
    hardware: { key: "unit", description: "" },
    overheadSeconds: 0,
    graph: {
      batch: 1,
      components: Object.fromEntries(names.map((name) => [name, { methods: {} }])),
      ...{ channels: {}, edges, calls: [], cycles: [] },
    },
    components: Object.fromEntries(names.map((name) => [name, component])),
    steps: [],
  };
}
