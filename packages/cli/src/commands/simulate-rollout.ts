/** `treadle simulate rollout`: schedulers, placements and degrees of a rollout, with the predictor in the loop. */
import { readConfigFile, validateConfig } from "@treadle/runtime/runner";
import {
  compareRollouts,
  type RolloutComparison,
  RolloutScenario,
  reportPredictors,
  rolloutScenarios,
  type WorkloadPredictor,
} from "@treadle/simulation";
import { Command } from "commander";
import { predictorTable, rolloutHeader, rolloutRow, rolloutSummary } from "../view/rollout-comparison-table.ts";
import { wholeNumber } from "./number-flags.ts";

type Flags = { readonly scenario: string; readonly seed?: string | undefined; readonly json?: boolean };

export function simulateRolloutCommand(): Command {
  const names = Object.keys(rolloutScenarios).join(", ");
  return new Command("rollout")
    .description(
      "multi-turn rollouts on virtual time: schedulers, placements and degrees, with the predictor in the loop",
    )
    .option("--scenario <name|file>", `one of ${names}, or a YAML file`, "small")
    .option("--seed <number>", "equal seeds give equal figures")
    .option("--json", "prints one object")
    .action(async (_: Flags, command: Command) => {
      // `simulate` has some of these flags as well, and takes them before its sub-command sees them.
      const flags = command.optsWithGlobals<Flags>();
      const isSeedGiven = command.getOptionValueSourceWithGlobals("seed") === "cli";
      const scenario = await readScenario(isSeedGiven ? flags : { ...flags, seed: undefined });
      const startedMs = performance.now();
      const print = (text: string) => void (flags.json || process.stdout.write(`${text}\n`));
      const predictors: WorkloadPredictor[] = [];
      const comparisons: RolloutComparison[] = [];
      if (scenario.predictions.includes("learned")) {
        predictors.push(...reportPredictors(scenario));
        print(`${predictorTable(predictors)}\n`);
      }
      print(`tokens a second; the rest as ratios to it, or to the best simple way in hindsight\n${rolloutHeader}`);
      for (const comparison of compareRollouts(scenario)) {
        comparisons.push(comparison);
        print(rolloutRow(comparison));
      }
      print(`\n${rolloutSummary(comparisons)}`);
      print(`\nsimulated in ${Math.round((performance.now() - startedMs) / 1000)} s with seed ${scenario.seed}`);
      if (flags.json) process.stdout.write(`${JSON.stringify({ scenario, predictors, comparisons })}\n`);
    });
}

async function readScenario(flags: Flags): Promise<RolloutScenario> {
  const named = Object.entries(rolloutScenarios).find(([name]) => name === flags.scenario)?.[1];
  const values = (named ?? (await readConfigFile(flags.scenario))) as object;
  const seed = flags.seed === undefined ? {} : { seed: wholeNumber("--seed", flags.seed) };
  return validateConfig(RolloutScenario, { ...values, ...seed });
}
