/** `treadle multiplex`: several runs at once, which take turns on the devices of this machine. */
import { TreadleError } from "@treadle/contracts";
import { validateWorkflow } from "@treadle/runtime/runner";
import { Command } from "commander";
import { multiplex } from "../multiplex/multiplex.ts";
import { readRunSpecs } from "../multiplex/run-specs.ts";
import { multiplexTable } from "../view/multiplex-table.ts";
import { startMultiplexView } from "../view/multiplex-view.ts";
import { interruptible } from "./interruptible.ts";
import { realNumber, wholeNumber } from "./number-flags.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";
import { repeated, withOverrides } from "./settings.ts";

type MultiplexFlags = {
  readonly set: readonly string[];
  readonly config: readonly string[];
  readonly runs?: string;
  readonly residents?: string;
  readonly turn: string;
  readonly patience: string;
  readonly yieldLimit: string;
  readonly beatLimit: string;
  readonly plain?: boolean;
  readonly json?: boolean;
};

export function multiplexCommand(): Command {
  return withOverrides(new Command("multiplex"))
    .description("runs several workflows at once, which take turns on the devices of this machine")
    .argument("<workflows...>", "folders of the workflows, with names where two are alike, as one=workflows/bandit")
    .option("--config <name=file>", "configuration file of a run; may be repeated", repeated, [])
    .option("--runs <folder>", "where runs keep their folders (default: runs/ of the project)")
    .option("--residents <count>", "runs that keep memory on a device together; others wait (default: all of them)")
    .option("--turn <seconds>", "how long a run of weight 1 keeps devices that others wait for", "10")
    .option("--patience <seconds>", "whoever has waited for longer is not overtaken by a larger priority", "60")
    .option("--yield-limit <seconds>", "a run that has not yielded so long after it had to is ended", "600")
    .option("--beat-limit <seconds>", "a run that gives no sign of life for so long is ended", "15")
    .option("--plain", "plain lines instead of the live view")
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflows: string[], flags: MultiplexFlags) => {
      const specs = readRunSpecs(workflows, flags);
      const milliseconds = (flag: string, text: string) => realNumber(flag, text, { above: 0 }) * 1000;
      const residents = wholeNumber("--residents", flags.residents ?? String(specs.length), { least: 1, most: 1000 });
      const limits = {
        residents,
        turnMs: milliseconds("--turn", flags.turn),
        patienceMs: milliseconds("--patience", flags.patience),
        yieldMs: milliseconds("--yield-limit", flags.yieldLimit),
        beatLimitMs: milliseconds("--beat-limit", flags.beatLimit),
      };
      const projectRoot = findProjectRoot();
      // What is wrong with one is said before any begins.
      for (const { name, ...spec } of specs) await validateWorkflow({ ...spec, projectRoot }).catch(inRun(name));
      const names = specs.map(({ name }) => name);
      const view = startMultiplexView(names, { json: flags.json === true, plain: flags.plain === true });
      const result = await interruptible(
        (signals) =>
          multiplex({
            ...{ specs, limits, script: process.argv[1] as string, ...signals },
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
