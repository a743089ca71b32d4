/** From a measured profile and a cluster to a problem that `solvePlan` reads. */
import {
  type ComponentProfile,
  type DeviceSpec,
  type PlacementWishes,
  Profile,
  TreadleError,
} from "@treadle/contracts";
import type { PlacementComponent } from "../placement-input.ts";
import { formatBytes, rankBounds } from "../placement-ranks.ts";
import { mostRanksOf } from "../placement-wishes.ts";
import { residentMemory } from "../plan/component-time.ts";
import { type PlanNode, type PlanProblem, planModes } from "../plan/problem.ts";
import { takenPerItem } from "../profile/whole-items.ts";
import { divisibleBatch } from "./divisible-batch.ts";
import { memoryFormula, timeTable } from "./measured-time.ts";
import { type Pin, type Pool, poolsOf } from "./pools.ts";

/** What to plan for; it may differ from what was measured. */
export type PlanTarget = {
  readonly devices: readonly DeviceSpec[];
  /** items that one step puts */
  readonly batch: number;
  readonly maxStaleness: number;
  /** what the workflow asks of its components; without it only the profile says */
  readonly components?: readonly PlacementComponent[] | undefined;
  /** components whose devices are given */
  readonly pins?: readonly Pin[] | undefined;
  /** devices and ranks are without what these take away already */
  readonly wishes?: PlacementWishes | undefined;
};

export type ProfileProblem = {
  /** its batch may be larger than the step's, whose items are then a little less than one of its own (`divisibleBatch`) */
  readonly problem: PlanProblem;
  /** the devices behind the pools of the problem; the one that is in none of them is the problem's own `devices` */
  readonly pools: readonly Pool[];
  /** of a step's calls that overlap nothing; to be added to the time of a schedule, with `overheadOf` its plan */
  readonly serialSeconds: number;
  /** what the answer rests on that was not measured, a sentence each */
  readonly notes: readonly string[];
};

/** Of the logarithm of lengths: with less, items that begin together end together. */
const leastStreamedSpread = 0.2;

/** Whether items of a whole batch that is begun at once come out one by one: each has its own length, and waits for no other. */
const streamsWhole = ({ streams = false, lengthSpread = 0 }: ComponentProfile): boolean =>
  streams && lengthSpread >= leastStreamedSpread;

/** Relative error of a fit above which the explanation says so. */
const noteworthyError = 0.05;

/**
 * Throws `problem.invalid` for a profile that makes no sense or is of another workflow, and `placement.impossible` where
 * a component cannot run on these devices, with what would help.
 */
