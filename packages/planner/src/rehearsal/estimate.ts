/** What one component costs with a model on devices, whatever their number and its items, with the arithmetic behind it. Pure. */
import { type ModelWork, TreadleError } from "@treadle/contracts";
import { formatBytes } from "../placement-ranks.ts";
import { longestSpread } from "../profile/longest-item.ts";
import {
  cacheBytes,
  generationBytes,
  generationSeconds,
  type Hardware,
  holdsLongest,
  optimiserSeconds,
  passTokensOf,
  placesOf,
  scoringBytes,
  scoringSeconds,
  shardBytes,
  swapSeconds,
  trainedBytes,
  trainingBytes,
  trainingSeconds,
  weightBytes,
  weightsSeconds,
} from "./costs.ts";
import { devicesPerNode } from "./device-figures.ts";
import { longestSequence, sequenceTokens } from "./lengths.ts";
import type { ModelShape } from "./model-shape.ts";
import { describeWay, type WeightWays } from "./weight-ways.ts";

export type ModelComponent = {
  readonly name: string;
  readonly work: ModelWork;
  /** that a rank spans; default: as few as hold the model */
  readonly devicesPerRank?: number | undefined;
  /** passes over the same sequences; default 1 */
  readonly epochs?: number | undefined;
};

/** A step, and the cluster that it is for. */
export type RehearsedStep = {
  readonly devices: number;
  /** items of a step */
  readonly batch: number;
  /** responses to each of them */
  readonly samples: number;
  /** by which new weights reach components */
  readonly ways?: WeightWays | undefined;
};

export type Estimate = {
  readonly devicesPerRank: number;
  /** of `items` at a time over all ranks, in a step of `batch`, without what is done once a step */
  readonly seconds: (devices: number, items: number, batch: number) => number;
  readonly bytesPerDevice: (devices: number) => number;
  /** over all devices, so that with enough of them it fits */
  readonly isSharded: boolean;
  readonly onceSeconds: number;
  readonly serialSeconds: number;
  readonly swapSeconds: number;
  /** standard deviation of the logarithm of what an item takes; absent where items are alike */
  readonly lengthSpread?: number;
  readonly arithmetic: readonly string[];
};

/** Throws `placement.impossible` where no rank holds the model. */
export function estimate(hardware: Hardware, component: ModelComponent, step: RehearsedStep): Estimate {
  if (component.work === "training") return trainingEstimate(hardware, component, step);
  const { devicesPerRank } = component;
  const degrees = devicesPerRank === undefined ? degreesOf(step.devices) : [devicesPerRank];
  return component.work === "generation"
    ? generationEstimate(hardware, component, step, degrees)
    : scoringEstimate(hardware, component, step, degrees);
}

/** Devices of one node that a rank may span. */
const degreesOf = (devices: number): number[] =>
  [1, 2, 4, 8].filter((each) => each <= Math.min(devices, devicesPerNode));

function trainingEstimate(
  hardware: Hardware,
  component: ModelComponent,
  { devices, samples }: RehearsedStep,
): Estimate {
  const { epochs = 1, devicesPerRank = 1 } = component;
  const shard = shardBytes(hardware, devices);
  const kept = Object.entries(trainedBytes).map(([what, bytes]) => `${what} ${bytes}`);
  return {
    devicesPerRank,
    seconds: (count, items) => epochs * trainingSeconds(hardware, count, items * samples),
    bytesPerDevice: (count) => trainingBytes(hardware, count),
    isSharded: true,
    onceSeconds: epochs * optimiserSeconds(hardware, devices),
    serialSeconds: 0,
    swapSeconds: swapSeconds(hardware, shard),
    arithmetic: [
      `${parametersOf(hardware)}, each of ${shardBytes(hardware, 1) / hardware.shape.parameters} bytes (${kept.join(", ")}), over ${plural(devices)}: ${formatBytes(shard)}`,
      `gathered layers, activations and logits of a pass of ${passTokensOf(hardware)} tokens: ${formatBytes(trainingBytes(hardware, devices) - shard)}`,
    ],
  };
}

