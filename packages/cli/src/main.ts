/** The command line of Treadle. Exit codes: 0 done, 1 failed, 2 misuse, 130 ended by the user. */
import { readFileSync } from "node:fs";
import { TreadleError } from "@treadle/contracts";
import { Command, CommanderError } from "commander";
import { renderError } from "./view/error.ts";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  version: string;
};

// What runs, agents and keys write is their owner's alone, also what worker processes write, which inherit it.
process.umask(0o077);

const program = new Command("treadle")
  .description("reinforcement learning from cooperating worker processes")
  .version(version)
  .option("--verbose", "stack traces with errors")
  .exitOverride()
  .showSuggestionAfterError()
  .showHelpAfterError("('treadle --help' lists the commands)");

/** Each is loaded when it is asked for: what all of them import takes longer to load than most of them run. */
const commands: Readonly<Record<string, () => Promise<Command>>> = {
  run: async () => (await import("./commands/run.ts")).runCommand(),
  resume: async () => (await import("./commands/run.ts")).resumeCommand(),
  validate: async () => (await import("./commands/validate.ts")).validateCommand(),
  graph: async () => (await import("./commands/measure.ts")).graphCommand(),
  profile: async () => (await import("./commands/measure.ts")).profileCommand(),
  compare: async () => (await import("./commands/compare.ts")).compareCommand(),
  runs: async () => (await import("./commands/runs.ts")).runsCommand(),
  cluster: async () => (await import("./commands/cluster.ts")).clusterCommand(),
  node: async () => (await import("./commands/node.ts")).nodeCommand(),
  status: async () => (await import("./commands/status.ts")).statusCommand(),
  logs: async () => (await import("./commands/logs.ts")).logsCommand(),
  stop: async () => (await import("./commands/stop.ts")).stopCommand(),
  replay: async () => (await import("./commands/replay.ts")).replayCommand(),
  trace: async () => (await import("./commands/trace.ts")).traceCommand(),
  actions: async () => (await import("./commands/actions.ts")).actionsCommand(),
  plan: async () => (await import("./commands/plan.ts")).planCommand(),
  dashboard: async () => (await import("./commands/dashboard.ts")).dashboardCommand(),
  report: async () => (await import("./commands/report.ts")).reportCommand(),
  doctor: async () => (await import("./commands/doctor.ts")).doctorCommand(),
  simulate: async () => (await import("./commands/simulate.ts")).simulateCommand(),
  solve: async () => (await import("./commands/solve.ts")).solveCommand(),
  bench: async () => (await import("./commands/bench.ts")).benchCommand(),
};

/** One of its own: whoever restarts a node agent that ended must not restart this one (`deploy/systemd`). */
const nameTakenCode = 3;

// Help and misspelt commands need all of them.
const asked = process.argv.slice(2).find((word) => !word.startsWith("-"));
const isKnown = asked !== undefined && Object.hasOwn(commands, asked);
for (const load of isKnown ? [commands[asked]] : Object.values(commands)) {
  if (load) program.addCommand((await load()).copyInheritedSettings(program));
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
  if (error.code === "node.name-taken") return nameTakenCode;
  if (error.disposition === "misuse") return 2;
  return error.disposition === "cancelled" ? 130 : 1;
}
