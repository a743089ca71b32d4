import { type LossMetrics, type LossSpec, maxLogRatio, type TrainBatch } from "@treadle/contracts";
import { lossMetricNames } from "../engine.ts";
import type { Pass } from "./passes.ts";
import type { Outputs } from "./transformer-model.ts";

export type LossGradient = {
  readonly metrics: LossMetrics;
  /** with respect to the model's outputs, of the same shapes */
  readonly logprobs: Float32Array;
  readonly values: Float32Array | undefined;
};

type PolicyGradient = Extract<LossSpec, { type: "policy-gradient" }>;

/** A number, and its derivative. */
type Sloped = { readonly value: number; readonly slope: number };

/**
 * The loss of the rows of a pass, a weighted sum, with its metrics and its gradient with respect to what the model
 * says of its tokens, each of which predicts another. In float64.
 *
 * Entries of weight 0 are not looked at, so they contribute exactly nothing, whatever they hold.
 */
export function lossGradient(loss: LossSpec, batch: TrainBatch, pass: Pass, outputs: Outputs): LossGradient {
  const count = pass.tokens.length;
  const vocabSize = outputs.logprobs.length / count;
  const sums = Object.fromEntries(lossMetricNames.map((name) => [name, 0])) as Record<keyof LossMetrics, number>;
  const logprobs = new Float32Array(outputs.logprobs.length);
  const trainsValues = loss.type === "policy-gradient" && loss.value !== undefined;
  const values = trainsValues ? new Float32Array(count) : undefined;
  const entropyCoefficient = loss.type === "policy-gradient" ? loss.entropyCoefficient : 0;
  pass.rows.forEach((row, which) => {
    const entries: Entry[] = [];
    for (let t = 0; t < pass.lengths[which]!; t++) {
      const at = row * batch.columns + t + 1;
      const weight = batch.weights[at]!;
      if (weight === 0) continue;
      const place = pass.starts[which]! + t;
      const chosen = place * vocabSize + batch.tokens[at]!;
      entries.push({ at, place, weight, chosen, logprob: outputs.logprobs[chosen]! });
      sums.weight += weight;
      const start = place * vocabSize;
      const entropy = addEntropy(outputs.logprobs, logprobs, start, vocabSize, weight * entropyCoefficient);
      sums.entropy += weight * entropy;
      sums.loss -= weight * entropyCoefficient * entropy;
    }
    if (loss.type === "cross-entropy") {
      for (const { weight, chosen, logprob } of entries) {
        sums.loss -= weight * logprob;
        logprobs[chosen]! -= weight;
      }
    } else {
      addPolicyGradient(loss, batch, entries, logprobs, sums);
      if (loss.value && values) addValueGradient(loss.value, batch, entries, outputs.values!, values, sums);
    }
  });
  return { metrics: sums, logprobs, values };
}

/** One prediction that counts. */
type Entry = {
  /** its place in the batch's arrays */
  readonly at: number;
  /** which of the model's outputs it is */
  readonly place: number;
  readonly weight: number;
  /** the place of its token's log-probability */
  readonly chosen: number;
  readonly logprob: number;
};

type Sums = Record<keyof LossMetrics, number>;

/** Returns the entropy; adds the gradient of minus `coefficient` times it. */
function addEntropy(
  logprobs: Float32Array,
  gradient: Float32Array,
  start: number,
  vocabSize: number,
  coefficient: number,
): number {
  let entropy = 0;
  for (let i = start; i < start + vocabSize; i++) {
    const logprob = logprobs[i]!;
    const probability = Math.exp(logprob);
    entropy -= probability * logprob;
    if (coefficient !== 0) gradient[i]! += coefficient * probability * (logprob + 1);
  }
  return entropy;
}

