/** `treadle init`: a project of one's own, which runs and whose test passes. */
import { spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, isAbsolute, join, relative, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { Command, Option } from "commander";
import {
  ownDependencies,
  ownVersion,
  projectFiles,
  siblings,
  type TemplateName,
  templates,
} from "../project-template.ts";

const names = Object.keys(templates) as TemplateName[];

type Flags = { template?: TemplateName; install: boolean; packages?: string };

export function initCommand(): Command {
  return new Command("init")
    .description("writes a project of your own: a workflow, its configuration with a schema for editors, and a test")
    .argument("[folder]", "of the project; must not have these files yet", ".")
    .addOption(new Option("--template <name>", "what the workflow is like; asked for on a terminal").choices(names))
    .option("--no-install", "writes the files and installs nothing")
    .option(
      "--packages <folder>",
      "takes Treadle from the archives that 'npm run pack -- <folder>' of a checkout makes",
    )
    .action(async (folder: string, flags: Flags, command: Command) => {
      process.umask(0o022); // a project is no secret, as what runs write is
      const root = resolve(folder);
      const template = flags.template ?? (await ask(command));
      const manager = packageManager();
      const packed = flags.packages === undefined ? {} : keysFor(manager, archives(resolve(flags.packages), command));
      await write(root, { ...(await projectFiles(root, template, packed)), ...filesOf[manager] });
      if (flags.install) await install(manager, root);
      const { workflow, about } = templates[template];
      const steps = [
        ...(root === process.cwd() ? [] : [`cd ${isAbsolute(folder) ? root : relative(process.cwd(), root)}`]),
        ...(flags.install ? [] : [`${manager} install`]),
        `npx treadle run workflows/${workflow}   # ${about}`,
        `${manager} test`,
      ];
      process.stdout.write(`\nA project is in '${root}'. Next:\n\n${steps.map((step) => `  ${step}\n`).join("")}`);
    });
}

async function ask(command: Command): Promise<TemplateName> {
  if (!process.stdin.isTTY || !process.stdout.isTTY)
    command.error(`error: without a terminal nobody can be asked; add --template with one of ${names.join(", ")}`);
  const { default: select } = await import("@inquirer/select");
  return select({
    message: "What will you train?",
    choices: names.map((value) => ({ value, name: `${value}: ${templates[value].about}` })),
  });
}

/** All or nothing: no file of somebody's is replaced. */
async function write(root: string, files: Readonly<Record<string, string>>): Promise<void> {
  const taken = Object.keys(files).filter((path) => existsSync(join(root, path)));
  if (taken.length > 0)
    throw new TreadleError(
      "project.exists",
      `'${root}' has ${taken.map((path) => `'${path}'`).join(", ")} already; give another folder, or move what is there`,
    );
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await writeFile(join(root, path), text, { flag: "wx" });
  }
}

const managers = ["npm", "pnpm", "yarn", "bun"] as const;
type PackageManager = (typeof managers)[number];

/** What a package manager needs beside the project: Yarn would keep packages in archives, and take a project below another's for a part of it. */
const filesOf: Readonly<Partial<Record<PackageManager, Readonly<Record<string, string>>>>> = {
  yarn: { ".yarnrc.yml": "nodeLinker: node-modules\n", "yarn.lock": "" },
};

/** The one that started this, as they say in their user agent. */
function packageManager(): PackageManager {
  const [name] = (process.env["npm_config_user_agent"] ?? "").split("/");
  return managers.find((each) => each === name) ?? "npm";
}

/** Where each package is, by name. */
function archives(folder: string, command: Command): Readonly<Record<string, string>> {
  const ending = `-${ownVersion}.tgz`;
  const found = existsSync(folder) ? readdirSync(folder) : [];
  const missing = ["treadle", ...siblings.map((name) => name.replace("@treadle/", "treadle-"))].find(
    (name) => !found.includes(`${name}${ending}`),
  );
  if (missing !== undefined)
    command.error(
      `error: '${folder}' has no '${missing}${ending}'; in a checkout of this version: npm run build && npm run pack -- ${folder}`,
    );
  const packages = found.filter((file) => file.startsWith("treadle-") && file.endsWith(ending));
  return Object.fromEntries(
    packages.map((file) => {
      const name = file.slice(0, -ending.length).replace(/^treadle-/, "@treadle/");
      return [name, `file:${join(folder, file)}`];
    }),
  );
}

/** What a package.json says so that no registry is asked for a package that another one needs: each manager has a key of its own. */
function keysFor(manager: PackageManager, packages: Readonly<Record<string, string>>): object {
  if (manager === "npm") return { dependencies: { ...ownDependencies, ...packages } };
  const dependencies = { ...ownDependencies, treadle: packages["treadle"] };
  if (manager === "pnpm") return { dependencies, pnpm: { overrides: packages } };
  return { dependencies, [manager === "yarn" ? "resolutions" : "overrides"]: packages };
}

async function install(manager: PackageManager, root: string): Promise<void> {
  const child = spawn(manager, ["install"], { cwd: root, stdio: "inherit" });
  const code = await new Promise<number | null>((done, fail) => {
    child.on("error", fail);
    child.on("close", done);
  }).catch((error: Error) => error.message);
  if (code !== 0)
    throw new TreadleError(
      "project.not-installed",
      `'${manager} install' failed in '${root}' (${code}); the files are written: run it there once more`,
    );
}
