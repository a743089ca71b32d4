import type { EpisodeGroup, LossMetrics } from "@treadle/contracts";
import type { Mismatch } from "@treadle/learning";

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
  "squaredImportance",
  "cutTokens",
  "mismatchKl",
] as const;

/** Sums over what a step saw, on this rank and then on all: everything in it adds up, but for the largest mismatch. */
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
  squaredImportance = 0;
  cutTokens = 0;
  mismatchKl = 0;
  maxMismatchKl = 0;

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

  addMismatch({ tokens, weights, squaredWeights, cut, kl, maxKl }: Mismatch): void {
    this.rescoredTokens += tokens;
    this.importance += weights;
    this.squaredImportance += squaredWeights;
    this.cutTokens += cut;
    this.mismatchKl += kl;
    this.maxMismatchKl = Math.max(this.maxMismatchKl, maxKl);
  }

  add(other: TrainingTotals): void {
    for (const name of names) this[name] += other[name];
    this.maxMismatchKl = Math.max(this.maxMismatchKl, other.maxMismatchKl);
  }

  /** Summed over ranks, each in its place, it has the largest of all ranks. */
  toArray(rank: number, worldSize: number): Float64Array {
    const largest = Array.from({ length: worldSize }, (_, index) => (index === rank ? this.maxMismatchKl : 0));
    return Float64Array.from([...names.map((name) => this[name]), ...largest]);
  }

  fromArray(values: Float64Array): void {
    names.forEach((name, index) => {
      this[name] = values[index] as number;
    });
    this.maxMismatchKl = Math.max(...values.subarray(names.length));
  }

  /** in nats a token; 0 where nothing was rescored */
  get meanMismatchKl(): number {
    return this.mismatchKl / Math.max(1, this.rescoredTokens);
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
        effectiveSamples: this.importance ** 2 / (this.rescoredTokens * this.squaredImportance),
        cut: this.cutTokens / this.rescoredTokens,
        mismatchKl: this.meanMismatchKl,
        mismatchKlMax: this.maxMismatchKl,
      }),
    };
  }
}
