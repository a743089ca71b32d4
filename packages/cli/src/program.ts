/** The tree of commands, with nothing of it run. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { packageFolder } from "@treadle/contracts/package-folder";
import { Command } from "commander";

const { version } = JSON.parse(readFileSync(join(packageFolder(import.meta.url), "package.json"), "utf8")) as {
  version: string;
};

const beginning = `
Begin with:
  treadle init <folder>                  writes a project: a workflow, a worker, a test, a configuration
  treadle run <workflow>                 runs it, with a live view on a terminal
  treadle dashboard                      shows its runs in a browser`;

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
  pool: async () => (await import("./commands/pool.ts")).poolCommand(),
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
  export: async () => (await import("./commands/export.ts")).exportCommand(),
  mismatch: async () => (await import("./commands/mismatch.ts")).mismatchCommand(),
  report: async () => (await import("./commands/report.ts")).reportCommand(),
  doctor: async () => (await import("./commands/doctor.ts")).doctorCommand(),
  simulate: async () => (await import("./commands/simulate.ts")).simulateCommand(),
  solve: async () => (await import("./commands/solve.ts")).solveCommand(),
  bench: async () => (await import("./commands/bench.ts")).benchCommand(),
};

/**
 * With the command that is asked for alone; else with what is known of all of them, which is enough for help, completion, and
 * names of no command.
 */
export async function createProgram(asked?: string): Promise<Command> {
  const load = asked !== undefined && Object.hasOwn(commands, asked) ? commands[asked] : undefined;
  if (load) return withCommands([await load()]);
  const [{ commandOf }, { commandManifests }] = await Promise.all([
    import("./command-manifest.ts"),
    import("./generated/commands.ts"),
  ]);
  return withCompletion(withCommands(commandManifests.map(commandOf)));
}

/** With every command as it runs. */
export async function loadProgram(): Promise<Command> {
  return withCompletion(withCommands(await loadCommands()));
}

export const loadCommands = (): Promise<Command[]> => Promise.all(Object.values(commands).map((load) => load()));

function withCommands(own: readonly Command[]): Command {
  const program = new Command("treadle")
    .description("reinforcement learning from cooperating worker processes")
    .version(version)
    .option("--verbose", "stack traces with errors")
    .exitOverride()
    .showSuggestionAfterError()
    .showHelpAfterError("('treadle --help' lists the commands)")
    .addHelpText("after", beginning);
  for (const command of own) program.addCommand(command.copyInheritedSettings(program));
  return program;
}

async function withCompletion(program: Command): Promise<Command> {
  (await import("./completion.ts")).addCompletion(program);
  return program;
}
