/** `treadle simulate rollout`: schedulers, placements and degrees of a rollout, with the predictor in the loop. */
import { validateConfig } from "@treadle/runtime/runner";
import {
  compareParts,
  compareRollouts,
  type PartsComparison,
  type RolloutComparison,
  RolloutScenario,
  reportPredictors,
  rolloutScenarios,
  type WorkloadPredictor,
} from "@treadle/simulation";
import type { Command } from "commander";
import {
  degreesProposed,
  partsHeader,
  partsOfPaper,
  partsRow,
  partsSummary,
  predictorTable,
  rolloutHeader,
  rolloutRow,
  rolloutSummary,
} from "../view/rollout-comparison-table.ts";
import { wholeNumber } from "./number-flags.ts";
import { scenarioCommand, scenarioFlags, scenarioValues } from "./scenario.ts";

type Flags = {
  readonly scenario: string;
  readonly seed?: string | undefined;
  readonly parts?: string | true;
  readonly json?: boolean;
};

const usualSeeds = "2";

export function simulateRolloutCommand(): Command {
  return scenarioCommand("rollout", rolloutScenarios, "small")
    .description(
      "multi-turn rollouts on virtual time: schedulers, placements and degrees, with the predictor in the loop",
    )
    .option(
      "--parts [seeds]",
      `all parts on, and each left out, with the shipped predictor; beside what perfect predictions reach and what no way exceeds; over so many seeds from --seed on (default: ${usualSeeds})`,
    )
    .option("--json", "prints one object")
    .action(async (_: Flags, command: Command) => {
      const flags = scenarioFlags<Flags>(command);
      const scenario = await readScenario(flags);
      const startedMs = performance.now();
      const print = (text: string) => void (flags.json || process.stdout.write(`${text}\n`));
      const took = () =>
        print(`\nsimulated in ${Math.round((performance.now() - startedMs) / 1000)} s with seed ${scenario.seed}`);
      if (flags.parts !== undefined) {
        const numSeeds = wholeNumber("--parts", flags.parts === true ? usualSeeds : flags.parts, { least: 1 });
        const parts: PartsComparison[] = [];
        print(
          `tokens a second; the rest as ratios to it, or of all parts to the best simple way in hindsight\n${partsHeader}`,
        );
        for (let seed = scenario.seed; seed < scenario.seed + numSeeds; seed++)
          for (const comparison of compareParts({ ...scenario, seed })) {
            parts.push(comparison);
            print(partsRow(comparison));
          }
        print(`\n${partsSummary(parts)}\n\n${partsOfPaper}`);
        took();
        if (flags.json) process.stdout.write(`${JSON.stringify({ scenario, parts })}\n`);
        return;
      }
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
      const proposed = degreesProposed(comparisons);
      if (proposed.length > 0) print(`\ndegrees to configure, by what the predictor foretold\n${proposed.join("\n")}`);
      took();
      if (flags.json) process.stdout.write(`${JSON.stringify({ scenario, predictors, comparisons })}\n`);
    });
}

async function readScenario(flags: Flags): Promise<RolloutScenario> {
  const values = await scenarioValues(rolloutScenarios, flags.scenario);
  const seed = flags.seed === undefined ? {} : { seed: wholeNumber("--seed", flags.seed) };
  return validateConfig(RolloutScenario, { ...values, ...seed });
}
