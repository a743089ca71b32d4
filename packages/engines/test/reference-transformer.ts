import type { LossMetrics, LossSpec, TrainBatch } from "@treadle/contracts";

/** An independent transformer and loss in float64, written for clarity; what the compiled programs are judged by. */

export type ReferenceConfig = { vocabSize: number; layers: number; width: number; heads: number };
type Matrices = Record<string, Float64Array>;

const sum = (values: Iterable<number>) => [...values].reduce((a, b) => a + b, 0);

function product(x: number[], matrix: Float64Array): number[] {
  const columns = matrix.length / x.length;
  return Array.from({ length: columns }, (_, j) => sum(x.map((value, i) => value * matrix[i * columns + j]!)));
}

function norm(x: number[], gain: Float64Array): number[] {
  const scale = Math.sqrt(sum(x.map((value) => value * value)) / x.length + 1e-5);
  return x.map((value, i) => (value / scale) * gain[i]!);
}

function logSoftmax(x: number[]): number[] {
  const highest = Math.max(...x);
  const total = highest + Math.log(sum(x.map((value) => Math.exp(value - highest))));
  return x.map((value) => value - total);
}

const within20 = (nats: number) => Math.min(Math.max(nats, -20), 20);

/** Log-probabilities of the token after each position, `[positions][vocabSize]`. */
export function referenceLogprobs(config: ReferenceConfig, weights: Matrices, tokens: readonly number[]): number[][] {
  return outputs(config, weights, tokens).map((x) => logSoftmax(product(x, weights["output.projection"]!)));
}

/** The value of the tokens up to each position. */
export function referenceValues(config: ReferenceConfig, weights: Matrices, tokens: readonly number[]): number[] {
  return outputs(config, weights, tokens).map((x) => product(x, weights["value.projection"]!)[0]!);
}

/** What the output matrices read at each position. */
function outputs(config: ReferenceConfig, weights: Matrices, tokens: readonly number[]): number[][] {
  const { width, heads, layers } = config;
  const headWidth = width / heads;
  let stream = tokens.map((token, position) =>
    Array.from(
      { length: width },
      (_, i) => weights["embedding.token"]![token * width + i]! + weights["embedding.position"]![position * width + i]!,
    ),
  );
  for (let layer = 0; layer < layers; layer++) {
    const weight = (name: string) => weights[`layer${layer}.${name}`]!;
    const projected = stream.map((x) => product(norm(x, weight("attention.norm")), weight("attention.input")));
    stream = stream.map((x, position) => {
      const merged: number[] = [];
      for (let head = 0; head < heads; head++) {
        const part = (at: number, kind: number) =>
          projected[at]!.slice(kind * width + head * headWidth, kind * width + (head + 1) * headWidth);
        const query = part(position, 0);
        const scores = Array.from(
          { length: position + 1 },
          (_, at) => sum(part(at, 1).map((key, i) => key * query[i]!)) / Math.sqrt(headWidth),
        );
        const shares = logSoftmax(scores).map(Math.exp);
        for (let i = 0; i < headWidth; i++) merged.push(sum(shares.map((share, at) => share * part(at, 2)[i]!)));
      }
      const attended = product(merged, weight("attention.output"));
      return x.map((value, i) => value + attended[i]!);
    });
    stream = stream.map((x) => {
      const hidden = product(norm(x, weight("mlp.norm")), weight("mlp.input")).map((value) => Math.max(0, value) ** 2);
      const output = product(hidden, weight("mlp.output"));
      return x.map((value, i) => value + output[i]!);
    });
  }
  return stream.map((x) => norm(x, weights["output.norm"]!));
}

/** `frozen` are the weights whose log-probabilities count as old where the batch has none. */
export function referenceLoss(
  config: ReferenceConfig,
  weights: Matrices,
  batch: TrainBatch,
  spec: LossSpec,
  frozen: Matrices,
): LossMetrics {
  const metrics = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
  for (let row = 0; row < batch.rows; row++) {
    const start = row * batch.columns;
    const tokens = [...batch.tokens.subarray(start, start + batch.columns)];
    const temperature = batch.temperatures?.[row] ?? 1;
    const atTemperature = (all: number[][]) => all.map((own) => logSoftmax(own.map((value) => value / temperature)));
    const now = atTemperature(referenceLogprobs(config, weights, tokens));
    const before = atTemperature(referenceLogprobs(config, frozen, tokens));
    const values = spec.type === "policy-gradient" && spec.value && referenceValues(config, weights, tokens);
    const counted = tokens.map((_, t) => t).filter((t) => t > 0 && batch.weights[start + t] !== 0);
    const ratioAt = (at: number[][], token: number) => {
      const logRatio = (t: number) =>
        at[t - 1]![tokens[t]!]! - (batch.oldLogprobs ? batch.oldLogprobs[start + t]! : before[t - 1]![tokens[t]!]!);
      if (spec.type === "cross-entropy" || spec.ratio === "token") return Math.exp(within20(logRatio(token)));
      const all = sum(counted.map(logRatio));
      return Math.exp(within20(spec.ratio === "sequence" ? all / counted.length : all));
    };
    for (const t of counted) {
      const weight = batch.weights[start + t]!;
      const chosen = now[t - 1]![tokens[t]!]!;
      const entropy = -sum(now[t - 1]!.map((value) => value * Math.exp(value)));
      metrics.weight += weight;
      metrics.entropy += weight * entropy;
      if (spec.type === "cross-entropy") {
        metrics.loss -= weight * chosen;
        continue;
      }
      const advantage = batch.advantages![start + t]!;
      const bounded = (ratio: number) => Math.min(Math.max(ratio, 1 - spec.clipLow), 1 + spec.clipHigh);
      const ratio = ratioAt(now, t);
      let objective = Math.min(ratio * advantage, bounded(ratio) * advantage);
      let cut = objective < ratio * advantage;
      if (spec.surrogate === "cispo") {
        // What is held constant is that of the frozen weights.
        objective = bounded(ratioAt(before, t)) * advantage * chosen;
        cut = bounded(ratio) !== ratio;
      } else if (spec.dualClip !== undefined && advantage < 0 && objective < spec.dualClip * advantage) {
        objective = spec.dualClip * advantage;
        cut = true;
      }
      const difference = batch.refLogprobs ? within20(batch.refLogprobs[start + t]! - chosen) : 0;
      const kl = spec.klEstimator === "k2" ? difference ** 2 / 2 : Math.exp(difference) - difference - 1;
      if (values && spec.value) {
        const [value, old, target] = [values[t - 1]!, batch.oldValues![start + t]!, batch.returns![start + t]!];
        const moved = old + Math.min(Math.max(value - old, -spec.value.clip), spec.value.clip);
        const error = Math.max((value - target) ** 2, (moved - target) ** 2) / 2;
        metrics.valueLoss += weight * error;
        metrics.loss += weight * spec.value.coefficient * error;
      }
      metrics.kl += weight * kl;
      metrics.clipFraction += cut ? weight : 0;
      metrics.loss += weight * (-objective + spec.klCoefficient * kl - spec.entropyCoefficient * entropy);
    }
  }
  return metrics;
}