/** With as many devices a rank as make the whole batch on all devices fastest. */
function generationEstimate(
  hardware: Hardware,
  { name }: ModelComponent,
  { devices, batch, samples, ways }: RehearsedStep,
  degrees: readonly number[],
): Estimate {
  const way = ways?.[name];
  const { shape, lengths, figures } = hardware;
  const holding = degrees.filter((each) => placesOf(hardware, each) >= 1 && holdsLongest(hardware, each));
  if (holding.length === 0) {
    const widest = degrees.at(-1)!;
    const ofLongest = formatBytes(cacheBytes(shape, widest) * longestSequence(lengths));
    throw tooLarge(hardware, name, widest, `and ${ofLongest} of keys and values for the longest sequence`);
  }
  const ranksOf = (count: number, degree: number): number => Math.max(1, Math.floor(count / degree));
  // Its items stream: the next one takes the place of each, so a part of the batch in flight has its part of the step's time.
  const secondsOf = (degree: number, count: number, items: number, ofStep: number): number => {
    const [all, ranks] = [ofStep * samples, ranksOf(count, degree)];
    const own = { count: Math.ceil(all / ranks), places: Math.ceil((items * samples) / ranks), all, samples };
    return (generationSeconds(hardware, degree, own) * items) / ofStep;
  };
  const seconds = holding.map((each) => secondsOf(each, devices, batch, batch));
  const degree = holding[seconds.indexOf(Math.min(...seconds))]!;
  const bytesPerDevice = (count: number): number =>
    generationBytes(hardware, degree, Math.ceil((batch * samples) / ranksOf(count, degree)));
  const cache = bytesPerDevice(devices) - weightBytes(shape) / degree;
  const ofSequence = cacheBytes(shape, degree) * sequenceTokens(lengths);
  return {
    devicesPerRank: degree,
    seconds: (count, items, ofStep) => secondsOf(degree, count, items, ofStep),
    bytesPerDevice,
    isSharded: false,
    onceSeconds: 0,
    serialSeconds: weightsSeconds(hardware, devices, degree, way),
    swapSeconds: swapSeconds(hardware, weightBytes(shape) / degree),
    lengthSpread: longestSpread(samples, lengths.spread),
    arithmetic: [
      weightsOf(hardware, degree),
      `keys and values of ${Math.round((cache * degree) / ofSequence)} sequences at once, each of ${Math.round(sequenceTokens(lengths))} tokens of ${formatBytes(cacheBytes(shape, degree))}, over ${plural(degree)}: ${formatBytes(cache)}; a rank has room for ${Math.floor(placesOf(hardware, degree))}, on devices of ${formatBytes(figures.memoryBytes)}`,
      ...(way ? [describeWay(shape, way)] : []),
    ],
  };
}

/** With as few devices a rank as hold it. */
function scoringEstimate(
  hardware: Hardware,
  { name }: ModelComponent,
  { devices, samples, ways }: RehearsedStep,
  degrees: readonly number[],
): Estimate {
  const way = ways?.[name];
  const { shape, figures } = hardware;
  const degree = degrees.find((each) => scoringBytes(hardware, each) <= figures.memoryBytes) ?? degrees.at(-1)!;
  const bytes = scoringBytes(hardware, degree);
  const pass = `activations and logits of a pass of ${passTokensOf(hardware)} tokens: ${formatBytes(bytes - weightBytes(shape) / degree)}`;
  if (bytes > figures.memoryBytes) throw tooLarge(hardware, name, degree, `and ${pass}`);
  return {
    devicesPerRank: degree,
    seconds: (count, items) => scoringSeconds(hardware, count, degree, items * samples),
    bytesPerDevice: () => bytes,
    isSharded: false,
    onceSeconds: 0,
    serialSeconds: weightsSeconds(hardware, devices, degree, way),
    swapSeconds: swapSeconds(hardware, weightBytes(shape) / degree),
    arithmetic: [weightsOf(hardware, degree), pass, ...(way ? [describeWay(shape, way)] : [])],
  };
}

const plural = (devices: number): string => (devices === 1 ? "1 device" : `${devices} devices`);

const parametersOf = ({ shape }: { readonly shape: ModelShape }): string =>
  `${(shape.parameters / 1e9).toPrecision(3)} G parameters`;

const weightsOf = (hardware: Hardware, degree: number): string =>
  `weights: ${parametersOf(hardware)} of 2 bytes over ${plural(degree)}: ${formatBytes(weightBytes(hardware.shape) / degree)}`;

function tooLarge(hardware: Hardware, component: string, degree: number, besides: string): TreadleError {
  const { figures } = hardware;
  const remedy =
    degree < devicesPerNode ? "give it more devices" : "use larger devices, a smaller model or shorter sequences";
  return new TreadleError(
    "placement.impossible",
    `component '${component}' does not fit on devices of ${formatBytes(figures.memoryBytes)}: it needs ${weightsOf(hardware, degree)}, ${besides}; ${remedy}`,
    { details: { component, devicesPerRank: degree } },
  );
}
