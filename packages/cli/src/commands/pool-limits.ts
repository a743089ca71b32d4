/** The options by which commands say how runs take turns. */
import { TreadleError } from "@treadle/contracts";
import { liveMethods } from "@treadle/multiplexer";
import { type PoolLimits, type SharingOptions, slowdownPath } from "@treadle/runtime/runner";
import type { Command } from "commander";
import { realNumber, wholeNumber } from "./number-flags.ts";

export type PoolLimitFlags = {
  readonly turn: string;
  readonly patience: string;
  readonly yieldLimit: string;
  readonly beatLimit: string;
  readonly method: string;
  readonly window: string;
};

export const withPoolLimits = (command: Command, { beatLimit }: { readonly beatLimit: string }): Command =>
  command
    .option("--turn <seconds>", "how long a run of weight 1 keeps devices that others wait for", "10")
    .option("--patience <seconds>", "a run that has waited for longer is not overtaken by one of larger priority", "60")
    .option("--yield-limit <seconds>", "ends a run that has not yielded this long after it had to", "600")
    .option("--beat-limit <seconds>", "ends a run that gives no sign of life for this long", beatLimit)
    .option(
      "--method <name>",
      `how is decided which runs of 'pool.share: always' compute beside each other: ${liveMethods.join(", ")}`,
      "greedy",
    )
    .option("--window <decisions>", "how many decisions 'lookahead' follows", "3");

/** Throws `problem.invalid`. */
export function sharingOptions({ method, window }: PoolLimitFlags, projectRoot: string): SharingOptions {
  const known = liveMethods.find((name) => name === method);
  if (known === undefined)
    throw new TreadleError("problem.invalid", `--method is '${method}'; expected one of ${liveMethods.join(", ")}`);
  return {
    method: known,
    window: wholeNumber("--window", window, { least: 1, most: 16 }),
    slowdowns: slowdownPath(projectRoot),
  };
}

/** Throws `problem.invalid`. */
export function poolLimits(flags: PoolLimitFlags & { readonly residents: string }): PoolLimits {
  const milliseconds = (flag: string, text: string) => realNumber(flag, text, { above: 0 }) * 1000;
  return {
    residents: wholeNumber("--residents", flags.residents, { least: 1, most: 1000 }),
    turnMs: milliseconds("--turn", flags.turn),
    patienceMs: milliseconds("--patience", flags.patience),
    yieldMs: milliseconds("--yield-limit", flags.yieldLimit),
    beatLimitMs: milliseconds("--beat-limit", flags.beatLimit),
  };
}
