import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { answerOf, type RewardPlugin } from "./reward.ts";

const NumericRewardConfig = z.strictObject({
  name: z.literal("numeric"),
  /** largest distance to the answer that is right; 0 compares digit by digit, however many there are */
  tolerance: z.number().nonnegative().default(0),
  /** the same as a share of the answer; the larger of the two holds */
  relativeTolerance: z.number().nonnegative().default(0),
});

/**
 * A number as people write it: sign, thousands separated by commas, decimals, exponent. A sign right after a word, a number or
 * a bracket is an operator: of `5-3` the last number is 3.
 */
const written =
  /(?:(?<![\w.)\]])[-+−])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d{1,3}(?!\d))?/g;

/** 1 when the last number of the completion's text is the last number of `prompt.answer`, else 0, also where the text has none. */
export const numericReward: RewardPlugin = {
  name: "numeric",
  create(config, path) {
    const { name, tolerance, relativeTolerance } = parseConfig(NumericRewardConfig, config, path);
    return {
      name,
      score(prompt, { text }) {
        const wanted = lastNumber(answerOf(prompt));
        if (wanted === undefined) {
          throw new TreadleError(
            "learning.reward-failed",
            `the answer '${prompt.answer}' of prompt '${prompt.id}' has no number: give it one, or use the reward 'exact'`,
          );
        }
        const given = lastNumber(text);
        if (given === undefined) return 0;
        if (decimal(given) === decimal(wanted)) return 1;
        const most = Math.max(tolerance, relativeTolerance * Math.abs(Number(wanted)));
        return most > 0 && Math.abs(Number(given) - Number(wanted)) <= most ? 1 : 0;
      },
    };
  },
};

/** The last number of a text, as JavaScript writes it. */
export function lastNumber(text: string): string | undefined {
  return text.match(written)?.at(-1)?.replaceAll(",", "").replace("−", "-");
}

/** One text for one value: `007.50`, `7.5` and `75e-1` are the same, however many digits they have. */
function decimal(text: string): string {
  const [, sign = "", whole = "", fraction = "", exponent = "0"] =
    /^([-+]?)(\d*)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$/.exec(text) ?? [];
  const digits = (whole + fraction).replace(/^0+/, "");
  // Not by an expression: of many zeros that others follow it would take the square of their number.
  let length = digits.length;
  while (digits[length - 1] === "0") length--;
  const significant = digits.slice(0, length);
  if (significant === "") return "0";
  const places = Number(exponent) - fraction.length + (digits.length - significant.length);
  return `${sign === "-" ? "-" : ""}${significant}e${places}`;
}
