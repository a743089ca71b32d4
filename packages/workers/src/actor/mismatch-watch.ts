import type { Episode } from "@treadle/contracts";
import type { TrainSample } from "@treadle/learning";

const most = 64;

/** The episodes of a step on which sampler and trained policy are furthest apart, for whoever asks why. Pure. */
export class MismatchWatch {
  #worst: { readonly episode: Episode; readonly kl: number }[] = [];

  observe(samples: readonly TrainSample[], meanKl: readonly number[]): void {
    const seen = samples.map(({ episode }, index) => ({ episode, kl: meanKl[index] as number }));
    this.#worst = [...this.#worst, ...seen].sort((a, b) => b.kl - a.kl).slice(0, most);
  }

  /** The worst first, as JSON: what to score again, in the sampler and in the trainer. */
  get text(): string {
    const rows = this.#worst.map(({ episode, kl }) => ({
      promptId: episode.promptId,
      meanKl: kl,
      engine: episode.engine,
      temperature: episode.temperature,
      promptLength: episode.promptLength,
      tokens: [...episode.tokens],
      mask: [...episode.mask],
      policyVersions: [...episode.policyVersions],
      logprobs: [...episode.logprobs],
      oldLogprobs: [...(episode.oldLogprobs ?? [])],
    }));
    return `${JSON.stringify(rows)}\n`;
  }
}
