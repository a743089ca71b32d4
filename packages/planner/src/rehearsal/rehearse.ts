/**
 * A profile of hardware that nobody has yet: the flow of a workflow as it was traced somewhere small, and in place of the times of
 * components that run a model what they would cost by the model's configuration and the devices' published figures. Pure.
 */
import {
  type ComponentProfile,
  type DeviceSpec,
  type FlowGraph,
  type ModelWork,
  mean,
  type Profile,
  TreadleError,
} from "@treadle/contracts";
import { divisorsOf } from "../plan/model.ts";
import { fitTime } from "../profile/time-fit.ts";
import type { Hardware } from "./costs.ts";
import { devicesPerNode, figuresOf } from "./device-figures.ts";
import { type Estimate, estimate, type ModelComponent, type RehearsedStep } from "./estimate.ts";
import type { Lengths } from "./lengths.ts";
import type { ModelShape } from "./model-shape.ts";

export type RehearsalSetting = RehearsedStep & {
  /** a name that `figuresOf` knows */
  readonly device: string;
  readonly shape: ModelShape;
  readonly lengths: Lengths;
  readonly components: readonly ModelComponent[];
  /** measured on such devices with such a model and such lengths: what is estimated is corrected by it */
  readonly measured?: Profile | undefined;
  readonly createdAt: string;
};

/** How far an estimate is from what was measured. */
export type Correction = {
  /** measured over estimated, the geometric mean */
  readonly factor: number;
  /** mean of |estimated - measured| / measured, as it was and after the correction */
  readonly errorBefore: number;
  readonly errorAfter: number;
};

export type RehearsedPart = {
  readonly component: string;
  readonly work: ModelWork;
  readonly devicesPerRank: number;
  /** of a whole batch, alone on all devices */
  readonly seconds: number;
  /** then, of each device */
  readonly bytesPerDevice: number;
  /** what that is made of */
  readonly arithmetic: readonly string[];
  /** absent where nothing of it was measured */
  readonly correction?: Correction | undefined;
};

export type Rehearsal = {
  readonly profile: Profile;
  readonly parts: readonly RehearsedPart[];
  /** components whose times are those that were measured where the flow was traced */
  readonly others: readonly string[];
};

/** Parts of the batch that are estimated; what lies between them, the fit says. */
const mostParts = 8;
/** Numbers of ranks that are estimated are so far apart, and at least one. */
const ranksApart = 1 / 8;
/** Devices up to which the memory of what is sharded is told, so that a refusal can say how many would do. */
const mostDevices = 65_536;
/** An estimate that is further off is of another model, other devices or other lengths. */
const mostFactor = 20;
const rehearsedKey = "rehearsed-";

/** Whether a profile says what was estimated, and not what was measured. */
export const isRehearsed = ({ hardware }: Profile): boolean => hardware.key.startsWith(rehearsedKey);

/**
 * Throws `placement.impossible` for a model that no rank holds, and `problem.invalid` for numbers that make no sense and for
 * measurements that are of something else.
 */
export function rehearse(profile: Profile, setting: RehearsalSetting): Rehearsal {
  checkSetting(setting);
  const { device, devices, shape, lengths, batch, createdAt } = setting;
  const measured = setting.measured && checkMeasured(setting.measured, profile);
  const hardware: Hardware = { figures: figuresOf(device), shape, lengths };
  const models = setting.components.map((component) => {
    const before = profile.components[component.name];
    if (before === undefined)
      throw new TreadleError("problem.invalid", `the profile does not know component '${component.name}'`);
    const estimated = estimate(hardware, component, setting);
    const correction = measured && correctionOf(estimated, component.name, measured);
    const own = profileOf(before, estimated, setting, correction?.factor ?? 1);
    return { name: component.name, own, part: partOf(component, own, estimated, setting, correction) };
  });
  const estimates = Object.fromEntries(models.map(({ name, own }) => [name, own]));
  return {
    profile: {
      ...profile,
      createdAt,
      hardware: { key: `${rehearsedKey}${device}`, description: `${devices} × ${device}, by published figures` },
      graph: withBatch(profile.graph, batch),
      components: { ...profile.components, ...estimates },
      steps: [],
    },
    parts: models.map(({ part }) => part),
    others: Object.keys(profile.components).filter((name) => !(name in estimates)),
  };
}

/** Devices of nodes as most are built. */
export function rehearsedDevices(device: string, count: number): DeviceSpec[] {
  const { memoryBytes } = figuresOf(device);
  return Array.from({ length: count }, (_, index) => {
    const node = `node-${Math.floor(index / devicesPerNode)}`;
    return { id: `${node}/${device}:${index % devicesPerNode}`, index, node, kind: device, memoryBytes };
  });
}

function checkSetting({ devices, batch, samples, lengths }: RehearsalSetting): void {
  const { promptTokens, responseTokens, maxResponseTokens, spread } = lengths;
  for (const [what, value] of Object.entries({
    devices,
    batch,
    samples,
    promptTokens,
    responseTokens,
    maxResponseTokens,
  }))
    if (!Number.isInteger(value) || value < 1)
      throw new TreadleError("problem.invalid", `${what} '${value}' is not allowed: a positive integer is`);
  if (!(spread >= 0 && spread <= 3))
    throw new TreadleError(
      "problem.invalid",
      `a spread of lengths of '${spread}' is not allowed: a number from 0 to 3 is`,
    );
  if (responseTokens > maxResponseTokens)
    throw new TreadleError(
      "problem.invalid",
      `responses of '${responseTokens}' tokens in the median, which end at '${maxResponseTokens}', are not allowed: half of them would be longer than they can be; let them end later, or be shorter`,
    );
}

