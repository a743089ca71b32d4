import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { checkEpisode, countPolicyTokens, invalid } from "../episode.ts";
import { type AlgorithmName, minGroupSizeOf } from "./config.ts";

/** Rewards closer than this are equal: their difference is rounding, and dividing by its deviation would blow it up. */
export const equalRewardTolerance = 1e-8;

export type FilterRule = {
  /** smallest group that the algorithm can use */
  readonly minEpisodes: number;
  /** what becomes of groups whose rewards are all equal, and so their group-relative advantages all zero */
  readonly equalRewards: "train" | "drop" | "keep-other-terms";
  /** whether answers that were cut at their length limit count in their group's statistics alone, and train nothing */
  readonly maskTruncated?: boolean | undefined;
};

export type FilterResult = {
  readonly kept: EpisodeGroup[];
  /** of the groups kept, those that stay for the loss's KL and entropy alone, their rewards being equal */
  readonly withoutPolicyTerm: number;
  /** groups dropped, by reason */
  readonly droppedGroups: {
    readonly "equal-rewards": number;
    readonly "too-few-episodes": number;
    readonly truncated: number;
  };
  /** episodes taken out before the groups were judged, by reason */
  readonly droppedEpisodes: { readonly aborted: number; readonly "no-policy-tokens": number };
};

/**
 * Which groups to train on. Aborted episodes have no meaningful reward and those without a token of the policy nothing
 * to learn from; both leave their groups first. Then groups too small for the algorithm, or (DAPO's dynamic sampling,
 * arXiv:2503.14476 §3.2, applied to any reward) with all rewards equal, are dropped: the latter only from the policy's
 * term of the loss, where it has others. So are groups of cut answers alone where these train nothing. Rewards are compared as they were given, before any shaping. Groups that lose
 * nothing are returned as they are. Throws `learning.invalid-batch` for any malformed episode but an aborted one: the rewards of
 * those that are dropped count in what is reported.
 */
export function filterGroups(groups: readonly EpisodeGroup[], rule: FilterRule): FilterResult {
  const kept: EpisodeGroup[] = [];
  let withoutPolicyTerm = 0;
  const droppedGroups = { "equal-rewards": 0, "too-few-episodes": 0, truncated: 0 };
  const droppedEpisodes = { aborted: 0, "no-policy-tokens": 0 };
  for (const group of groups) {
    const episodes = group.episodes.filter((episode) => {
      if (episode.finishReason === "abort") {
        droppedEpisodes.aborted += 1;
        return false;
      }
      checkEpisode(episode);
      if (countPolicyTokens(episode) > 0) return true;
      droppedEpisodes["no-policy-tokens"] += 1;
      return false;
    });
    if (episodes.length < rule.minEpisodes) droppedGroups["too-few-episodes"] += 1;
    else if (rule.maskTruncated && episodes.every(({ finishReason }) => finishReason === "length")) {
      droppedGroups.truncated += 1;
    } else {
      const isFlat = rule.equalRewards !== "train" && rewardsAreEqual(episodes);
      if (isFlat && rule.equalRewards === "drop") {
        droppedGroups["equal-rewards"] += 1;
        continue;
      }
      if (isFlat) withoutPolicyTerm += 1;
      kept.push(episodes.length === group.episodes.length ? group : { ...group, episodes });
    }
  }
  return { kept, withoutPolicyTerm, droppedGroups, droppedEpisodes };
}

/** Throws `learning.invalid-batch` for a group that is too small to be compared within, which `filterGroups` drops. */
export function refuseSmallGroup({ promptId, episodes }: EpisodeGroup, name: AlgorithmName): void {
  const least = minGroupSizeOf(name);
  if (episodes.length >= least) return;
  throw invalid(
    `group of prompt '${promptId}' has '${episodes.length}' episodes: allowed is at least ${least} ` +
      `for ${name}; sample more per prompt, or pass groups through filter first`,
  );
}

export function rewardsAreEqual(episodes: readonly Episode[]): boolean {
  const rewards = episodes.map((episode) => episode.reward);
  return Math.max(...rewards) - Math.min(...rewards) <= equalRewardTolerance;
}
