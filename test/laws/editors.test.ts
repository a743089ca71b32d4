import { existsSync, readdirSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const read = (path: string): ts.ParsedCommandLine => {
  const { config, error } = ts.readConfigFile(path, ts.sys.readFile);
  if (error) throw new Error(ts.flattenDiagnosticMessageText(error.messageText, "\n"));
  return ts.parseJsonConfigFileContent(config, ts.sys, dirname(path));
};

/** As an editor does: the nearest `tsconfig.json` upward that has the file. */
function configOf(file: string): string {
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    const path = join(folder, "tsconfig.json");
    if (ts.sys.fileExists(path)) return relative(projectRoot, path);
    if (folder === dirname(folder)) return "none";
  }
}

const root = read(join(projectRoot, "tsconfig.json"));
const listed = new Set(root.fileNames.map((path) => relative(projectRoot, path)));

const compiledPackages = readdirSync(join(projectRoot, "packages")).filter((name) =>
  existsSync(join(projectRoot, "packages", name, "src")),
);

test("an editor finds the root's configuration for every source and every test, and each of them in it", () => {
  const files = ["packages", "workflows", "test"]
    .flatMap((folder) =>
      readdirSync(join(projectRoot, folder), { recursive: true, encoding: "utf8" }).map((path) => `${folder}/${path}`),
    )
    .filter((path) => /^(packages\/[a-z]+\/(src|test)|workflows|test)\/.*\.ts$/.test(path))
    .filter((path) => !path.includes("node_modules/") && !path.endsWith(".d.ts"))
    // What runs in a browser has a browser's types.
    .filter((path) => !path.startsWith("packages/dashboard/src/page/"));
  expect(files.length).toBeGreaterThan(500);
  expect(files.filter((path) => configOf(join(projectRoot, path)) !== "tsconfig.json")).toEqual([]);
  expect(files.filter((path) => !listed.has(path))).toEqual([]);
});

test("to go to a definition of another package is to land in its source", () => {
  const from = join(projectRoot, "workflows/reasoning-grpo/run.ts");
  const packages = compiledPackages.filter((name) => name !== "cli");
  const landings = packages.map((name) => {
    const found = ts.resolveModuleName(
      `@treadle/${name}`,
      from,
      root.options,
      ts.sys,
      undefined,
      undefined,
      ts.ModuleKind.ESNext,
    );
    const path = found.resolvedModule?.resolvedFileName ?? "nowhere";
    return [name, relative(projectRoot, ts.sys.realpath?.(path) ?? path)];
  });
  expect(landings).toEqual(packages.map((name) => [name, `packages/${name}/src/index.ts`]));
});

test("a build reads what is built, not sources, of other packages", () => {
  for (const name of compiledPackages) {
    const build = read(join(projectRoot, "packages", name, "tsconfig.build.json"));
    expect({ name, conditions: build.options.customConditions }).toEqual({ name, conditions: [] });
    expect(build.fileNames.filter((path) => !path.startsWith(join(projectRoot, "packages", name, "src")))).toEqual([]);
  }
});
