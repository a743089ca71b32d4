/** What the sub-commands of `simulate` have in common: a scenario by name or from a file, and a seed. */
import { readConfigFile } from "@treadle/runtime/runner";
import { Command } from "commander";

/** A sub-command with `--scenario` and `--seed`. */
export function scenarioCommand(name: string, scenarios: Readonly<Record<string, object>>, usual: string): Command {
  return new Command(name)
    .option("--scenario <name|file>", `one of ${Object.keys(scenarios).join(", ")}, or a YAML file`, usual)
    .option("--seed <number>", "equal seeds give equal figures");
}

/** `simulate` has some of these flags as well, and takes them before its sub-command sees them. */
export function scenarioFlags<Flags extends { readonly seed?: string | undefined }>(command: Command): Flags {
  const flags = command.optsWithGlobals<Flags>();
  const isSeedGiven = command.getOptionValueSourceWithGlobals("seed") === "cli";
  return isSeedGiven ? flags : { ...flags, seed: undefined };
}

/** Of the scenario of that name, or of the file; not validated. */
export async function scenarioValues(scenarios: Readonly<Record<string, object>>, chosen: string): Promise<object> {
  const named = Object.entries(scenarios).find(([name]) => name === chosen)?.[1];
  return named ?? ((await readConfigFile(chosen)) as object);
}
