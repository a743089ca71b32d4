/** The options by which a command takes a workflow's configuration. */
import { type Command, Option } from "commander";

/** For options that may be given several times. */
export const repeated = (value: string, previous: readonly string[]): readonly string[] => [...previous, value];

export function withSettings(command: Command): Command {
  return command.addOption(
    new Option("--set <key.path=value>", "overrides a value of the configuration; may be repeated")
      .argParser(repeated)
      .default([]),
  );
}
