/**
 * What a model's work costs on devices, by their figures: the roofline model (Williams et al., CACM 2009). Each part takes as
 * long as its arithmetic or its memory does, whichever is longer. Pure.
 */
import { expectedLongest, normalQuantile } from "../profile/longest-item.ts";
import type { WeightPathName } from "../weights/weight-paths.ts";
import { type DeviceFigures, devicesPerNode, efficiencies, networkRate } from "./device-figures.ts";
import {
  contextOfResponse,
  contextOfSequence,
  type Lengths,
  longestSequence,
  meanResponse,
  sequenceTokens,
} from "./lengths.ts";
import { activeParameters, type ModelShape, touchedParameters } from "./model-shape.ts";
import { secondsByWay } from "./weight-ways.ts";

export type Hardware = { readonly figures: DeviceFigures; readonly shape: ModelShape; readonly lengths: Lengths };

const bytesOfHalf = 2;
/** The part of memory that drivers, contexts and buffers leave to engines. */
const usableMemory = 0.9;
/** Tokens of a pass on one device, unless a sequence is longer: more bring no speed, and need memory for activations. */
const tokensOfPass = 8192;
/** Of a parameter that is trained: in bfloat16, of which passes are made, and in float32; its gradient; Adam's two moments. */
export const trainedBytes = { weights: 2, master: 4, gradient: 4, moments: 8 } as const;
const bytesOfTrained = Object.values(trainedBytes).reduce((sum, each) => sum + each, 0);
/** An optimiser's step reads master, gradient and moments, and writes all but the gradient. */
const steppedBytes = 16 + 14;
/** Forward, once more where activations are made again, and twice that backward. */
const passesOfTraining = 4;
/** Numbers of a layer's activations for each of the model's width, while the layer is computed: Korthikanti et al. 2022, §4.1. */
const activationsOfLayer = 17;
/** An all-reduce of little among devices of a node. */
const reduceSeconds = 10e-6;

export const weightBytes = ({ parameters }: Pick<ModelShape, "parameters">): number => parameters * bytesOfHalf;

/** Bytes of keys and values of a token, over all devices of a rank: with fewer heads than devices, devices have the same ones. */
export const cacheBytes = ({ cachedPerHead, keyHeads }: ModelShape, degree: number): number =>
  cachedPerHead * Math.max(keyHeads, degree) * bytesOfHalf;

/** Of one token in a forward pass that sees `context` tokens. */
const forwardFlops = (shape: ModelShape, context: number): number =>
  2 * activeParameters(shape) + 4 * shape.layers * shape.attentionWidth * context;

const roomOf = ({ figures, shape }: Hardware, degree: number): number =>
  usableMemory * figures.memoryBytes * degree - weightBytes(shape);

/** Sequences whose cache fits beside the weights on a rank. */
export const placesOf = (hardware: Hardware, degree: number): number =>
  roomOf(hardware, degree) / (cacheBytes(hardware.shape, degree) * sequenceTokens(hardware.lengths));

/** Whether a rank has room for the longest sequence. */
export const holdsLongest = (hardware: Hardware, degree: number): boolean =>
  roomOf(hardware, degree) >= cacheBytes(hardware.shape, degree) * longestSequence(hardware.lengths);

/** A pass over `tokens` with so much context, `cached` of which it reads from a cache. */
function passSeconds(hardware: Hardware, degree: number, tokens: number, context: number, cached: number): number {
  const { figures, shape } = hardware;
  const bytes = touchedParameters(shape, tokens) * bytesOfHalf + cached * cacheBytes(shape, degree);
  const compute = (tokens * forwardFlops(shape, context)) / (degree * figures.flops * efficiencies.passes);
  const memory = bytes / (degree * figures.memoryRate * efficiencies.decoding);
  return Math.max(compute, memory) + reductionSeconds(hardware, degree, tokens);
}

/** Two all-reduces a layer, of every token's activations. */
function reductionSeconds({ figures, shape }: Hardware, degree: number, tokens: number): number {
  if (degree === 1) return 0;
  const bytes = (2 * (degree - 1) * tokens * shape.width * bytesOfHalf) / degree;
  return 2 * shape.layers * (reduceSeconds + bytes / (figures.linkRate * efficiencies.links));
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
  const { lengths } = hardware;
  const { promptTokens, responseTokens, spread, maxResponseTokens } = lengths;
  const { count, all, samples } = asked;
  const places = Math.max(1, Math.min(count, Math.floor(Math.min(asked.places, placesOf(hardware, degree)))));
  const tokenSeconds = (running: number, context: number): number =>
    passSeconds(hardware, degree, running, context, running * context);
  const promptsRead = Math.ceil(count / samples) * promptTokens;
  const prefill = passSeconds(hardware, degree, promptsRead, promptTokens / 2, 0);
  const full = (((count - places) * meanResponse(lengths)) / places) * tokenSeconds(places, contextOfResponse(lengths));
  // From here on none waits: each that ends leaves fewer. Lengths are quantiles, and the last is the longest of all ranks'.
  let [drained, reached] = [0, 0];
  for (let ended = 0; ended < places; ended++) {
    const isLast = ended === places - 1;
    const ratio = isLast ? expectedLongest(all, spread) : Math.exp(spread * normalQuantile((ended + 0.5) / places));
    const length = Math.min(maxResponseTokens, responseTokens * ratio);
    if (length <= reached) continue;
    drained += (length - reached) * tokenSeconds(places - ended, promptTokens + (reached + length) / 2);
    reached = length;
  }
  return prefill + full + drained;
}

