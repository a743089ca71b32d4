/** The tree of commands, with nothing of it run. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { packageFolder } from "@treadle/contracts/package-folder";
import { Command } from "commander";

const { version } = JSON.parse(readFileSync(join(packageFolder(import.meta.url), "package.json"), "utf8")) as {
  version: string;
};

/** Each is loaded when it is asked for: what all of them import takes longer to load than most of them run. */
const commands: Readonly<Record<string, () => Promise<Command>>> = {
  init: async () => (await import("./commands/init.ts")).initCommand(),
  run: async () => (await import("./commands/run.ts")).runCommand(),
  resume: async () => (await import("./commands/run.ts")).resumeCommand(),
  validate: async () => (await import("./commands/validate.ts")).validateCommand(),
  schema: async () => (await import("./commands/schema.ts")).schemaCommand(),
  graph: async () => (await import("./commands/measure.ts")).graphCommand(),
  profile: async () => (await import("./commands/measure.ts")).profileCommand(),
  compare: async () => (await import("./commands/compare.ts")).compareCommand(),
  multiplex: async () => (await import("./commands/multiplex.ts")).multiplexCommand(),
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

/** With the command that is asked for alone; with all of them for help and misspelt commands. */
export async function createProgram(asked?: string): Promise<Command> {
  const program = new Command("treadle")
    .description("reinforcement learning from cooperating worker processes")
    .version(version)
    .option("--verbose", "stack traces with errors")
    .exitOverride()
    .showSuggestionAfterError()
    .showHelpAfterError("('treadle --help' lists the commands)");
  const isKnown = asked !== undefined && Object.hasOwn(commands, asked);
  for (const load of isKnown ? [commands[asked]] : Object.values(commands)) {
    if (load) program.addCommand((await load()).copyInheritedSettings(program));
  }
  if (!isKnown) (await import("./completion.ts")).addCompletion(program);
  return program;
}
