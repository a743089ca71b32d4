import { z } from "zod";
import { parseConfig } from "../config.ts";
import { answerOf, type RewardPlugin } from "./reward.ts";

/** What counts as the same text. */
const shape = {
  ignoreCase: z.boolean().default(false),
  /** leading and trailing white space never counts; with this, white space between words counts as one space */
  ignoreSpacing: z.boolean().default(true),
  ignorePunctuation: z.boolean().default(false),
};
const ExactRewardConfig = z.strictObject({ name: z.literal("exact"), ...shape });
type Normalisation = Pick<z.infer<typeof ExactRewardConfig>, keyof typeof shape>;

/** 1 when the completion's text is `prompt.answer` once both are normalised (always to Unicode's NFKC), else 0. */
export const exactReward: RewardPlugin = {
  name: "exact",
  create(config, path) {
    const { name, ...how } = parseConfig(ExactRewardConfig, config, path);
    return {
      name,
      score: (prompt, { text }) => (normalised(text, how) === normalised(answerOf(prompt), how) ? 1 : 0),
    };
  },
};

function normalised(text: string, { ignoreCase, ignoreSpacing, ignorePunctuation }: Normalisation): string {
  let left = text.normalize("NFKC");
  if (ignoreCase) left = left.toLowerCase();
  if (ignorePunctuation) left = left.replace(/\p{P}/gu, "");
  return (ignoreSpacing ? left.replace(/\s+/gu, " ") : left).trim();
}
