import { type Episode, type EpisodeGroup, maxLogRatio } from "@treadle/contracts";
import { type PolicyGradientLoss, policyTokenPositions, type TrainSample } from "./algorithms/algorithm.ts";
import { invalid } from "./episode.ts";

/** The oldest version that chose a token of the episode; `undefined` if the policy chose none. */
export function oldestPolicyVersion(episode: Pick<Episode, "mask" | "policyVersions">): number | undefined {
  let oldest: number | undefined;
  for (let token = 0; token < episode.mask.length; token++) {
    if (episode.mask[token] === 0) continue;
    const version = episode.policyVersions[token]!;
    if (oldest === undefined || version < oldest) oldest = version;
  }
  return oldest;
}

/** Whether a token of the episode was chosen by weights before those of `version`. */
export function wasSampledBefore(episode: Pick<Episode, "mask" | "policyVersions">, version: number): boolean {
  return (oldestPolicyVersion(episode) ?? version) < version;
}

export type StaleGroup = { readonly group: EpisodeGroup; readonly oldestVersion: number; readonly staleness: number };

/**
 * W2: staleness never exceeds the configured bound. Returns the groups that would break it if they were trained on now:
 * those where some token was chosen more than `maxStaleness` versions before `currentVersion` (0 means on-policy). A
 * group counts as old as its oldest token, because its advantages compare all of its episodes but aborted ones, from which
 * nothing is learnt.
 *
 * Throws `learning.invalid-batch` for a token without a version or of a version that does not exist yet: both mean that
 * the versions are wrong, and then W2 cannot be judged.
 */
export function findStaleGroups(
  groups: readonly EpisodeGroup[],
  currentVersion: number,
  maxStaleness: number,
): StaleGroup[] {
  const stale: StaleGroup[] = [];
  for (const group of groups) {
    let oldest: number | undefined;
    for (const episode of group.episodes) {
      if (episode.finishReason === "abort") continue;
      checkVersions(episode, currentVersion);
      const version = oldestPolicyVersion(episode);
      if (version !== undefined && (oldest === undefined || version < oldest)) oldest = version;
    }
    if (oldest === undefined || currentVersion - oldest <= maxStaleness) continue;
    stale.push({ group, oldestVersion: oldest, staleness: currentVersion - oldest });
  }
  return stale;
}

function checkVersions(episode: Episode, currentVersion: number): void {
  for (let token = 0; token < episode.mask.length; token++) {
    const version = episode.policyVersions[token]!;
    if (episode.mask[token] === 0 || (version >= 0 && version <= currentVersion)) continue;
    throw invalid(
      `episode of prompt '${episode.promptId}' has policy version '${version}' at token '${token}': ` +
        `allowed is 0 to the current version ${currentVersion}`,
    );
  }
}

export type TruncatedImportance = {
  readonly samples: TrainSample[];
  /** policy tokens that were weighted */
  readonly tokens: number;
  /** mean over these tokens of the importance weight before truncation: 1 when sampler and trainer agree */
  readonly meanImportance: number;
  /** share of these tokens whose weight was cut */
  readonly truncatedFraction: number;
};

/**
 * Corrects for tokens that were sampled by another policy than the one the ratio is taken against (older weights, or the
 * same weights in an engine with other kernels). Advantages are multiplied by the probability under the latter over that
 * under the former, at most `cap`. The weight is of what the algorithm's ratio calls an action:
 *
 *     token:            min(exp(old − sampled), cap)                      of each token
 *     sequence-product: min(exp(sum over the sequence of (old − sampled)), cap)    the same for all of its tokens (RLOO)
 *     sequence:         min(exp(mean over the sequence of (old − sampled)), cap)   the same for all of its tokens (GSPO)
 *
 * A product of truncated token weights is not the truncated weight of the product, so a sequence is cut once. Log-ratios
 * count as within ± `maxLogRatio`, as in the loss.
 *
 * Sources: the truncated weight of IMPALA (arXiv:1802.01561), as the behaviour weight of AReaL's decoupled objective
 * (arXiv:2505.24298), which is per token. TRL's GRPO truncates by token or by sequence
 * (`vllm_importance_sampling_mode`: `token_truncate`, `sequence_truncate`), and verl's rollout correction too (`rollout_is`:
 * `token`, `sequence`); both have the product for sequences. The mean for GSPO is that of its own ratio.
 *
 * The clipped surrogate is linear in a positive factor of the advantage, so engines need to know nothing; weights, the
 * divisor, the KL term and a critic's returns stay as they are. Episodes that needed no score have no `oldLogprobs`;
 * their ratio is against the sampler itself, and they stay as they are.
 */
export function truncateImportance(
  samples: readonly TrainSample[],
  { cap, ratio }: { readonly cap: number; readonly ratio: PolicyGradientLoss["ratio"] },
): TruncatedImportance {
  if (!(cap > 0)) throw invalid(`importance cap is '${cap}': allowed is a number > 0`);
  let tokens = 0;
  let total = 0;
  let truncated = 0;
  const corrected = samples.map((sample) => {
    const { episode } = sample;
    if (episode.oldLogprobs === undefined) return sample;
    const importance = importanceOf(episode, episode.oldLogprobs, ratio);
    const advantages = sample.advantages.map((advantage, token) => {
      if (episode.mask[token] === 0) return 0;
      const weight = importance[token]!;
      tokens += 1;
      total += weight;
      if (weight > cap) truncated += 1;
      return advantage * Math.min(weight, cap);
    });
    return { ...sample, advantages };
  });
  return {
    samples: corrected,
    tokens,
    meanImportance: tokens === 0 ? 1 : total / tokens,
    truncatedFraction: tokens === 0 ? 0 : truncated / tokens,
  };
}

/** One weight a token, before truncation; what stands where the policy did not choose is never used. */
function importanceOf(episode: Episode, oldLogprobs: Float32Array, ratio: PolicyGradientLoss["ratio"]): Float64Array {
  const logRatios = Float64Array.from(oldLogprobs, (old, token) => old - episode.logprobs[token]!);
  const weightOf = (logRatio: number) => Math.exp(Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio));
  if (ratio === "token") return logRatios.map(weightOf);
  const positions = policyTokenPositions(episode);
  const sum = positions.reduce((all, token) => all + logRatios[token]!, 0);
  return logRatios.fill(weightOf(ratio === "sequence" ? sum / positions.length : sum));
}