export function planProblemOf(input: Profile, target: PlanTarget): ProfileProblem {
  const profile = checkProfile(input, target);
  const names = Object.keys(profile.components);
  const asked = new Map(target.components?.map((component) => [component.name, component]));
  const notes: string[] = [];
  const pools = poolsOf(
    names.map((name) => ({ name, kind: asked.get(name)?.deviceKind ?? profile.components[name]!.deviceKind })),
    target.devices,
    target.pins ?? [],
  );
  // Where everything is pinned there is nothing to split.
  const main = pools.find((pool) => !pool.shared);
  // What a whole batch in flight brings is for a replay to say.
  const isReplayed = target.maxStaleness === 0 && profile.graph.cycles.length === 0;
  const batch = divisibleBatch(target.batch);
  const nodes = names.map((name): PlanNode => {
    const pool = pools.find((p) => p.components.includes(name))!;
    const measured = profile.components[name]!;
    const usable = usableDevices(name, measured, asked.get(name), pool);
    const { minDevices, maxDevices } = usable;
    // Raising a wish for fewer ranks would bring it more of them: that limit is said by itself.
    const maxRanks = target.wishes && mostRanksOf(target.wishes, name);
    const declared = asked.get(name)?.memoryBytesPerDevice;
    const memory =
      declared === undefined ? memoryFormula(measured.memory) : { fixed: declared, sharded: 0, perItem: 0 };
    checkMemory(name, { ...usable, memory }, measured.maxDevices, pool);
    notes.push(...notesOn(name, measured, maxDevices, target.batch));
    return {
      id: name,
      time: timeTable(measured, {
        minDevices,
        maxDevices,
        batch: target.batch,
        searchedBatch: batch,
        measuredBatch: profile.graph.batch,
        takenPerItem: takenPerItem(name, profile.graph) || Number.POSITIVE_INFINITY,
        isWhole: profile.graph.cycles.some((members) => members.includes(name)),
      }),
      stream: isReplayed && streamsWhole(measured),
      memory,
      ...usable,
      ...(maxRanks === undefined ? {} : { maxRanks, maxDevices: undefined }),
      offload: measured.offloadSeconds,
      onload: measured.onloadSeconds,
      tags: tagsOf(measured),
      ...(pool === main ? {} : { pool: pool.name }),
    };
  });
  const problem: PlanProblem = {
    devices: main?.devices.length ?? 1,
    batch,
    granularities: "divisors",
    ...(main === undefined ? {} : { memoryPerDevice: main.memoryBytes }),
    parallelIndependent: true,
    pipeline: names.length <= 5 || (names.length <= 8 && target.devices.length <= 64) ? "kway" : "binary",
    splits: "all",
    cycles: "split",
    cycleMemory: "together",
    residency: "lazy",
    swaps: "round",
    maxStaleness: target.maxStaleness,
    modes: target.wishes?.modes ?? [...planModes],
    reserved: 0,
    together: target.wishes?.together ?? [],
    apart: target.wishes?.apart ?? [],
    useAll: target.wishes?.useAllDevices ?? false,
    pools: Object.fromEntries(
      pools
        .filter((p) => p !== main)
        .map((p) => [p.name, { devices: p.devices.length, memoryPerDevice: p.memoryBytes, shared: p.shared }]),
    ),
    nodes,
    edges: uniqueEdges(profile.graph.edges.map(({ from, to }) => [from, to])),
  };
  const serialSeconds = names.reduce((sum, name) => sum + profile.components[name]!.serialSeconds, 0);
  return { problem, pools, serialSeconds, notes };
}

/** By the shares that they have of its memory, wherever that was measured last. */
function tagsOf({ memory }: ComponentProfile): PlanNode["tags"] {
  const measured = memory.findLast(({ tags, bytesPerDevice }) => tags !== undefined && bytesPerDevice > 0);
  return measured?.tags?.map(({ bytes, releaseSeconds, restoreSeconds }) => {
    const share = Math.min(1, bytes / measured.bytesPerDevice);
    return { share, offload: releaseSeconds, onload: restoreSeconds };
  });
}

const refresh = (workflow: string): string => `measure again with 'treadle profile ${workflow}'`;

