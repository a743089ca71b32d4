import type { Episode } from "@treadle/contracts";
import { divergenceOf } from "@treadle/learning";

/** A token of a batch, with what each policy thought of it. Log-probabilities that nobody has are absent. */
export type ComparedToken = {
  readonly promptId: string;
  /** its episode's, among those of the batch */
  readonly episode: number;
  readonly position: number;
  readonly token: number;
  readonly policyVersion: number;
  readonly sampler: number;
  readonly trainer?: number;
  readonly rescored?: number;
  /** k3 from sampler to trainer, or where there is none, to what was scored again, in nats */
  readonly divergence: number;
};

/** Over the tokens that both know. */
export type Divergence = { readonly tokens: number; readonly meanKl: number; readonly maxKl: number };

export type Comparison = {
  readonly tokens: number;
  readonly samplerAndTrainer: Divergence;
  readonly samplerAndRescored?: Divergence;
  readonly trainerAndRescored?: Divergence;
  /** the furthest apart first */
  readonly worst: readonly ComparedToken[];
};

/** Of the policy's tokens. `rescored`: of each episode. Pure. */
export function compare(
  episodes: readonly Episode[],
  rescored: readonly Float32Array[] | undefined,
  numWorst: number,
): Comparison {
  const tokens = episodes.flatMap((episode, at) => tokensOf(episode, at, rescored?.[at]));
  const between = (
    from: (one: ComparedToken) => number | undefined,
    to: (one: ComparedToken) => number | undefined,
  ) => {
    const each = tokens.flatMap((one) => {
      const [first, second] = [from(one), to(one)];
      return first === undefined || second === undefined ? [] : [divergenceOf(second - first)];
    });
    const sum = each.reduce((all, kl) => all + kl, 0);
    const maxKl = each.reduce((most, kl) => Math.max(most, kl), 0);
    return { tokens: each.length, meanKl: sum / Math.max(1, each.length), maxKl };
  };
  const [sampler, trainer, again] = (["sampler", "trainer", "rescored"] as const).map(
    (name) => (one: ComparedToken) => one[name],
  ) as [Of, Of, Of];
  return {
    tokens: tokens.length,
    samplerAndTrainer: between(sampler, trainer),
    ...(rescored && { samplerAndRescored: between(sampler, again), trainerAndRescored: between(trainer, again) }),
    worst: tokens.sort((a, b) => b.divergence - a.divergence).slice(0, numWorst),
  };
}

type Of = (one: ComparedToken) => number | undefined;

function tokensOf(episode: Episode, at: number, rescored: Float32Array | undefined): ComparedToken[] {
  const { promptId, tokens, mask, logprobs, oldLogprobs, policyVersions } = episode;
  return [...tokens].flatMap((token, position) => {
    if (mask[position] === 0) return [];
    const sampler = logprobs[position]!;
    const [trainer, again] = [oldLogprobs?.[position], rescored?.[position]];
    const other = trainer ?? again;
    return {
      ...{ promptId, episode: at, position, token, policyVersion: policyVersions[position]!, sampler },
      ...(trainer !== undefined && { trainer }),
      ...(again !== undefined && { rescored: again }),
      divergence: other === undefined ? 0 : divergenceOf(other - sampler),
    };
  });
}
