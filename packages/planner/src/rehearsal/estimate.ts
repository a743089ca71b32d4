/** What one component costs with a model on devices, whatever their number and its items, with the arithmetic behind it. Pure. */
import { type ModelWork, TreadleError } from "@treadle/contracts";
import { formatBytes } from "../placement-ranks.ts";
import { longestSpread } from "../profile/longest-item.ts";
import {
  cacheBytes,
  degreeOf,
  generationBytes,
  generationSeconds,
  type Hardware,
  optimiserSeconds,
  placesOf,
  scoringBytes,
  scoringSeconds,
  sequenceTokens,
  shardBytes,
  swapSeconds,
  tokensOfPass,
  trainedBytes,
  trainingBytes,
  trainingSeconds,
  weightBytes,
  weightsSeconds,
} from "./costs.ts";
import { devicesPerNode } from "./device-figures.ts";
import type { ModelShape } from "./model-shape.ts";

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
};

export type Estimate = {
  readonly devicesPerRank: number;
  /** of `items` at a time over all ranks, in a step of `batch`, without what is done once a step */
  readonly seconds: (devices: number, items: number, batch: number) => number;
  readonly bytesPerDevice: (devices: number) => number;
  readonly onceSeconds: number;
  readonly serialSeconds: number;
  readonly swapSeconds: number;
  /** standard deviation of the logarithm of what an item takes; absent where items are alike */
  readonly lengthSpread?: number;
  readonly arithmetic: readonly string[];
};

/** Sequences that a rank of a rollout is to have room for. */
const fewestPlaces = 16;

/** Throws `placement.impossible` where no rank holds the model. */
export function estimate(hardware: Hardware, component: ModelComponent, step: RehearsedStep): Estimate {
  if (component.work === "training") return trainingEstimate(hardware, component, step);
  const places = component.work === "generation" ? fewestPlaces : 1;
  const degree = component.devicesPerRank ?? degreeOf(hardware, places);
  return component.work === "generation"
    ? generationEstimate(hardware, component, step, degree)
    : scoringEstimate(hardware, component, step, degree);
}

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
    onceSeconds: epochs * optimiserSeconds(hardware, devices),
    serialSeconds: 0,
    swapSeconds: swapSeconds(hardware, shard),
    arithmetic: [
      `${parametersOf(hardware)}, each of ${shardBytes(hardware, 1) / hardware.shape.parameters} bytes (${kept.join(", ")}), over ${plural(devices)}: ${formatBytes(shard)}`,
      `gathered layers, activations and logits of a pass of ${tokensOfPass} tokens: ${formatBytes(trainingBytes(hardware, devices) - shard)}`,
    ],
  };
}

function generationEstimate(
  hardware: Hardware,
  { name }: ModelComponent,
  { devices, batch, samples }: RehearsedStep,
  degree: number,
): Estimate {
  const { shape, lengths, figures } = hardware;
  const places = placesOf(hardware, degree);
  const ofSequence = cacheBytes(shape) * sequenceTokens(lengths);
  if (places < 1)
    throw tooLarge(hardware, name, degree, `and ${formatBytes(ofSequence)} of keys and values for a sequence`);
  const ranksOf = (count: number): number => Math.max(1, Math.floor(count / degree));
  const bytesPerDevice = (count: number): number =>
    generationBytes(hardware, degree, Math.ceil((batch * samples) / ranksOf(count)));
  const cache = bytesPerDevice(devices) - weightBytes(shape) / degree;
  return {
    devicesPerRank: degree,
    // Its items stream: the next one takes the place of each, so a part of the batch in flight has its part of the step's time.
    seconds: (count, items, ofStep) => {
      const own = Math.ceil((ofStep * samples) / ranksOf(count));
      const atOnce = Math.ceil((items * samples) / ranksOf(count));
      const all = ofStep * samples;
      return (generationSeconds(hardware, degree, { count: own, places: atOnce, all, samples }) * items) / ofStep;
    },
    bytesPerDevice,
    onceSeconds: 0,
    serialSeconds: weightsSeconds(hardware, devices, degree),
    swapSeconds: swapSeconds(hardware, weightBytes(shape) / degree),
    lengthSpread: longestSpread(samples, lengths.spread),
    arithmetic: [
      weightsOf(hardware, degree),
      `keys and values of ${Math.round((cache * degree) / ofSequence)} sequences at once, each of ${Math.round(sequenceTokens(lengths))} tokens of ${formatBytes(cacheBytes(shape))}, over ${plural(degree)}: ${formatBytes(cache)}; a rank has room for ${Math.floor(places)}, on devices of ${formatBytes(figures.memoryBytes)}`,
    ],
  };
}

function scoringEstimate(
  hardware: Hardware,
  { name }: ModelComponent,
  { devices, samples }: RehearsedStep,
  degree: number,
): Estimate {
  const { shape, figures } = hardware;
  const bytes = scoringBytes(hardware, degree);
  const pass = `${formatBytes(bytes - weightBytes(shape) / degree)} of activations and logits for a pass of ${tokensOfPass} tokens`;
  if (bytes > figures.memoryBytes) throw tooLarge(hardware, name, degree, `and ${pass}`);
  return {
    devicesPerRank: degree,
    seconds: (count, items) => scoringSeconds(hardware, count, degree, items * samples),
    bytesPerDevice: () => bytes,
    onceSeconds: 0,
    serialSeconds: weightsSeconds(hardware, devices, degree),
    swapSeconds: swapSeconds(hardware, weightBytes(shape) / degree),
    arithmetic: [weightsOf(hardware, degree), pass],
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
    degree < devicesPerNode
      ? "let its ranks span more devices"
      : "use larger devices, a smaller model or shorter sequences";
  return new TreadleError(
    "placement.impossible",
    `component '${component}' does not fit on devices of ${formatBytes(figures.memoryBytes)}: it needs ${weightsOf(hardware, degree)}, ${besides}; ${remedy}`,
    { details: { component, devicesPerRank: degree } },
  );
}
