/** `treadle simulate multiplex`: runs that share devices by leases, next to other ways to have them both. */
import { validateConfig } from "@treadle/runtime/runner";
import { compareMultiplex, type MultiplexComparison, MultiplexScenario, multiplexScenarios } from "@treadle/simulation";
import type { Command } from "commander";
import { multiplexHeader, multiplexRow, multiplexSummary } from "../view/multiplex-comparison-table.ts";
import { wholeNumber } from "./number-flags.ts";
import { scenarioCommand, scenarioFlags, scenarioValues } from "./scenario.ts";

type Flags = { readonly scenario: string; readonly seed?: string | undefined; readonly json?: boolean };

export function simulateMultiplexCommand(): Command {
  return scenarioCommand("multiplex", multiplexScenarios, "small")
    .description("several runs on the same devices on virtual time: by leases, by whole steps, on parts, one by one")
    .option("--json", "prints one object")
    .action(async (_: Flags, command: Command) => {
      const flags = scenarioFlags<Flags>(command);
      const values = await scenarioValues(multiplexScenarios, flags.scenario);
      const seed = flags.seed === undefined ? {} : { seed: wholeNumber("--seed", flags.seed) };
      const scenario = validateConfig(MultiplexScenario, { ...values, ...seed });
      const startedMs = performance.now();
      const print = (text: string) => void (flags.json || process.stdout.write(`${text}\n`));
      const comparisons: MultiplexComparison[] = [];
      print(
        `seconds one run after the other; the rest as ratios, medians of ${scenario.draws} draws\n${multiplexHeader}`,
      );
      for (const comparison of compareMultiplex(scenario)) {
        comparisons.push(comparison);
        print(multiplexRow(comparison));
      }
      print(`\n${multiplexSummary(comparisons)}`);
      print(`\nsimulated in ${Math.round((performance.now() - startedMs) / 1000)} s with seed ${scenario.seed}`);
      if (flags.json) process.stdout.write(`${JSON.stringify({ scenario, comparisons })}\n`);
    });
}
