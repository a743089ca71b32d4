/** Commands as data: all that help, completion and misspelt names need, without what the commands are made of. */
import { Argument, Command, Option } from "commander";

type Described = {
  readonly description: string;
  readonly default?: unknown;
  readonly choices?: readonly string[];
};

export type CommandManifest = {
  readonly name: string;
  readonly description: string;
  /** as usage has them: `<workflow>`, `[run]` */
  readonly arguments: readonly (Described & { readonly term: string })[];
  readonly options: readonly (Described & {
    readonly flags: string;
    readonly env?: string;
    readonly isHidden?: true;
  })[];
  readonly commands: readonly CommandManifest[];
};

/** What it does is nowhere here: whoever runs a command loads that. */
export function commandOf({ name, description, arguments: taken, options, commands }: CommandManifest): Command {
  const command = new Command(name).description(description);
  for (const each of taken) {
    const argument = new Argument(each.term, each.description);
    if (each.choices) argument.choices(each.choices);
    if (each.default !== undefined) argument.default(each.default);
    command.addArgument(argument);
  }
  for (const each of options) {
    const option = new Option(each.flags, each.description).hideHelp(each.isHidden === true);
    if (each.choices) option.choices(each.choices);
    if (each.default !== undefined) option.default(each.default);
    if (each.env !== undefined) option.env(each.env);
    command.addOption(option);
  }
  if (taken.length > 0) command.action(() => {}); // commander offers 'help <command>' where a group takes no arguments
  for (const each of commands) command.addCommand(commandOf(each));
  return command;
}
