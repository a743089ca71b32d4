import type { Episode, EpisodeGroup } from "@treadle/contracts";
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
