import type { Episode, EpisodeGroup } from "@treadle/contracts";

export {
  configurations,
  entropyOf,
  type RandomScores,
  type RandomStep,
  randomStep,
  randomStepColumns,
  randomStepVersion,
  randomStepVocabulary,
} from "./random-step.ts";

/**
 * An episode for tests: a prompt of `promptLength` tokens (default 1), then `policyTokens` tokens of the policy (default
 * 2), with log-probability −1 and version 0 each. Anything else may be given in its place.
 */
export function makeEpisode(given: Partial<Episode> & { readonly policyTokens?: number | undefined } = {}): Episode {
  const { policyTokens = 2, ...fields } = given;
  const promptLength = fields.promptLength ?? 1;
  const tokens =
    fields.tokens ?? Int32Array.from({ length: promptLength + policyTokens }, (_, token) => 2 + (token % 8));
  const mask = fields.mask ?? Float32Array.from(tokens, (_, token) => (token < promptLength ? 0 : 1));
  return {
    promptId: "prompt",
    promptLength,
    tokens,
    mask,
    logprobs: Float32Array.from(mask, (chosen) => -chosen),
    policyVersions: Int32Array.from(mask, (chosen) => (chosen === 0 ? -1 : 0)),
    temperature: 1,
    finishReason: "stop",
    reward: 0,
    ...fields,
  };
}

/** A group with one episode for each reward. */
export function makeGroup(rewards: readonly number[], given: Parameters<typeof makeEpisode>[0] = {}): EpisodeGroup {
  const promptId = given.promptId ?? "prompt";
  return { promptId, episodes: rewards.map((reward) => makeEpisode({ ...given, promptId, reward })) };
}