function checkProfile(input: Profile, { batch, devices, components }: PlanTarget): Profile {
  const invalid = (message: string, details: Record<string, unknown> = {}): TreadleError =>
    new TreadleError("problem.invalid", message, { details });
  for (const [name, component] of Object.entries((input as Partial<Profile> | undefined)?.components ?? {})) {
    if (Array.isArray(component?.samples) && component.samples.length === 0)
      throw invalid(
        `profile: component '${name}' has no samples; ${refresh(String((input as Profile).workflow ?? "<workflow>"))}`,
      );
  }
  const parsed = Profile.safeParse(input);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(({ path, message }) => {
      let value: unknown = input;
      for (const key of path) value = (value as Record<PropertyKey, unknown> | undefined)?.[key];
      return `${path.map(String).join(".") || "profile"}: '${String(value)}' is not allowed: ${message.charAt(0).toLowerCase()}${message.slice(1)}`;
    });
    throw invalid(
      `the profile cannot be used: ${problems.join("; ")}; ${refresh((input as Profile | undefined)?.workflow ?? "<workflow>")}`,
      { problems },
    );
  }
  const profile = parsed.data;
  const again = refresh(profile.workflow);
  const quote = (names: Iterable<string>): string => [...names].map((name) => `'${name}'`).join(", ");
  if (!Number.isInteger(batch) || batch < 1) throw invalid(`batch '${batch}' is not allowed: a positive integer is`);
  if (devices.length === 0) throw invalid("there is no device to plan for");
  const measured = new Set(Object.keys(profile.components));
  if (measured.size === 0) throw invalid(`profile: no component was measured; ${again}`);
  const traced = new Set(Object.keys(profile.graph.components));
  const untraced = [...measured].filter((name) => !traced.has(name));
  if (untraced.length > 0)
    throw invalid(`profile: ${quote(untraced)} is measured but not in the flow graph of ${quote(traced)}; ${again}`);
  const unmeasured = [...traced].filter((name) => !measured.has(name));
  if (unmeasured.length > 0)
    throw invalid(`profile: ${quote(unmeasured)} is in the flow graph but was not measured; ${again}`);
  const others = (components ?? []).filter(({ name }) => !measured.has(name)).map(({ name }) => name);
  if (others.length > 0)
    throw invalid(`the profile is of ${quote(measured)} and does not know ${quote(others)}; ${again}`, { others });
  const launched = new Set(components?.map(({ name }) => name) ?? measured);
  const gone = [...measured].filter((name) => !launched.has(name));
  if (gone.length > 0)
    throw invalid(`the profile knows ${quote(gone)}, which the workflow does not launch; ${again}`, { gone });
  for (const { from, to } of profile.graph.edges) {
    const stranger = [from, to].find((name) => !measured.has(name));
    if (stranger !== undefined)
      throw invalid(`profile: the flow graph has an edge to '${stranger}', which is no component; ${again}`);
  }
  // Components that no channel connects are planned side by side.
  for (const [channel, { producers, consumers }] of Object.entries(profile.graph.channels)) {
    const pair = producers.flatMap((from) => consumers.filter((to) => to !== from).map((to) => [from, to]))[0];
    if (pair !== undefined && profile.graph.edges.length === 0)
      throw invalid(
        `profile: the flow graph has no edges, but channel '${channel}' leads from '${pair[0]}' to '${pair[1]}'; ${again}`,
      );
  }
  return profile;
}

function uniqueEdges(edges: readonly [string, string][]): [string, string][] {
  const seen = new Map<string, [string, string]>();
  for (const edge of edges) if (edge[0] !== edge[1]) seen.set(edge.join("\n"), edge);
  return [...seen.values()];
}

type Usable = Pick<PlanNode, "unit" | "minRanks" | "minDevices"> & { readonly maxDevices: number };

/** In whole units, within what the profile, the ranks and the pool allow. */
function usableDevices(
  name: string,
  profile: ComponentProfile,
  asked: PlacementComponent | undefined,
  pool: Pool,
): Usable {
  const unit = asked?.devicesPerRank ?? profile.devicesPerRank;
  const onNode = new Map<string, number>();
  for (const { node } of pool.devices) onNode.set(node, (onNode.get(node) ?? 0) + 1);
  const largestNode = Math.max(...onNode.values());
  if (unit > largestNode) {
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' spans ${unit} devices a rank, but ${unit > pool.devices.length ? `there are only ${pool.devices.length} devices for it` : `no node has more than ${largestNode} for it`}; add devices or lower its devicesPerRank`,
      { details: { component: name, devicesPerRank: unit, devices: pool.devices.length, largestNode } },
    );
  }
  const usable = [...onNode.values()].reduce((sum, count) => sum + Math.floor(count / unit) * unit, 0);
  const bounds = asked === undefined ? { min: 1, max: Number.POSITIVE_INFINITY } : rankBounds(asked);
  // Ranks of one device may share it; wider ones need devices of their own.
  const fewest = unit === 1 ? 1 : bounds.min * unit;
  const atLeast = Math.ceil(Math.max(fewest, unit, asked === undefined ? profile.minDevices : 1) / unit) * unit;
  // What was usable where it was measured is no limit on a larger cluster; what the workflow asks for is.
  const most = Math.min(asked === undefined ? profile.maxDevices : bounds.max * unit, usable);
  const atMost = Math.floor(most / unit) * unit;
  if (atLeast > usable) {
    throw new TreadleError(
      "placement.impossible",
      `component '${name}' needs at least ${atLeast} devices, but ${usable} can be given to it; add ${atLeast - usable} devices or lower its ranks.min`,
      { details: { component: name, neededDevices: atLeast, devices: usable } },
    );
  }
  return { unit, minRanks: bounds.min, minDevices: atLeast, maxDevices: Math.max(atLeast, atMost) };
}

