import { loadProgram } from "../../packages/cli/src/program.ts";
import { cell, code, table } from "./table.ts";

type Command = Awaited<ReturnType<typeof loadProgram>>;

/** Every command with its arguments and options, from commander's own tree. */
export async function commandLinePage(): Promise<string> {
  const program = await loadProgram();
  return [
    "# Command line",
    "",
    "Exit codes: 0 done, 1 failed, 2 misuse, 3 a node's name is taken, 130 ended by the user. Every command takes `--help`, and",
    "`treadle --verbose <command>` prints the stack with an error.",
    ...program.commands.flatMap((command) => section(command, "treadle", "##")),
    "",
  ].join("\n");
}

function section(command: Command, parent: string, heading: string): string[] {
  const name = `${parent} ${command.name()}`;
  const lines = ["", `${heading} ${name}`, "", `${sentence(command.description())}`];
  const options = command.options.filter(({ hidden }) => !hidden);
  // A group has no action of its own: its commands follow.
  if (command.commands.length === 0 || options.length > 0 || command.registeredArguments.length > 0) {
    lines.push("", "```text", `${name} ${command.usage()}`.trim(), "```");
  }
  if (command.registeredArguments.length > 0) {
    const rows = command.registeredArguments.map((argument) => [
      code(argument.required ? `<${argument.name()}>` : `[${argument.name()}]`),
      cell(argument.description),
      shown(argument.defaultValue),
    ]);
    lines.push("", table(["argument", "meaning", "default"], rows));
  }
  if (options.length > 0) {
    const rows = options.map((option) => [code(option.flags), cell(meaning(option)), shown(option.defaultValue)]);
    lines.push("", table(["option", "meaning", "default"], rows));
  }
  return [...lines, ...command.commands.flatMap((inner) => section(inner as Command, name, `${heading}#`))];
}

function meaning({ description, argChoices, envVar, mandatory }: Command["options"][number]): string {
  const choices = argChoices ? `; one of ${argChoices.join(", ")}` : "";
  const variable = envVar ? `; or the variable ${envVar}` : "";
  return `${description}${choices}${variable}${mandatory ? " (required)" : ""}`;
}

function shown(value: unknown): string {
  const isEmpty = value === undefined || (typeof value === "object" && Object.keys(value as object).length === 0);
  return isEmpty ? "" : code(String(value));
}

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