function checkMeasured(measured: Profile, { workflow }: Profile): Profile {
  const refuse = (what: string): never => {
    throw new TreadleError(
      "problem.invalid",
      `estimates cannot be corrected by ${what}; give a profile that 'treadle profile ${workflow}' has made on such devices`,
    );
  };
  if (measured.workflow !== workflow) refuse(`a profile of '${measured.workflow}'`);
  if (isRehearsed(measured)) refuse("a profile that is an estimate itself");
  return measured;
}

function profileOf(
  { key, gang }: ComponentProfile,
  estimated: Estimate,
  { devices, batch }: RehearsedStep,
  factor: number,
): ComponentProfile {
  const { devicesPerRank, isSharded, lengthSpread, serialSeconds, swapSeconds } = estimated;
  const onceSeconds = factor * estimated.onceSeconds;
  const counts = deviceCounts(devicesPerRank, devices, ranksApart);
  const samples = counts.flatMap((count) =>
    partsOf(batch).map((items) => {
      const seconds = factor * estimated.seconds(count, items, batch) + (onceSeconds * items) / batch;
      return { devices: count, items, seconds, spread: 0, accepted: 1, rejected: 0, contended: false };
    }),
  );
  const streams = lengthSpread !== undefined;
  return {
    key,
    devicesPerRank,
    minDevices: devicesPerRank,
    maxDevices: counts.at(-1)!,
    ...(gang === undefined ? {} : { gang }),
    samples,
    fit: fitTime(samples, streams ? { lengthSpread, devicesPerRank, batch, streams } : undefined, {
      seconds: onceSeconds,
      batch,
    }),
    memory: (isSharded ? deviceCounts(devicesPerRank, mostDevices, 1) : counts).map((count) => {
      return { devices: count, bytesPerDevice: estimated.bytesPerDevice(count) };
    }),
    onloadSeconds: swapSeconds,
    offloadSeconds: swapSeconds,
    serialSeconds,
    onceSeconds,
    ...(streams ? { lengthSpread, streams } : {}),
  };
}

function partOf(
  { name, work }: ModelComponent,
  { samples, maxDevices }: ComponentProfile,
  { devicesPerRank, bytesPerDevice, arithmetic }: Estimate,
  { batch }: RehearsedStep,
  correction: Correction | undefined,
): RehearsedPart {
  const { seconds } = samples.find((sample) => sample.devices === maxDevices && sample.items === batch)!;
  const bytes = bytesPerDevice(maxDevices);
  return {
    component: name,
    work,
    devicesPerRank,
    seconds,
    bytesPerDevice: bytes,
    arithmetic,
    ...(correction && { correction }),
  };
}

/** By the points that were measured; undefined where nothing was, or nothing took any time. */
function correctionOf(estimated: Estimate, name: string, { components, graph }: Profile): Correction | undefined {
  const points = (components[name]?.samples ?? []).flatMap(({ devices, items, seconds }) => {
    const once = (estimated.onceSeconds * items) / graph.batch;
    const by = estimated.seconds(devices, items, graph.batch) + once;
    return seconds > 0 && by > 0 ? [{ seconds, by }] : [];
  });
  if (points.length === 0) return undefined;
  const factor = Math.exp(mean(points.map(({ seconds, by }) => Math.log(seconds / by))));
  const errorAt = (by: number): number =>
    mean(points.map((point) => Math.abs(by * point.by - point.seconds) / point.seconds));
  if (Math.abs(Math.log(factor)) > Math.log(mostFactor)) {
    throw new TreadleError(
      "problem.invalid",
      `'${name}' was measured to take ${factor.toPrecision(2)} times what is estimated: the profile is of another model, of other devices, or of other lengths`,
    );
  }
  return { factor, errorBefore: errorAt(1), errorAfter: errorAt(factor) };
}

/** Of whole ranks: 1, 2, 3 and so on, further and further apart, and as many as there can be. */
function deviceCounts(devicesPerRank: number, devices: number, apart: number): number[] {
  const most = Math.max(1, Math.floor(devices / devicesPerRank));
  const ranks: number[] = [];
  for (let count = 1; count < most; count += Math.max(1, Math.floor(count * apart))) ranks.push(count);
  return [...ranks, most].map((count) => count * devicesPerRank);
}

/** Some of its divisors, evenly by size, itself among them. */
function partsOf(batch: number): number[] {
  const divisors = divisorsOf(batch);
  const step = Math.max(1, (divisors.length - 1) / (mostParts - 1));
  const chosen = Array.from(
    { length: Math.min(mostParts, divisors.length) },
    (_, i) => divisors[Math.round(i * step)]!,
  );
  return [...new Set([...chosen, batch])].toSorted((a, b) => a - b);
}

/** What a step moves grows as its items do. */
function withBatch(graph: FlowGraph, batch: number): FlowGraph {
  const scale = batch / graph.batch;
  const scaled = <T extends { readonly itemsPerStep: number; readonly bytesPerStep: number }>(each: T): T => ({
    ...each,
    itemsPerStep: each.itemsPerStep * scale,
    bytesPerStep: each.bytesPerStep * scale,
  });
  return {
    ...graph,
    batch,
    channels: Object.fromEntries(Object.entries(graph.channels).map(([name, channel]) => [name, scaled(channel)])),
    edges: graph.edges.map(scaled),
  };
}
