/** `treadle compare`: one workflow in every mode, by one or several configurations, as a table. */
import { basename } from "node:path";
import { TreadleError } from "@treadle/contracts";
import type { CompareOptions } from "@treadle/runtime/runner";
import { Command, Option } from "commander";
import { answerApart } from "../comparison/compare-apart.ts";
import { type ComparedWorkload, compareWorkload } from "../comparison/compared-workload.ts";
import { compareDrawn, type DrawnResult, judgeResultsAgain } from "../comparison/drawn-workloads.ts";
import { compareTable, drawnTable, missPromises, predictionTable, summariseComparison } from "../view/compare-table.ts";
import { printableLines } from "../view/text.ts";
import { interruptible } from "./interruptible.ts";
import { realNumber, wholeNumber } from "./number-flags.ts";
import { findProjectRoot } from "./project.ts";
import { withSettings } from "./settings.ts";

type CompareFlags = {
  readonly config: readonly string[];
  readonly set: readonly string[];
  readonly steps: string;
  readonly precision: string;
  readonly json?: boolean;
  readonly random?: string;
  readonly seed: readonly string[];
  readonly parallel: string;
  readonly repeats: string;
  readonly shrink: string;
  readonly results?: string;
  readonly again?: boolean;
  readonly apart?: boolean;
};

export function compareCommand(): Command {
  return withSettings(new Command("compare"))
    .description("runs a workflow in every mode, as planned and automatically, and compares what a step takes")
    .argument("<workflow>", "folder of the workflow")
    .option("--config <files...>", "configuration files, one workload each (default: config.yaml of the workflow)", [])
    .option("--steps <count>", "steps measured under each plan at least", "8")
    .option(
      "--precision <share>",
      "goes on until the standard error of a step's mean is this share of it, for at most eight times as many steps",
      "0.01",
    )
    .option(
      "--random <count>",
      "draws this many workloads instead, by the workflow's draw.ts, and judges them; ends with 1 where they miss a promise",
    )
    .option("--seed <numbers...>", "seeds of the draws; each draws that many workloads", ["0"])
    .option("--parallel <count>", "drawn workloads that are measured at once", "1")
    .option("--repeats <count>", "times that a plan is measured again where other work disturbed it", "0")
    .option(
      "--shrink <tries>",
      "smaller workloads that are tried where a drawn one misses a limit or does not run",
      "8",
    )
    .option("--results <file>", "keeps what was drawn and measured; what it has is not measured again")
    .option("--again", "predicts and simulates with the present code what --results has; measures nothing")
    .addOption(new Option("--apart", "one drawn workload, for the process that started this one").hideHelp())
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflow: string, flags: CompareFlags, command: Command) => {
      if (flags.apart) return interruptible(answerApart);
      if (flags.again) return compareAgain(workflow, flags);
      if (flags.random !== undefined) return compareRandom(workflow, flags, flags.random);
      const drawn = ["seed", "parallel", "shrink", "results"].find(
        (name) => command.getOptionValueSource(name) === "cli",
      );
      if (drawn !== undefined)
        throw new TreadleError(
          "problem.invalid",
          `--${drawn} is of drawn workloads: add --random, or leave out --${drawn}`,
        );
      const workloads: ComparedWorkload[] = [];
      try {
        await interruptible(async (signals) => {
          for await (const workload of compareAll(workflow, flags, signals)) workloads.push(workload);
        });
      } finally {
        // What was compared before a failure took minutes, and is no worse for it.
        const tables = (): string => `${compareTable(workloads)}\n\n${predictionTable(workloads)}`;
        if (workloads.length > 0) process.stdout.write(`${flags.json ? JSON.stringify(workloads) : tables()}\n`);
      }
    });
}

/** A step is measured in real time, so nobody waits for more. */
const mostSteps = 10_000;
const mostDrawn = 10_000;
const mostParallel = 64;

type Signals = Pick<CompareOptions, "stop" | "kill">;

const optionsOf = (workflow: string, flags: CompareFlags, signals: Signals) => ({
  workflow,
  overrides: flags.set,
  projectRoot: findProjectRoot(),
  steps: wholeNumber("--steps", flags.steps, { least: 1, most: mostSteps }),
  precision: realNumber("--precision", flags.precision, { least: 0 }),
  repeats: wholeNumber("--repeats", flags.repeats),
  ...signals,
});

async function* compareAll(workflow: string, flags: CompareFlags, signals: Signals): AsyncGenerator<ComparedWorkload> {
  const options = optionsOf(workflow, flags, signals);
  for (const configFile of flags.config.length > 0 ? flags.config : [undefined]) {
    const name = configFile ? basename(configFile).replace(/\.ya?ml$/, "") : basename(workflow);
    const workload = await compareWorkload(name, { ...options, configFile });
    if (!flags.json) process.stderr.write(`${printableLines(summariseComparison(workload))}\n`);
    yield workload;
  }
}

async function compareAgain(workflow: string, flags: CompareFlags): Promise<void> {
  const { results: resultsFile, random, config } = flags;
  if (resultsFile === undefined || random !== undefined || config.length > 0)
    throw new TreadleError(
      "problem.invalid",
      "--again needs --results with a file of results, and neither --random nor --config: what it judges is in that file",
    );
  const results: DrawnResult[] = [];
  await interruptible((signals) =>
    judgeResultsAgain({ ...optionsOf(workflow, flags, signals), resultsFile }, (result) => results.push(result)),
  );
  printDrawn(results, flags);
}

function printDrawn(results: readonly DrawnResult[], { json }: CompareFlags): void {
  process.stdout.write(`${json ? JSON.stringify(results) : printableLines(drawnTable(results))}\n`);
  if (missPromises(results)) process.exitCode = 1;
}

async function compareRandom(workflow: string, flags: CompareFlags, random: string): Promise<void> {
  if (flags.config.length > 0)
    throw new TreadleError(
      "problem.invalid",
      "--random draws its workloads: leave out --config, or leave out --random",
    );
  const results: DrawnResult[] = [];
  const count = wholeNumber("--random", random, { least: 1, most: mostDrawn });
  const seeds = [...new Set(flags.seed.map((seed) => wholeNumber("--seed", seed)))];
  const parallel = wholeNumber("--parallel", flags.parallel, { least: 1, most: mostParallel });
  const mostShrinks = wholeNumber("--shrink", flags.shrink);
  try {
    await interruptible((signals) =>
      compareDrawn(
        {
          ...optionsOf(workflow, flags, signals),
          ...{ count, seeds, parallel, mostShrinks, resultsFile: flags.results, script: process.argv[1] as string },
          print: (text) => process.stderr.write(`${text}\n`),
        },
        (result) => {
          results.push(result);
          const { compared, failure, seed, index } = result;
          process.stderr.write(
            `${printableLines(compared ? summariseComparison(compared) : `${seed}-${index} did not run: ${failure}`)}\n`,
          );
        },
      ),
    );
  } finally {
    results.sort((a, b) => seeds.indexOf(a.seed) - seeds.indexOf(b.seed) || a.index - b.index);
    if (results.length > 0) printDrawn(results, flags);
  }
}
