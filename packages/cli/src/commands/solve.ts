import { text } from "node:stream/consumers";
import { problems as actions } from "@treadle/actions/state-machines";
import { type Problem, TreadleError } from "@treadle/contracts";
import { problems as multiplexer } from "@treadle/multiplexer";
import { problems as planner } from "@treadle/planner";
import { problems as trajectories } from "@treadle/trajectories";
import { Command, Option } from "commander";
import { singleLine } from "../view/text.ts";
import { realNumber } from "./number-flags.ts";

const problems: Readonly<Record<string, Problem>> = { ...planner, ...trajectories, ...actions, ...multiplexer };

type SolveFlags = {
  readonly method?: string;
  readonly order?: string;
  readonly deadlineMs?: string;
  readonly seed?: string;
};

/** Exit 0 with an answer, "infeasible" included; 2 with one line on standard error for bad input. */
export function solveCommand(): Command {
  return new Command("solve")
    .description("answers one planning problem: a JSON object on standard input, one on standard output")
    .argument("<problem>", `one of ${Object.keys(problems).join(", ")}`)
    .option("--method <name>", "the algorithm; an unknown name lists those there are")
    .addOption(new Option("--order <order>", "of allocate: whether degrees are sorted").choices(["sorted", "any"]))
    .option("--deadline-ms <number>", "stop after this long with the best answer so far and a proven bound")
    .option("--seed <number>", "of methods that draw random numbers")
    .action(async (name: string, flags: SolveFlags) => {
      try {
        const answer = choose(name).solve(parse(await text(process.stdin)), {
          method: flags.method,
          deadlineMs: atLeastZero("--deadline-ms", flags.deadlineMs),
          seed: atLeastZero("--seed", flags.seed),
          nowMs: () => performance.now(),
          ...(flags.order === undefined ? {} : { flags: { order: flags.order } }),
        });
        process.stdout.write(`${JSON.stringify(answer)}\n`);
      } catch (error) {
        if (!(error instanceof TreadleError) || error.disposition !== "misuse") throw error;
        process.stderr.write(`${singleLine(error.message)}\n`);
        process.exitCode = 2;
      }
    });
}

function choose(name: string): Problem {
  const problem = Object.hasOwn(problems, name) ? problems[name] : undefined;
  if (problem) return problem;
  throw new TreadleError(
    "problem.invalid",
    `problem '${name}' is not known; allowed are ${Object.keys(problems).join(", ")}`,
  );
}

function parse(input: string): unknown {
  try {
    return JSON.parse(input);
  } catch (cause) {
    throw new TreadleError("problem.invalid", `standard input is no JSON object: ${(cause as Error).message}`);
  }
}

const atLeastZero = (flag: string, text: string | undefined): number | undefined =>
  text === undefined ? undefined : realNumber(flag, text, { least: 0 });
