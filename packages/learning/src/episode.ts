import { type Episode, type EpisodeGroup, minTemperature, TreadleError } from "@treadle/contracts";

/** An error about episodes, advantages or batches that do not fit together. */
export function invalid(message: string, details: Record<string, unknown> = {}): TreadleError {
  return new TreadleError("learning.invalid-batch", message, { details });
}

/** Returns of a thousand steps with such rewards have squares that are finite in float32, in which losses are taken. */
export const largestReward = 1e15;

export function isReward(value: number): boolean {
  return Math.abs(value) <= largestReward;
}

/** Number of tokens that the policy chose: |o| in the papers. */
export function countPolicyTokens(episode: Pick<Episode, "mask">): number {
  let count = 0;
  for (const chosen of episode.mask) if (chosen !== 0) count++;
  return count;
}

/** Log-probabilities of the policy that the ratio is taken against: recomputed ones if there are any, else the sampler's. */
export function oldLogprobsOf(episode: Episode): Float32Array {
  return episode.oldLogprobs ?? episode.logprobs;
}

/**
 * Throws `learning.invalid-batch` unless the parallel arrays are as long as `tokens`, the mask is 0 or 1, nothing before
 * `promptLength` nor at token 0 (which has no context to be predicted from) is the policy's, numbers are finite where
 * they will be used, the reward is within ± `largestReward`, the temperature is at least `minTemperature` and finite in float32, and token ids are in `[0, vocabularySize)`.
 */
export function checkEpisode(episode: Episode, vocabularySize = Number.POSITIVE_INFINITY): void {
  const who = `episode of prompt '${episode.promptId}'`;
  const length = episode.tokens.length;
  if (episode.promptLength > length) {
    throw invalid(`${who} has promptLength '${episode.promptLength}': allowed is at most its '${length}' tokens`);
  }
  const parallel = ["mask", "logprobs", "policyVersions", "oldLogprobs", "refLogprobs", "values"] as const;
  for (const name of parallel) {
    const array = episode[name];
    if (array !== undefined && array.length !== length) {
      throw invalid(`${who} has '${array.length}' ${name}: allowed is one for each of its '${length}' tokens`);
    }
  }
  if (!(episode.temperature >= minTemperature && Number.isFinite(Math.fround(episode.temperature)))) {
    throw invalid(
      `${who} has temperature '${episode.temperature}': allowed is a number >= ${minTemperature} that float32 holds; ` +
        "greedy episodes are for evaluation",
    );
  }
  if (!isReward(episode.reward)) {
    throw invalid(
      `${who} has reward '${episode.reward}': allowed is a finite number within ± ${largestReward}; check the reward's plugin`,
    );
  }
  checkTokens(episode.tokens, who, vocabularySize);
  checkTurnRewards(episode, who);
  const firstChoice = Math.max(1, episode.promptLength);
  for (let token = 0; token < length; token++) {
    const chosen = episode.mask[token]!;
    if (chosen !== 0 && chosen !== 1)
      throw invalid(`${who} has mask '${chosen}' at token '${token}': allowed is 0 or 1`);
    if (chosen === 1 && token < firstChoice) {
      throw invalid(
        `${who} has mask '1' at token '${token}': allowed is 0 at the first token and inside the prompt; ` +
          "begin every prompt with at least one token",
      );
    }
  }
  for (const name of ["logprobs", "oldLogprobs", "refLogprobs", "values"] as const) {
    const array = episode[name];
    if (array !== undefined) checkFinite(array, episode.mask, name, who);
  }
}

/** TC1: turns are in order, each ends with a token of the policy's, and earns what a reward may be. */
function checkTurnRewards({ turnRewards = [], mask }: Episode, who: string): void {
  let before = 0;
  for (const { end, reward } of turnRewards) {
    if (end <= before || mask[end - 1] !== 1)
      throw invalid(
        `${who} has a turn that ends at '${end}': allowed is behind a token of the policy's, and after the turn before, which ends at '${before}'`,
      );
    if (!isReward(reward))
      throw invalid(`${who} has reward '${reward}' for a turn: allowed is a finite number within ± ${largestReward}`);
    before = end;
  }
}

/**
 * When an episode earns its reward, at `positions` of its policy's tokens. TC1: what turns have earned comes with their last tokens; what is
 * left of `reward` with the episode's last, so that all of it is `reward` whatever turns say.
 */
export function rewardsInTime(
  { reward, turnRewards = [] }: Pick<Episode, "reward" | "turnRewards">,
  positions: Int32Array,
): Float64Array {
  const rewards = new Float64Array(positions.length);
  if (positions.length === 0) return rewards;
  let rest = reward;
  for (const turn of turnRewards) {
    rewards[positions.indexOf(turn.end - 1)]! += turn.reward;
    rest -= turn.reward;
  }
  rewards[positions.length - 1]! += rest;
  return rewards;
}

/** Throws `learning.invalid-batch` unless `array` is finite in float32 where the mask is not 0; elsewhere it is never used. */
export function checkFinite(array: Float32Array | Float64Array, mask: Float32Array, name: string, who: string): void {
  for (let token = 0; token < array.length; token++) {
    if (mask[token] !== 0 && !Number.isFinite(Math.fround(array[token]!))) {
      throw invalid(`${who} has ${name} '${array[token]}' at token '${token}': allowed is a finite number`);
    }
  }
}

/** Throws `learning.invalid-batch` unless every token id is in `[0, vocabularySize)`. */
export function checkTokens(tokens: Int32Array, who: string, vocabularySize: number): void {
  for (let index = 0; index < tokens.length; index++) {
    const token = tokens[index]!;
    if (token < 0 || token >= vocabularySize) {
      throw invalid(`${who} has token '${token}' at '${index}': allowed is 0 up to, not including, ${vocabularySize}`);
    }
  }
}

/** `checkEpisode` for every episode of every group. */
export function checkGroups(groups: readonly EpisodeGroup[]): void {
  for (const group of groups) for (const episode of group.episodes) checkEpisode(episode);
}
