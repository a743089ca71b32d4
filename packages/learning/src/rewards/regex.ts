import { createRequire } from "node:module";
import { TreadleError } from "@treadle/contracts";
import type { RE2JS } from "re2js";
import { z } from "zod";
import { parseConfig } from "../config.ts";
import { exactReward } from "./exact.ts";
import { numericReward } from "./numeric.ts";
import type { Reward, RewardPlugin } from "./reward.ts";

const RegexRewardConfig = z.strictObject({
  name: z.literal("regex"),
  /** of RE2, which takes time in proportion to the text: no backreferences and no lookaround */
  pattern: z.string().min(1),
  /** number or name of the group that is compared; default: the first, or the whole match where there is none */
  group: z.union([z.int().nonnegative(), z.string().min(1)]).optional(),
  /** which match counts */
  match: z.enum(["first", "last"]).default("last"),
  /** the reward that compares the group with the answer, `{ name: exact, … }` or `{ name: numeric, … }`; null: any match is right */
  compare: z
    .looseObject({ name: z.enum(["exact", "numeric"]) })
    .nullable()
    .default({ name: "exact" }),
});

/** Takes long to load, and most processes have no pattern. */
const re2 = (): typeof import("re2js") => createRequire(import.meta.url)("re2js");

const comparisons = { exact: exactReward, numeric: numericReward };

/** What a group of a regular expression finds in the completion's text, compared with the answer; 0 where nothing matches. */
export const regexReward: RewardPlugin = {
  name: "regex",
  create(config, path) {
    const { name, pattern, group: asked, match, compare } = parseConfig(RegexRewardConfig, config, path);
    const expression = compile(pattern, path);
    const group = groupOf(expression, asked, path);
    const compared: Reward | undefined = compare
      ? comparisons[compare.name].create(compare, `${path}.compare`)
      : undefined;
    return {
      name,
      score(prompt, completion, signal) {
        const found = expression.matcher(completion.text);
        let text: string | null | undefined;
        while (found.find()) {
          text = found.group(group);
          if (match === "first") break;
        }
        if (text === undefined || text === null) return 0;
        return compared ? compared.score(prompt, { ...completion, text }, signal) : 1;
      },
    };
  },
};

function compile(pattern: string, path: string): RE2JS {
  const { RE2JS, RE2JSException } = re2();
  try {
    return RE2JS.compile(pattern);
  } catch (error) {
    if (!(error instanceof RE2JSException)) throw error;
    throw new TreadleError(
      "config.invalid",
      `${path}.pattern is '${pattern}': allowed is a regular expression of RE2 (${error.message}); backreferences and lookaround are not, so capture a group instead`,
    );
  }
}

function groupOf(expression: RE2JS, asked: string | number | undefined, path: string): string | number {
  const numGroups = expression.groupCount();
  if (asked === undefined) return Math.min(1, numGroups);
  const names = Object.keys(expression.namedGroups());
  if (typeof asked === "number" ? asked <= numGroups : names.includes(asked)) return asked;
  const allowed = [`0 to ${numGroups}`, ...names.map((name) => `'${name}'`)].join(", ");
  throw new TreadleError("config.invalid", `${path}.group is '${asked}': allowed is ${allowed}, the pattern's groups`);
}
