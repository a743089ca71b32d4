import { z } from "zod";
import { parseConfig } from "../config.ts";
import { answerOf, type RewardPlugin } from "./reward.ts";

const ArithmeticRewardConfig = z.strictObject({
  name: z.literal("arithmetic"),
  /** reward of a wrong answer, times its share of right characters; 0 rewards exact answers only */
  partialCredit: z.number().min(0).max(1).default(0),
});

/**
 * Verifiable arithmetic: 1 when the completion's text is exactly `prompt.answer`, else `partialCredit` times the share of
 * positions, counted over the longer of the two, that hold the right character.
 */
export const arithmeticReward: RewardPlugin = {
  name: "arithmetic",
  create(config, path) {
    const { name, partialCredit } = parseConfig(ArithmeticRewardConfig, config, path);
    return {
      name,
      score(prompt, { text }) {
        const answer = answerOf(prompt);
        return text === answer ? 1 : partialCredit * matchingShare(text, answer);
      },
    };
  },
};

function matchingShare(text: string, answer: string): number {
  const longer = Math.max(text.length, answer.length);
  let matching = 0;
  for (let index = 0; index < longer; index++) if (text[index] === answer[index]) matching += 1;
  return longer === 0 ? 0 : matching / longer;
}
