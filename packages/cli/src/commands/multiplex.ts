/** `treadle multiplex`: several runs at once, which share the devices of this machine. */
import { TreadleError } from "@treadle/contracts";
import { validateWorkflow } from "@treadle/runtime/runner";
import { Command } from "commander";
import { multiplex } from "../multiplex/multiplex.ts";
import { readRunSpecs } from "../multiplex/run-specs.ts";
import { multiplexTable } from "../view/multiplex-table.ts";
import { startMultiplexView } from "../view/multiplex-view.ts";
import { interruptible } from "./interruptible.ts";
import { type PoolLimitFlags, poolLimits, sharingOptions, withPoolLimits } from "./pool-limits.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";
import { repeated, withOverrides } from "./settings.ts";

type MultiplexFlags = PoolLimitFlags & {
  readonly set: readonly string[];
  readonly config: readonly string[];
  readonly runs?: string;
  readonly residents?: string;
  readonly plain?: boolean;
  readonly json?: boolean;
};

export function multiplexCommand(): Command {
  return withPoolLimits(withOverrides(new Command("multiplex")), { beatLimit: "15" })
    .description("runs several workflows at once, which share the devices of this machine")
    .argument("<workflows...>", "folders of the workflows, with names where two are alike, as one=workflows/bandit")
    .option("--config <name=file>", "configuration file of a run; may be repeated", repeated, [])
    .option("--runs <folder>", "where runs keep their folders (default: runs/ of the project)")
    .option("--residents <count>", "runs that keep memory on a device together; others wait (default: all of them)")
    .option("--plain", "plain lines instead of the live view")
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflows: string[], flags: MultiplexFlags) => {
      const specs = readRunSpecs(workflows, flags);
      const limits = poolLimits({ ...flags, residents: flags.residents ?? String(specs.length) });
      const projectRoot = findProjectRoot();
      // What is wrong with one is said before any begins.
      for (const { name, ...spec } of specs) await validateWorkflow({ ...spec, projectRoot }).catch(inRun(name));
      const names = specs.map(({ name }) => name);
      const view = startMultiplexView(names, { json: flags.json === true, plain: flags.plain === true });
      const result = await interruptible(
        (signals) =>
          multiplex({
            ...{
              specs,
              limits,
              sharing: sharingOptions(flags, projectRoot),
              script: process.argv[1] as string,
              ...signals,
            },
            runsRoot: flags.runs ?? defaultRunsRoot(projectRoot),
            ...view,
          }),
        () => view.onNotice("all", "stopping after the steps under way; press Ctrl-C again to end at once"),
      ).finally(view.close);
      process.stdout.write(`${flags.json ? JSON.stringify(result) : multiplexTable(result)}\n`);
      if (result.runs.some(({ outcome }) => outcome === "failed" || outcome === "ended")) process.exitCode = 1;
      else if (result.runs.some(({ outcome }) => outcome === "stopped")) process.exitCode = 130;
    });
}

const inRun = (name: string) => (error: unknown) => {
  if (!(error instanceof TreadleError)) throw error;
  throw new TreadleError(error.code, `run '${name}': ${error.message}`, { cause: error });
};
