import { type Episode, type EpisodeGroup, maxLogRatio } from "@treadle/contracts";
import type { TrainSample } from "./algorithms/algorithm.ts";
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

export type StaleGroup = { readonly group: EpisodeGroup; readonly oldestVersion: number; readonly staleness: number };

/**
 * W2: staleness never exceeds the configured bound. Returns the groups that would break it if they were trained on now:
 * those where some token was chosen more than `maxStaleness` versions before `currentVersion` (0 means on-policy). A
 * group counts as old as its oldest token, because its advantages compare all of its episodes.
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
  /** mean over policy tokens of the importance weight before truncation: 1 when sampler and trainer agree */
  readonly meanImportance: number;
  /** share of policy tokens whose weight was cut */
  readonly truncatedFraction: number;
};

/**
 * Corrects for tokens that were sampled by another policy than the one the ratio is taken against (older weights, or the
 * same weights in an engine with other kernels): each token's advantage is multiplied by
 *
 *     min(exp(oldLogprob − sampled logprob), cap)
 *
 * This is the truncated importance weight of IMPALA (arXiv:1802.01561) as the behaviour correction of AReaL's decoupled
 * objective (arXiv:2505.24298), with truncation instead of none. The clipped surrogate is linear in a positive factor of
 * the advantage, so engines need to know nothing; weights, the divisor and the KL term stay as they are.
 *
 * Needs `oldLogprobs` recomputed by inference; throws `learning.invalid-batch` without them.
 */
export function truncateImportance(samples: readonly TrainSample[], cap: number): TruncatedImportance {
  if (!(cap > 0)) throw invalid(`importance cap is '${cap}': allowed is a number > 0`);
  let tokens = 0;
  let total = 0;
  let truncated = 0;
  const corrected = samples.map((sample) => {
    const { episode } = sample;
    const { oldLogprobs } = episode;
    if (oldLogprobs === undefined) {
      throw invalid(
        `episode of prompt '${episode.promptId}' has no oldLogprobs: ` +
          "score it with inference first, or train without importance truncation",
      );
    }
    const advantages = sample.advantages.map((advantage, token) => {
      if (episode.mask[token] === 0) return 0;
      const logRatio = oldLogprobs[token]! - episode.logprobs[token]!;
      const importance = Math.exp(Math.min(Math.max(logRatio, -maxLogRatio), maxLogRatio));
      tokens += 1;
      total += importance;
      if (importance > cap) truncated += 1;
      return advantage * Math.min(importance, cap);
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
