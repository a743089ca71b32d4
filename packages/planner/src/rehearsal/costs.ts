/**
 * What a model's work costs on devices, by their figures: the roofline model (Williams et al., CACM 2009). Each part takes as
 * long as its arithmetic or its memory does, whichever is longer. Pure.
 */
import { medianLongest, normalQuantile } from "../profile/longest-item.ts";
import { type DeviceFigures, devicesPerNode, efficiencies, networkRate } from "./device-figures.ts";
import { activeParameters, type ModelShape, touchedParameters } from "./model-shape.ts";

/** How long sequences are. Lengths of responses are lognormal, as those of reasoning models nearly are. */
export type Lengths = {
  readonly promptTokens: number;
  /** the median */
  readonly responseTokens: number;
  /** standard deviation of the logarithm */
  readonly spread: number;
  /** none is longer */
  readonly maxResponseTokens: number;
};

export type Hardware = { readonly figures: DeviceFigures; readonly shape: ModelShape; readonly lengths: Lengths };

const bytesOfHalf = 2;
/** Of memory, what engines leave to drivers, contexts and buffers. */
const usableMemory = 0.9;
/** Tokens of one pass on one device: more bring no speed, and need memory for activations. */
export const tokensOfPass = 8192;
/** Of a parameter that is trained: in bfloat16, of which passes are made, and in float32; its gradient; Adam's two moments. */
export const trainedBytes = { weights: 2, master: 4, gradient: 4, moments: 8 } as const;
const bytesOfTrained = Object.values(trainedBytes).reduce((sum, each) => sum + each, 0);
/** Numbers of a layer's activations for each of the model's width, while the layer is computed: Korthikanti et al. 2022, §4.1. */
const activationsOfLayer = 17;
/** An all-reduce of little among devices of a node. */
const reduceSeconds = 10e-6;

export const weightBytes = ({ parameters }: ModelShape): number => parameters * bytesOfHalf;

/** Bytes of keys and values of a token. */
export const cacheBytes = ({ cachedNumbers }: ModelShape): number => cachedNumbers * bytesOfHalf;

/** Tokens of a response on average. */
export function meanResponse({ responseTokens, spread, maxResponseTokens }: Lengths): number {
  const strips = 200;
  let sum = 0;
  for (let i = 0; i < strips; i++)
    sum += Math.min(maxResponseTokens, responseTokens * Math.exp(spread * normalQuantile((i + 0.5) / strips)));
  return sum / strips;
}

/** Of a prompt and its response, on average. */
export const sequenceTokens = (lengths: Lengths): number => lengths.promptTokens + meanResponse(lengths);

/** Of a sequence, half of which has been read on average while it is read. */
const meanContext = (lengths: Lengths): number => lengths.promptTokens + meanResponse(lengths) / 2;

/** Of one token in a forward pass that sees `context` tokens. */
const forwardFlops = (shape: ModelShape, context: number): number =>
  2 * activeParameters(shape) + 4 * shape.layers * shape.attentionWidth * context;

/** Sequences whose cache fits beside the weights on a rank; below 1, not even one. */
export function placesOf({ figures, shape, lengths }: Hardware, degree: number): number {
  const room = usableMemory * figures.memoryBytes * degree - weightBytes(shape);
  return room / (cacheBytes(shape) * sequenceTokens(lengths));
}

/** One token of each of `count` sequences. */
function tokenSeconds({ figures, shape }: Hardware, degree: number, count: number, context: number): number {
  const { flops, memoryRate, linkRate } = figures;
  const bytes = touchedParameters(shape, count) * bytesOfHalf + count * context * cacheBytes(shape);
  const compute = (count * forwardFlops(shape, context)) / (degree * flops * efficiencies.passes);
  const memory = bytes / (degree * memoryRate * efficiencies.decoding);
  return Math.max(compute, memory) + reductions(shape, degree, count, linkRate);
}

/** Two all-reduces a layer, of every token's activations. */
function reductions({ layers, width }: ModelShape, degree: number, tokens: number, linkRate: number): number {
  if (degree === 1) return 0;
  const bytes = (2 * (degree - 1) * tokens * width * bytesOfHalf) / degree;
  return 2 * layers * (reduceSeconds + bytes / (linkRate * efficiencies.links));
}

export type Generation = {
  /** sequences of this rank */
  readonly count: number;
  /** that it computes at once, at most */
  readonly places: number;
  /** of all ranks: the longest of them is on the one that is counted */
  readonly all: number;
  /** responses to one prompt, which is read once for all of them */
  readonly samples: number;
};

