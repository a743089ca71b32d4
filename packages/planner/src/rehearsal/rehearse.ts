/**
 * A profile of hardware that nobody has yet: the flow of a workflow as it was traced somewhere small, and in place of the times of
 * components that run a model what they would cost by the model's configuration and the devices' published figures. Pure.
 */
import {
  type ComponentProfile,
  type DeviceSpec,
  type FlowGraph,
  type ModelWork,
  type Profile,
  TreadleError,
} from "@treadle/contracts";
import { divisorsOf } from "../plan/model.ts";
import { fitTime } from "../profile/time-fit.ts";
import { type Calibration, type Corrections, correctionsOf } from "./calibration.ts";
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
  /** measured on such devices with such a model: what is estimated is corrected by it */
  readonly calibration?: Calibration | undefined;
  readonly createdAt: string;
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
  /** by kind of work; empty where nothing of it was measured */
  readonly corrections: Corrections;
};

export type Rehearsal = {
  readonly profile: Profile;
  readonly parts: readonly RehearsedPart[];
  /** components whose times are those that were measured where the flow was traced */
  readonly others: readonly string[];
  /** absent where nothing corrects the estimates */
  readonly calibratedBy?: CalibratedBy | undefined;
};

export type CalibratedBy = {
  readonly hardware: string;
  /** whole ones that were measured */
  readonly steps: number;
  readonly createdAt: string;
  /** components that it has measured, and cannot correct, with the reason */
  readonly refused: Readonly<Record<string, string>>;
};

/** Parts of the batch that are estimated; what lies between them, the fit says. */
const mostParts = 8;
/** Numbers of ranks that are estimated are so far apart, and at least one. */
const ranksApart = 1 / 8;
/** Devices up to which the memory of what is sharded is told, so that a refusal can say how many would do. */
const mostDevices = 65_536;
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
  const calibration = setting.calibration && checkMeasured(setting.calibration, profile);
  const refused: Record<string, string> = {};
  const hardware: Hardware = { figures: figuresOf(device), shape, lengths };
  const models = setting.components.map((component) => {
    const before = profile.components[component.name];
    if (before === undefined)
      throw new TreadleError("problem.invalid", `the profile does not know component '${component.name}'`);
    const estimated = estimate(hardware, component, setting);
    const found = calibration ? correctionsOf(component, calibration, setting) : { corrections: {} };
    if ("refused" in found) refused[component.name] = refusedBy(found.refused, component, calibration);
    const corrections = "refused" in found ? {} : found.corrections;
    const own = profileOf(before, estimated, setting, corrections);
    return { name: component.name, own, part: partOf(component, own, estimated, setting, corrections) };
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
    ...(calibration && { calibratedBy: describeCalibration(calibration, refused) }),
  };
}

/** Of a plan on what was estimated: what is refused for its memory says what that is made of. */
export function withArithmetic<T>({ parts }: Pick<Rehearsal, "parts">, plan: () => T): T {
  try {
    return plan();
  } catch (error) {
    if (!(error instanceof TreadleError) || error.code !== "placement.impossible") throw error;
    const part = parts.find(({ component }) => component === error.details["component"]);
    if (!part || !("neededBytes" in error.details)) throw error;
    const [what, remedy] = error.message.split(/; (?=[^;]*$)/);
    throw new TreadleError(error.code, `${what} (${part.arithmetic.join("; ")}); ${remedy}`, {
      details: error.details,
      cause: error,
    });
  }
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

/** What somebody asks for is refused; what was merely found is left out. */
function refusedBy(why: string, { name }: ModelComponent, calibration: Calibration | undefined): string {
  if (calibration?.isAsked) throw new TreadleError("problem.invalid", `'${name}' cannot be corrected: ${why}`);
  return why;
}

function describeCalibration(
  { profile: { hardware, createdAt, steps } }: Calibration,
  refused: CalibratedBy["refused"],
): CalibratedBy {
  const numSteps = steps.reduce((sum, { samples }) => sum + samples, 0);
  return { hardware: hardware.description, steps: numSteps, createdAt, refused };
}

function checkMeasured(calibration: Calibration, { workflow }: Profile): Calibration {
  const { profile: measured } = calibration;
  const refuse = (what: string): never => {
    throw new TreadleError(
      "problem.invalid",
      `estimates cannot be corrected by ${what}; give a profile that 'treadle profile ${workflow}' has made on such devices`,
    );
  };
  if (measured.workflow !== workflow) refuse(`a profile of '${measured.workflow}'`);
  if (isRehearsed(measured)) refuse("a profile that is an estimate itself");
  return calibration;
}

function profileOf(
  { key, gang }: ComponentProfile,
  estimated: Estimate,
  { devices, batch }: RehearsedStep,
  corrections: Corrections,
): ComponentProfile {
  const { devicesPerRank, isSharded, lengthSpread } = estimated;
  const { factor = 1 } = corrections.batches ?? {};
  const onceSeconds = (corrections.once?.factor ?? 1) * estimated.onceSeconds;
  const swapSeconds = (corrections.swaps?.factor ?? 1) * estimated.swapSeconds;
  const serialSeconds = (corrections.weights?.factor ?? 1) * estimated.serialSeconds;
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
  corrections: Corrections,
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
    corrections,
  };
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
