import type { EpisodeGroup, LossMetrics } from "@treadle/contracts";
import type { TruncatedImportance } from "@treadle/learning";

const names = [
  "divisor",
  "weight",
  "loss",
  "entropy",
  "kl",
  "clipFraction",
  "valueLoss",
  "groups",
  "trainedGroups",
  "episodes",
  "reward",
  "tokens",
  "rescoredTokens",
  "importance",
  "truncatedTokens",
] as const;

/** Sums over what a step saw, on this rank and then on all: everything in it adds up. */
export class TrainingTotals implements Record<(typeof names)[number], number> {
  divisor = 0;
  weight = 0;
  loss = 0;
  entropy = 0;
  kl = 0;
  clipFraction = 0;
  valueLoss = 0;
  groups = 0;
  trainedGroups = 0;
  episodes = 0;
  reward = 0;
  tokens = 0;
  rescoredTokens = 0;
  importance = 0;
  truncatedTokens = 0;

  observe(groups: readonly EpisodeGroup[]): void {
    for (const { episodes } of groups) {
      this.groups++;
      for (const episode of episodes) {
        this.tokens += episode.tokens.length - episode.promptLength;
        if (episode.finishReason === "abort") continue; // its reward means nothing
        this.episodes++;
        this.reward += episode.reward;
      }
    }
  }

  addLoss(metrics: LossMetrics, divisor: number): void {
    this.divisor += divisor;
    this.weight += metrics.weight;
    this.loss += metrics.loss;
    this.entropy += metrics.entropy;
    this.kl += metrics.kl;
    this.clipFraction += metrics.clipFraction;
    this.valueLoss += metrics.valueLoss;
  }

  addImportance({ tokens, meanImportance, truncatedFraction }: TruncatedImportance): void {
    this.rescoredTokens += tokens;
    this.importance += meanImportance * tokens;
    this.truncatedTokens += truncatedFraction * tokens;
  }

  add(other: TrainingTotals): void {
    for (const name of names) this[name] += other[name];
  }

  toArray(): Float64Array {
    return Float64Array.from(names, (name) => this[name]);
  }

  fromArray(values: Float64Array): void {
    names.forEach((name, index) => {
      this[name] = values[index] as number;
    });
  }

  metrics(): Record<string, number> {
    const perWeight = 1 / Math.max(1e-12, this.weight);
    return {
      reward: this.reward / Math.max(1, this.episodes),
      tokens: this.tokens,
      loss: this.loss * perWeight,
      entropy: this.entropy * perWeight,
      kl: this.kl * perWeight,
      clipFraction: this.clipFraction * perWeight,
      valueLoss: this.valueLoss * perWeight,
      trainedGroups: this.trainedGroups / Math.max(1, this.groups),
      ...(this.rescoredTokens > 0 && {
        importance: this.importance / this.rescoredTokens,
        truncated: this.truncatedTokens / this.rescoredTokens,
      }),
    };
  }
}
