import { type Episode, packByTokens, type TrainBatch } from "@treadle/contracts";
import {
  type Normalisation,
  type PolicyGradientLoss,
  sequenceWeight,
  type TrainSample,
} from "./algorithms/algorithm.ts";
import { checkEpisode, checkFinite, checkTokens, countPolicyTokens, invalid, oldLogprobsOf } from "./episode.ts";

export type PackOptions = {
  /** Most tokens of a sequence: what the model reads. */
  readonly contextLength: number;
  /** Most tokens of a micro-batch, padding not counted; a longer sequence has one of its own. */
  readonly microBatchTokens: number;
  readonly paddingToken: number;
  /** token ids are checked against it; unbounded when absent */
  readonly vocabularySize?: number | undefined;
};

/**
 * A micro-batch for an engine, with what the actor needs around it: a rectangle as wide as its longest sequence. Sequences of like
 * length share one.
 */
export type PackedBatch = {
  readonly batch: TrainBatch;
  /** What this batch adds to the step's divisor: `optimStep` scales the summed gradient by 1 / (sum of divisors). */
  readonly divisor: number;
  /** For each row, the index of its sequence in the input. */
  readonly sampleIndexes: Int32Array;
  /** For each row, the tokens before padding. */
  readonly lengths: Int32Array;
};

type Field = "advantages" | "oldLogprobs" | "refLogprobs" | "returns" | "oldValues";
type Row = {
  readonly tokens: Int32Array;
  readonly mask: ArrayLike<number>;
  readonly temperature?: number;
  readonly tokenWeight: number;
  readonly divisor: number;
} & { readonly [Name in Field]?: ArrayLike<number> | undefined };

/**
 * Samples to rectangles for `forwardBackward`. Weights carry the mask and the normalisation (see `Normalisation`), and
 * are those of the whole step whichever chunk of it is packed; temperatures are those that the episodes were sampled at. `oldLogprobs` are the recomputed ones where an episode has
 * them, else the sampler's. `refLogprobs` are packed when every sample has them.
 *
 * Throws `learning.invalid-batch`, and packs nothing, if a sequence is longer than the context, arrays disagree in length,
 * a token is out of range, a used number is not finite, or the loss needs refLogprobs that are missing.
 */
export function packSamples(
  samples: readonly TrainSample[],
  options: PackOptions & { readonly loss: PolicyGradientLoss; readonly normalisation: Normalisation },
): PackedBatch[] {
  const withReference = samples.every((sample) => sample.episode.refLogprobs !== undefined);
  const withCritic = samples.every((sample) => sample.returns !== undefined && sample.oldValues !== undefined);
  const rows = samples.map((sample): Row => {
    const { episode } = sample;
    checkEpisode(episode, options.vocabularySize);
    checkSample(sample);
    if (options.loss.klCoefficient > 0 && episode.refLogprobs === undefined) {
      throw invalid(
        `episode of prompt '${episode.promptId}' has no refLogprobs and klCoefficient is ` +
          `'${options.loss.klCoefficient}': score episodes with the reference policy first, or set kl.placement to 'none'`,
      );
    }
    return {
      tokens: episode.tokens,
      mask: episode.mask,
      temperature: episode.temperature,
      ...sequenceWeight(options.normalisation, countPolicyTokens(episode), sample.groupTokens),
      advantages: sample.advantages,
      oldLogprobs: oldLogprobsOf(episode),
      refLogprobs: withReference ? episode.refLogprobs : undefined,
      returns: withCritic ? sample.returns : undefined,
      oldValues: withCritic ? sample.oldValues : undefined,
    };
  });
  return packRows(rows, options);
}

/** A sequence to imitate: `mask` is 1 at the tokens to learn. */
export type SupervisedSequence = { readonly tokens: Int32Array; readonly mask: ArrayLike<number> };

/** Rectangles for the `cross-entropy` loss; by default the mean over all learned tokens. */
export function packSupervised(
  sequences: readonly SupervisedSequence[],
  options: PackOptions & { readonly normalisation?: Normalisation | undefined },
): PackedBatch[] {
  const rows = sequences.map(({ tokens, mask }, index): Row => {
    const who = `sequence '${index}'`;
    checkTokens(tokens, who, options.vocabularySize ?? Number.POSITIVE_INFINITY);
    if (mask.length !== tokens.length) {
      throw invalid(
        `${who} has '${mask.length}' mask entries: allowed is one for each of its '${tokens.length}' tokens`,
      );
    }
    let learned = 0;
    for (let token = 0; token < mask.length; token++) {
      const entry = mask[token]!;
      if ((entry !== 0 && entry !== 1) || (token === 0 && entry === 1)) {
        throw invalid(`${who} has mask '${entry}' at token '${token}': allowed is 0 or 1, and 0 at the first token`);
      }
      learned += entry;
    }
    return { tokens, mask, ...sequenceWeight(options.normalisation ?? { type: "token-mean" }, learned) };
  });
  return packRows(rows, options);
}

/** Rectangles for `logprobs`: weight 1 at every token of the policy. `unpackEntries` brings the answers back. */
export function packForScoring(episodes: readonly Episode[], options: PackOptions): PackedBatch[] {
  const rows = episodes.map((episode): Row => {
    checkEpisode(episode, options.vocabularySize);
    return {
      tokens: episode.tokens,
      mask: episode.mask,
      temperature: episode.temperature,
      ...sequenceWeight({ type: "token-mean" }, countPolicyTokens(episode)),
    };
  });
  return packRows(rows, options);
}