/** On each device of a rank, with keys and values of those sequences that it computes at once. */
export function generationBytes(hardware: Hardware, degree: number, sequences: number): number {
  const { shape, lengths } = hardware;
  const held = Math.min(sequences, Math.max(1, Math.floor(placesOf(hardware, degree))));
  return (weightBytes(shape) + held * cacheBytes(shape, degree) * sequenceTokens(lengths)) / degree;
}

/** One pass forward over whole sequences, on ranks of `degree` devices. */
export function scoringSeconds(hardware: Hardware, devices: number, degree: number, sequences: number): number {
  const { lengths } = hardware;
  const ofRank = Math.ceil(sequences / Math.max(1, Math.floor(devices / degree)));
  return passSeconds(hardware, degree, ofRank * sequenceTokens(lengths), contextOfSequence(lengths), 0);
}

/** Of a pass: as many tokens as bring speed, or one whole sequence. */
export const passTokensOf = ({ lengths }: Pick<Hardware, "lengths">): number =>
  Math.max(tokensOfPass, longestSequence(lengths));

/** In float32, of a part of a pass: what is made of logits needs them once. */
const logitBytes = ({ vocabSize }: ModelShape): number => tokensOfPass * vocabSize * 4;

const layerBytes = (hardware: Hardware): number =>
  passTokensOf(hardware) * hardware.shape.width * activationsOfLayer * bytesOfHalf;

export const scoringBytes = (hardware: Hardware, degree: number): number =>
  (weightBytes(hardware.shape) + layerBytes(hardware) + logitBytes(hardware.shape)) / degree;

/**
 * On shards of parameters that every pass gathers, forward and backward, and whose gradients it scatters (FSDP). What is sent is
 * hidden behind what is computed, unless it takes longer; between nodes each byte enters a node once, over all its devices' links.
 */
export function trainingSeconds(hardware: Hardware, devices: number, sequences: number): number {
  const { figures, shape, lengths } = hardware;
  const tokens = Math.ceil(sequences / devices) * sequenceTokens(lengths);
  const flops = passesOfTraining * tokens * forwardFlops(shape, contextOfSequence(lengths));
  const compute = flops / (figures.flops * efficiencies.training);
  const numPasses = Math.max(1, Math.ceil(tokens / passTokensOf(hardware)));
  const sent = shape.parameters * (2 * trainedBytes.weights + trainedBytes.gradient) * (1 - 1 / devices);
  return Math.max(compute, (numPasses * sent) / (sharedRate(figures, devices) * efficiencies.links));
}

const sharedRate = ({ linkRate }: DeviceFigures, devices: number): number =>
  devices > devicesPerNode ? Math.min(linkRate, devicesPerNode * networkRate) : linkRate;

/** What a device keeps of the parameters that it trains. */
export const shardBytes = ({ shape }: Pick<Hardware, "shape">, devices: number): number =>
  (bytesOfTrained * shape.parameters) / devices;

export const optimiserSeconds = ({ figures, shape }: Hardware, devices: number): number =>
  (steppedBytes * shape.parameters) / (devices * figures.memoryRate * efficiencies.decoding);

/** Shards, one gathered layer and the next, and what a pass keeps: each layer's input, and one layer's activations. */
export function trainingBytes(hardware: Hardware, devices: number): number {
  const { shape } = hardware;
  const gathered = devices === 1 ? 0 : (2 * weightBytes(shape)) / shape.layers;
  const inputs = passTokensOf(hardware) * shape.width * bytesOfHalf * shape.layers;
  return shardBytes(hardware, devices) + gathered + inputs + layerBytes(hardware) + logitBytes(shape);
}

/** From a trainer's shards to every device of an engine, each of which gets its own part; or whole to each rank, by a known way. */
export const weightsSeconds = (
  { figures, shape }: Hardware,
  devices: number,
  degree: number,
  way?: WeightPathName,
): number =>
  (way && secondsByWay(shape, way)) ??
  weightBytes(shape) / degree / ((devices > devicesPerNode ? networkRate : figures.linkRate) * efficiencies.links);

/** Between a device and the host's memory. */
export const swapSeconds = ({ figures }: Hardware, bytesPerDevice: number): number =>
  bytesPerDevice / (figures.hostRate * efficiencies.links);
