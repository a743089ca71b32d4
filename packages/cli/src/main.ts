/** The command line of Treadle. Exit codes: 0 done, 1 failed, 2 misuse, 130 ended by the user. */
import { readFileSync } from "node:fs";
import { TreadleError } from "@treadle/contracts";
import { Command, CommanderError } from "commander";
import { actionsCommand } from "./commands/actions.ts";
import { benchCommand } from "./commands/bench.ts";
import { compareCommand } from "./commands/compare.ts";
import { doctorCommand } from "./commands/doctor.ts";
import { logsCommand } from "./commands/logs.ts";
import { graphCommand, profileCommand } from "./commands/measure.ts";
import { nodeCommand } from "./commands/node.ts";
import { planCommand } from "./commands/plan.ts";
import { reportCommand } from "./commands/report.ts";
import { resumeCommand, runCommand } from "./commands/run.ts";
import { runsCommand } from "./commands/runs.ts";
import { simulateCommand } from "./commands/simulate.ts";
import { solveCommand } from "./commands/solve.ts";
import { statusCommand } from "./commands/status.ts";
import { stopCommand } from "./commands/stop.ts";
import { traceCommand } from "./commands/trace.ts";
import { validateCommand } from "./commands/validate.ts";
import { renderError } from "./view/error.ts";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  version: string;
};

const program = new Command("treadle")
  .description("reinforcement learning from cooperating worker processes")
  .version(version)
  .option("--verbose", "stack traces with errors")
  .exitOverride()
  .showSuggestionAfterError()
  .showHelpAfterError("('treadle --help' lists the commands)");

for (const command of [
  runCommand,
  resumeCommand,
  validateCommand,
  graphCommand,
  profileCommand,
  compareCommand,
  runsCommand,
  nodeCommand,
  statusCommand,
  logsCommand,
  stopCommand,
  traceCommand,
  actionsCommand,
  planCommand,
  reportCommand,
  doctorCommand,
  simulateCommand,
  solveCommand,
  benchCommand,
]) {
  program.addCommand(command().copyInheritedSettings(program));
}

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = exitCodeOf(error);
  if (!(error instanceof CommanderError)) {
    const verbose = program.opts<{ verbose?: boolean }>().verbose === true;
    process.stderr.write(`${renderError(error, { verbose, colour: process.stderr.isTTY })}\n`);
  }
}

function exitCodeOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
  if (!(error instanceof TreadleError)) return 1;
  if (error.disposition === "misuse") return 2;
  return error.disposition === "cancelled" ? 130 : 1;
}