/**
 * The inverse of packing for one number an entry: `rectangles[b]` belongs to `packed[b]`; the answer has, for each of
 * `count` sequences in input order, one entry for each of its tokens, 0 where the weight is 0.
 */
export function unpackEntries(
  packed: readonly PackedBatch[],
  rectangles: readonly ArrayLike<number>[],
  count: number,
): Float32Array[] {
  const unpacked: (Float32Array | undefined)[] = new Array(count).fill(undefined);
  packed.forEach(({ batch, sampleIndexes, lengths }, index) => {
    const rectangle = rectangles[index];
    if (rectangle?.length !== batch.rows * batch.columns) {
      throw invalid(
        `rectangle '${index}' has '${rectangle?.length}' entries: allowed is ${batch.rows} × ${batch.columns}`,
      );
    }
    sampleIndexes.forEach((sample, row) => {
      const start = row * batch.columns;
      const entries = new Float32Array(lengths[row]!);
      for (let token = 0; token < entries.length; token++)
        if (batch.weights[start + token] !== 0) entries[token] = rectangle[start + token]!;
      unpacked[sample] = entries;
    });
  });
  return unpacked.map((entries, sample) => {
    if (entries === undefined) throw invalid(`sequence '${sample}' of '${count}' is in no batch: pass all batches`);
    return entries;
  });
}

/** For a rank that has fewer micro-batches than another: engines whose ranks meet in each of them get equally many. */
export const emptyBatch: TrainBatch = {
  rows: 0,
  columns: 0,
  tokens: new Int32Array(0),
  temperatures: new Float32Array(0),
  weights: new Float32Array(0),
  advantages: new Float32Array(0),
  oldLogprobs: new Float32Array(0),
  refLogprobs: new Float32Array(0),
  returns: new Float32Array(0),
  oldValues: new Float32Array(0),
};

function packRows(rows: readonly Row[], options: PackOptions): PackedBatch[] {
  checkOptions(options);
  const lengths = rows.map(({ tokens }) => tokens.length);
  const tooLong = lengths.findIndex((length) => length > options.contextLength);
  if (tooLong >= 0) {
    throw invalid(
      `sequence '${tooLong}' has '${lengths[tooLong]}' tokens: allowed is at most ${options.contextLength}; ` +
        "raise contextLength, or lower the sampling's maxTokens",
    );
  }
  return packByTokens(lengths, options.microBatchTokens).map((indexes) => rectangle(rows, indexes, options));
}

function rectangle(rows: readonly Row[], indexes: readonly number[], options: PackOptions): PackedBatch {
  const columns = Math.max(...indexes.map((index) => rows[index]!.tokens.length));
  const tokens = new Int32Array(indexes.length * columns).fill(options.paddingToken);
  const weights = new Float32Array(indexes.length * columns);
  const temperatures = new Float32Array(indexes.length).fill(1);
  const sampleIndexes = Int32Array.from(indexes);
  const lengths = new Int32Array(indexes.length);
  let divisor = 0;
  indexes.forEach((index, at) => {
    const row = rows[index]!;
    tokens.set(row.tokens, at * columns);
    for (let token = 0; token < row.tokens.length; token++) {
      if (row.mask[token] !== 0) weights[at * columns + token] = row.tokenWeight;
    }
    temperatures[at] = row.temperature ?? 1;
    lengths[at] = row.tokens.length;
    divisor += row.divisor;
  });
  // Values at unweighted entries are zeroed: an engine that multiplies by the weight must not meet a NaN there.
  const fill = (name: Field) => {
    if (rows[indexes[0]!]![name] === undefined) return undefined;
    const filled = new Float32Array(indexes.length * columns);
    indexes.forEach((index, at) => {
      const values = rows[index]![name]!;
      for (let token = 0; token < values.length; token++) {
        const entry = at * columns + token;
        if (weights[entry] !== 0) filled[entry] = values[token]!;
      }
    });
    return filled;
  };
  const batch: TrainBatch = {
    rows: indexes.length,
    columns,
    tokens,
    temperatures,
    weights,
    advantages: fill("advantages"),
    oldLogprobs: fill("oldLogprobs"),
    refLogprobs: fill("refLogprobs"),
    returns: fill("returns"),
    oldValues: fill("oldValues"),
  };
  return { batch, divisor, sampleIndexes, lengths };
}

function checkOptions(options: PackOptions): void {
  for (const name of ["contextLength", "microBatchTokens"] as const) {
    if (Number.isInteger(options[name]) && options[name] > 0) continue;
    throw invalid(`${name} is '${options[name]}': allowed is a positive integer`);
  }
  checkTokens(Int32Array.of(options.paddingToken), "padding", options.vocabularySize ?? Number.POSITIVE_INFINITY);
}

function checkSample(sample: TrainSample): void {
  const { episode } = sample;
  for (const name of ["advantages", "returns", "oldValues"] as const) {
    const array = sample[name];
    if (array === undefined) continue;
    if (array.length !== episode.tokens.length) {
      throw invalid(
        `sample of prompt '${episode.promptId}' has '${array.length}' ${name}: ` +
          `allowed is one for each of its '${episode.tokens.length}' tokens`,
      );
    }
    checkFinite(array, episode.mask, name, `sample of prompt '${episode.promptId}'`);
  }
}