/** Even alone, on as many devices as it can use. */
function checkMemory(name: string, node: Usable & Pick<PlanNode, "memory">, mostDevices: number, pool: Pool): void {
  const { memory, unit, maxDevices } = node;
  const needed = residentMemory(node, maxDevices, 0);
  if (needed <= pool.memoryBytes * (1 + 1e-9)) return;
  const room = pool.memoryBytes - memory.fixed;
  const unshared = room > 0 ? Math.ceil(memory.sharded / room / unit) * unit : Number.POSITIVE_INFINITY;
  const counts = Array.from({ length: node.minRanks }, (_, i) => (i + 1) * unit);
  const fitting = counts.find((count) => residentMemory(node, count, 0) <= pool.memoryBytes) ?? unshared;
  const remedy = !Number.isFinite(fitting)
    ? "no number of devices makes it fit; use larger devices or a smaller model"
    : fitting <= mostDevices
      ? `it would fit on ${fitting} devices`
      : `it would fit on ${fitting} devices, more than its ranks can use (${mostDevices}); let it have more ranks, or use larger devices`;
  throw new TreadleError(
    "placement.impossible",
    `component '${name}' needs ${formatBytes(needed)} on each of ${maxDevices} devices, which have ${formatBytes(pool.memoryBytes)}: ${formatBytes(needed - pool.memoryBytes)} too little even when it is alone; ${remedy}`,
    {
      details: {
        component: name,
        neededBytes: needed,
        missingBytes: needed - pool.memoryBytes,
        fitsAtDevices: Number.isFinite(fitting) ? fitting : null,
      },
    },
  );
}

function notesOn(name: string, profile: ComponentProfile, maxDevices: number, batch: number): string[] {
  const notes: string[] = [];
  const devices = profile.samples.map((sample) => sample.devices);
  const items = profile.samples.map((sample) => sample.items);
  const [most, largest] = [Math.max(...devices), Math.max(...items)];
  const beyond = [
    ...(maxDevices > most ? [`on more than ${most} ${most === 1 ? "device" : "devices"}`] : []),
    ...(batch > largest ? [`with more than ${largest} items at a time`] : []),
  ].join(" or ");
  const { fit } = profile;
  if (beyond !== "" && fit === null)
    notes.push(
      `'${name}' was not measured ${beyond}, and there are too few samples to extrapolate: more devices are taken to bring it nothing`,
    );
  else if (beyond !== "" && new Set(devices).size === 1 && maxDevices > most)
    notes.push(
      `'${name}' was measured on ${most} ${most === 1 ? "device" : "devices"} only, so nothing is known of how its work splits over more: it is taken to split evenly`,
    );
  else if (beyond !== "" || (fit !== null && fit.relativeError > noteworthyError))
    notes.push(
      `'${name}' ${beyond === "" ? "between its samples" : beyond} is extrapolated by a fit whose mean error is ${(100 * fit!.relativeError).toFixed(1)} %`,
    );
  if (profile.samples.every((sample) => sample.contended))
    notes.push(
      `'${name}' was only measured while others used the processors, so its seconds are what it would have taken alone`,
    );
  return notes;
}
