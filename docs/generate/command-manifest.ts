import type { CommandManifest } from "../../packages/cli/src/command-manifest.ts";
import { loadCommands } from "../../packages/cli/src/program.ts";

type Command = Awaited<ReturnType<typeof loadCommands>>[number];

/** Every command as data, so that `treadle --help` and a TAB load none of them. */
export async function commandManifestModule(): Promise<string> {
  const manifests = (await loadCommands()).map(manifestOf);
  return [
    "/** Written by 'npm run docs:reference' from the commands themselves. */",
    'import type { CommandManifest } from "../command-manifest.ts";',
    "",
    `export const commandManifests: readonly CommandManifest[] = ${JSON.stringify(manifests, undefined, 2)};`,
    "",
  ].join("\n");
}

function manifestOf(command: Command): CommandManifest {
  return {
    name: command.name(),
    description: command.description(),
    arguments: command.registeredArguments.map((argument) => {
      const { required, variadic, description, defaultValue, argChoices } = argument;
      const name = `${argument.name()}${variadic ? "..." : ""}`;
      return { term: required ? `<${name}>` : `[${name}]`, description, ...valuesOf(defaultValue, argChoices) };
    }),
    options: command.options.map(({ flags, description, defaultValue, argChoices, envVar, hidden }) => ({
      flags,
      description,
      ...valuesOf(defaultValue, argChoices),
      ...(envVar === undefined ? {} : { env: envVar }),
      ...(hidden ? { isHidden: true as const } : {}),
    })),
    commands: command.commands.map((inner) => manifestOf(inner as Command)),
  };
}

const valuesOf = (defaultValue: unknown, choices: readonly string[] | undefined) => ({
  ...(defaultValue === undefined ? {} : { default: defaultValue }),
  ...(choices === undefined ? {} : { choices }),
});
