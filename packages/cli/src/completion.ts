/** What a shell completes: commands, options and their choices, by `tab`; here, what arguments may be in this project. */
import { existsSync, readdirSync } from "node:fs";
import { join, relative } from "node:path";
import tab from "@bomb.sh/tab/commander";
import type { Command } from "commander";
import { defaultRunsRoot, findProjectRoot } from "./commands/project.ts";

/** Adds `completion`, which prints a shell's script, and `complete`, which that script calls at every TAB. */
export function addCompletion(program: Command): void {
  const { commands } = tab(program, { completionCommandName: "completion" });
  const own = program.commands.find((command) => command.name() === "completion");
  own?.description("prints what a shell needs to complete commands, options, workflows and runs");
  for (const command of commands.values()) {
    for (const [name, argument] of command.arguments) {
      const values = valuesOf[name];
      if (!values) continue;
      argument.handler = (complete) => {
        for (const value of values()) complete(value, "");
      };
    }
  }
}

/** By the argument's name. */
const valuesOf: Readonly<Record<string, () => readonly string[]>> = {
  workflow: workflows,
  run: runs,
};

/** Folders of workflows, as a user would write them here. */
function workflows(): string[] {
  const root = findProjectRoot();
  const beside = namesIn(join(root, "workflows")).map((name) => join(root, "workflows", name));
  return [root, ...beside]
    .filter((folder) => existsSync(join(folder, "config.yaml")))
    .map((folder) => relative(process.cwd(), folder) || ".");
}

/** The newest first. */
function runs(): string[] {
  return namesIn(defaultRunsRoot(findProjectRoot())).sort().reverse();
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