function addPolicyGradient(
  loss: PolicyGradient,
  batch: TrainBatch,
  entries: readonly Entry[],
  gradient: Float32Array,
  sums: Sums,
): void {
  const { oldLogprobs, refLogprobs } = batch;
  const logRatio = ({ at, logprob }: Entry) => (oldLogprobs ? logprob - oldLogprobs[at]! : 0);
  const isOfRow = loss.ratio !== "token";
  const sharers = loss.ratio === "sequence" ? entries.length : 1;
  const ofRow = isOfRow
    ? ratioOf(entries.reduce((sum, entry) => sum + logRatio(entry), 0) / sharers)
    : { value: 1, slope: 1 };
  let rowSlope = 0;
  for (const entry of entries) {
    const { at, weight, chosen, logprob } = entry;
    const advantage = batch.advantages![at]!;
    const ratio = isOfRow ? ofRow : ratioOf(logRatio(entry));
    const bounded = Math.min(Math.max(ratio.value, 1 - loss.clipLow), 1 + loss.clipHigh);
    if (loss.surrogate === "cispo") {
      sums.loss -= weight * bounded * advantage * logprob;
      if (bounded !== ratio.value) sums.clipFraction += weight;
      gradient[chosen]! -= weight * bounded * advantage;
    } else {
      const plain = ratio.value * advantage;
      let objective = Math.min(plain, bounded * advantage);
      if (loss.dualClip !== undefined && advantage < 0) objective = Math.max(objective, loss.dualClip * advantage);
      sums.loss -= weight * objective;
      if (objective !== plain) sums.clipFraction += weight;
      else if (isOfRow) rowSlope += (weight * advantage * ratio.slope) / sharers;
      else gradient[chosen]! -= weight * advantage * ratio.slope;
    }
    if (!refLogprobs) continue;
    const kl = klOf(loss.klEstimator ?? "k3", logprob - refLogprobs[at]!);
    sums.kl += weight * kl.value;
    sums.loss += weight * loss.klCoefficient * kl.value;
    gradient[chosen]! += weight * loss.klCoefficient * kl.slope;
  }
  // What a row's ratio says reaches every one of its entries.
  if (rowSlope !== 0) for (const { chosen } of entries) gradient[chosen]! -= rowSlope;
}

/** PPO's value error: the larger of the squared errors of the value and of the old value moved by at most `clip`. */
function addValueGradient(
  { coefficient, clip }: NonNullable<PolicyGradient["value"]>,
  batch: TrainBatch,
  entries: readonly Entry[],
  values: Float32Array,
  gradient: Float32Array,
  sums: Sums,
): void {
  for (const { at, place, weight } of entries) {
    const [value, old, target] = [values[place]!, batch.oldValues![at]!, batch.returns![at]!];
    const plain = value - target;
    const moved = old + within(value - old, clip) - target;
    const isPlain = plain ** 2 >= moved ** 2;
    const error = (isPlain ? plain : moved) ** 2 / 2;
    const slope = isPlain ? plain : Math.abs(value - old) > clip ? 0 : moved;
    sums.valueLoss += weight * error;
    sums.loss += weight * coefficient * error;
    gradient[place] = weight * coefficient * slope;
  }
}

const within = (x: number, bound: number): number => Math.min(Math.max(x, -bound), bound);

/** Both as functions of a log-ratio, which beyond ± `maxLogRatio` nats counts as that, without a slope. */
function ratioOf(logRatio: number): Sloped {
  const value = Math.exp(within(logRatio, maxLogRatio));
  return { value, slope: Math.abs(logRatio) > maxLogRatio ? 0 : value };
}

function klOf(estimator: "k2" | "k3", logRatio: number): Sloped {
  const d = within(logRatio, maxLogRatio);
  const moves = Math.abs(logRatio) > maxLogRatio ? 0 : 1;
  if (estimator === "k2") return { value: d ** 2 / 2, slope: moves * d };
  return { value: Math.expm1(-d) + d, slope: -moves * Math.expm1(-d) };
}