/** A rank's whole time, with continuous batching: a place that becomes free is taken at the next token. */
export function generationSeconds(hardware: Hardware, degree: number, asked: Generation): number {
  const { figures, shape, lengths } = hardware;
  const { promptTokens, responseTokens, spread, maxResponseTokens } = lengths;
  const { count, all, samples } = asked;
  const places = Math.max(1, Math.min(count, Math.floor(Math.min(asked.places, placesOf(hardware, degree)))));
  const readTokens = Math.ceil(count / samples) * promptTokens;
  const read =
    (readTokens * forwardFlops(shape, promptTokens / 2)) / (degree * figures.flops * efficiencies.passes) +
    reductions(shape, degree, readTokens, figures.linkRate);
  const waiting = count - places;
  const full =
    ((waiting * meanResponse(lengths)) / places) * tokenSeconds(hardware, degree, places, meanContext(lengths));
  // From here on nobody waits: each that ends leaves fewer. Lengths are quantiles, and the last is the longest of all ranks'.
  const bounded = (length: number): number => Math.min(maxResponseTokens, length);
  let [drained, reached] = [0, 0];
  for (let ended = 0; ended < places; ended++) {
    const isLast = ended === places - 1;
    const normal = normalQuantile((ended + 0.5) / places);
    const length = bounded(responseTokens * (isLast ? medianLongest(all, spread) : Math.exp(spread * normal)));
    if (length <= reached) continue;
    const context = promptTokens + (reached + length) / 2;
    drained += (length - reached) * tokenSeconds(hardware, degree, places - ended, context);
    reached = length;
  }
  return read + full + drained;
}

/** Of every device of the ranks together, with keys and values of those that it computes at once. */
export function generationBytes(hardware: Hardware, degree: number, sequences: number): number {
  const { shape, lengths } = hardware;
  const held = Math.min(sequences, Math.max(1, Math.floor(placesOf(hardware, degree))));
  return (weightBytes(shape) + held * cacheBytes(shape) * sequenceTokens(lengths)) / degree;
}

/** One pass forward over whole sequences, on ranks of `degree` devices. */
export function scoringSeconds(
  { figures, shape, lengths }: Hardware,
  devices: number,
  degree: number,
  sequences: number,
) {
  const tokens = sequences * sequenceTokens(lengths);
  const flops = tokens * forwardFlops(shape, sequenceTokens(lengths) / 2);
  const ofRank = (tokens * degree) / devices;
  return flops / (devices * figures.flops * efficiencies.passes) + reductions(shape, degree, ofRank, figures.linkRate);
}

/** Logits of a pass are in float32. */
const logitBytes = ({ vocabSize }: ModelShape): number => tokensOfPass * vocabSize * 4;

export function scoringBytes({ shape }: Hardware, degree: number): number {
  const activations = tokensOfPass * shape.width * activationsOfLayer * bytesOfHalf;
  return (weightBytes(shape) + activations + logitBytes(shape)) / degree;
}

/**
 * Forward, again where activations are made anew, and backward, on shards of parameters that every pass gathers (FSDP). What is
 * sent is hidden behind what is computed, unless it takes longer.
 */
export function trainingSeconds({ figures, shape, lengths }: Hardware, devices: number, sequences: number): number {
  const tokens = sequences * sequenceTokens(lengths);
  const compute =
    (4 * tokens * forwardFlops(shape, sequenceTokens(lengths) / 2)) / (devices * figures.flops * efficiencies.training);
  const passes = Math.max(1, Math.ceil(tokens / devices / tokensOfPass));
  const sent = 3 * weightBytes(shape) * (1 - 1 / devices);
  const rate = devices > devicesPerNode ? networkRate : figures.linkRate;
  return Math.max(compute, (passes * sent) / (rate * efficiencies.links));
}

/** What a device keeps of the parameters that it trains. */
export const shardBytes = ({ shape }: Pick<Hardware, "shape">, devices: number): number =>
  (bytesOfTrained * shape.parameters) / devices;

/** An optimiser's step reads and writes all that is kept of a parameter. */
export function optimiserSeconds({ figures, shape }: Hardware, devices: number): number {
  return (2 * shardBytes({ shape }, devices)) / (figures.memoryRate * efficiencies.decoding);
}

/** Shards, one gathered layer and the next, and what a pass keeps: each layer's input, and one layer's activations. */
export function trainingBytes({ shape }: Hardware, devices: number): number {
  const gathered = devices === 1 ? 0 : (2 * weightBytes(shape)) / shape.layers;
  const inputs = tokensOfPass * shape.width * bytesOfHalf * shape.layers;
  const layer = tokensOfPass * shape.width * activationsOfLayer * bytesOfHalf;
  return shardBytes({ shape }, devices) + gathered + inputs + layer + 2 * logitBytes(shape);
}

/** From a trainer's shards to every device of an engine. */
export function weightsSeconds({ figures, shape }: Hardware, devices: number, degree: number): number {
  const rate = devices > devicesPerNode ? networkRate : figures.linkRate;
  return weightBytes(shape) / degree / (rate * efficiencies.links);
}

/** Between a device and the host's memory. */
export const swapSeconds = ({ figures }: Hardware, bytesPerDevice: number): number =>
  bytesPerDevice / (figures.hostRate * efficiencies.links);

/** The fewest devices of a node, a power of two, on which weights leave room for what `needed` sequences keep. */
export function degreeOf(hardware: Hardware, needed: number): number {
  for (let degree = 1; degree < devicesPerNode; degree *= 2) if (placesOf(hardware, degree) >= needed) return degree;
  return devicesPerNode;
}
