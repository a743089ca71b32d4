import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { checkGroups, invalid, rewardsInTime } from "../episode.ts";
import { generalisedAdvantages } from "../gae.ts";
import { type Algorithm, policyTokenPositions, type TrainSample } from "./algorithm.ts";
import { type AlgorithmConfigOf, type AlgorithmName, minGroupSizeOf } from "./config.ts";
import { filterGroups, refuseSmallGroup } from "./filter.ts";
import { klPenalties, lossOf } from "./kl-penalty.ts";
import { momentsOf } from "./normalise.ts";

/** Equal rewards still teach: advantages are scaled over the step. */
const filterRule = (name: AlgorithmName) => ({ minEpisodes: minGroupSizeOf(name), equalRewards: "train" }) as const;

/**
 * PPO: "Proximal Policy Optimization Algorithms", arXiv:1707.06347, over the tokens that the policy chose. A step is one
 * such token (tool and prompt tokens in between pass no time); what turns have earned comes with their last tokens, and the rest of the
 * episode's reward with its last (TC1); with the KL in the reward every step's penalty is taken off its reward. Generalised advantage estimation with the critic's `values`
 * then gives advantages and the returns that the critic regresses to, with the loss
 *
 *     valueCoefficient / 2 · max((v − R)², (v_old + clip(v − v_old, ±valueClip) − R)²)
 *
 * An episode cut at its length limit counts as terminated, because its reward judged it as it stands, unless `truncation` says
 * `bootstrap`: then what would have followed counts, too, at the critic's value before the last token.
 *
 * `normaliseAdvantages` wants advantages scaled over all policy tokens of the step; returns are never scaled.
 */
export function ppo(config: AlgorithmConfigOf<"ppo">): Algorithm {
  return {
    config,
    loss: { ...lossOf(config), value: { coefficient: config.valueCoefficient, clip: config.valueClip } },
    normalisation: config.normalisation,
    needsWholeBatch: config.normaliseAdvantages,
    needsReference: config.kl.placement !== "none",
    needsValues: true,
    filter: (groups) => filterGroups(groups, filterRule(config.name)),
    advantages(groups: readonly EpisodeGroup[]) {
      checkGroups(groups);
      return groups.flatMap((group) => group.episodes.map((episode) => estimate(episode, config)));
    },
  };
}

function estimate(episode: Episode, config: AlgorithmConfigOf<"ppo">): TrainSample {
  const positions = policyTokenPositions(episode);
  const oldValues = episode.values;
  if (oldValues === undefined) {
    throw invalid(
      `episode of prompt '${episode.promptId}' has no values and ppo needs them: ` +
        "score episodes with a critic first, or use an algorithm without one",
    );
  }
  const values = Float64Array.from(positions, (token) => oldValues[token]!);
  const penalties = klPenalties(episode, positions, config.kl);
  const rewards = rewardsInTime(episode, positions).map((reward, step) => reward - penalties[step]!); // TC1
  const last = positions.length - 1;
  const goesOn = config.truncation === "bootstrap" && episode.finishReason === "length";
  const atLast = (is: boolean) => Uint8Array.from(positions, (_, step) => (is && step === last ? 1 : 0));
  const estimated = generalisedAdvantages(
    {
      steps: positions.length,
      environments: 1,
      rewards,
      values,
      terminated: atLast(!goesOn),
      truncated: atLast(goesOn),
      finalValues: values,
      lastValues: [0],
    },
    config,
  );
  return {
    episode,
    advantages: place(episode, positions, estimated.advantages),
    returns: place(episode, positions, estimated.returns),
    oldValues,
  };
}

/**
 * REINFORCE++: "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", arXiv:2501.03262. No
 * critic; the advantage of token t is the reward less the KL penalties from t on, to be scaled over all policy
 * tokens of the step (`normaliseAdvantages`), where r_t is what is earned with t: all with the last token, unless turns say otherwise (TC1):
 *
 *     G_t = sum over s ≥ t of (r_s − kl_s)        A_t = (G_t − mean(G)) / (std(G) + 1e-6)
 *
 * with PPO's clipped loss. With a baseline (the paper's variant for several samples a prompt) each G_t is less by the mean reward of the
 * group, and the KL is a term of the loss, estimated by k2, unless it is configured to be in the reward.
 */
export function reinforcePlusPlus(config: AlgorithmConfigOf<"reinforce++" | "reinforce++-baseline">): Algorithm {
  return {
    config,
    loss: lossOf(config),
    normalisation: config.normalisation,
    needsWholeBatch: true,
    needsReference: config.kl.placement !== "none",
    needsValues: false,
    filter: (groups) => filterGroups(groups, filterRule(config.name)),
    advantages(groups: readonly EpisodeGroup[]) {
      checkGroups(groups);
      return groups.flatMap((group) => {
        refuseSmallGroup(group, config.name);
        const { episodes } = group;
        const baseline = config.name === "reinforce++" ? 0 : momentsOf(episodes.map((episode) => episode.reward)).mean;
        return episodes.map((episode) => {
          const positions = policyTokenPositions(episode);
          const credit = klPenalties(episode, positions, config.kl);
          const rewards = rewardsInTime(episode, positions); // TC1
          let rest = -baseline;
          for (let step = positions.length - 1; step >= 0; step--) {
            rest += rewards[step]! - credit[step]!;
            credit[step] = rest;
          }
          return { episode, advantages: place(episode, positions, credit) };
        });
      });
    },
  };
}

/** Puts values of the policy's tokens back where those tokens stand. */
function place(episode: Episode, positions: Int32Array, values: Float64Array): Float64Array {
  const placed = new Float64Array(episode.tokens.length);
  for (let step = 0; step < positions.length; step++) placed[positions[step]!] = values[step]!;
  return placed;
}
