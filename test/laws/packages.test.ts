/** What npm is told: each published package is whole by itself, and the lock file serves every platform. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { minVersion, satisfies } from "semver";
import { expect, onTestFinished, test } from "vitest";
import { z } from "zod";
import { projectFiles } from "../../packages/cli/src/project-template.ts";
import { projectRoot } from "../support/project.ts";

const versions = z.record(z.string(), z.string()).default({});
const Manifest = z.object({
  name: z.string(),
  version: z.string(),
  private: z.boolean().default(false),
  description: z.string().min(20).optional(),
  license: z.string().optional(),
  engines: z.object({ node: z.string() }).optional(),
  files: z.array(z.string()).optional(),
  scripts: versions,
  dependencies: versions,
  devDependencies: versions,
  peerDependencies: versions,
});
const Lock = z.object({
  packages: z.record(
    z.string(),
    z.object({
      dev: z.boolean().default(false),
      engines: z.union([z.object({ node: z.string().optional() }), z.array(z.string())]).optional(),
      optionalDependencies: versions,
      hasInstallScript: z.boolean().default(false),
    }),
  ),
});

const readJson = (path: string): unknown => JSON.parse(readFileSync(join(projectRoot, path), "utf8"));
const folders = readdirSync(join(projectRoot, "packages"));
const manifests = folders.map((folder) => Manifest.parse(readJson(`packages/${folder}/package.json`)));
const published = manifests.filter((manifest) => !manifest.private);
const own = new Map(manifests.map(({ name, version }) => [name, version]));

test.each(published)(
  "$name says what it is, what it needs and what belongs to it, and runs nothing when it is installed",
  (manifest) => {
    const { name, description, license, engines, files, scripts } = manifest;
    expect({ name, description, license, engines, files }).toEqual({
      name,
      description: expect.any(String),
      license: "Apache-2.0",
      engines: { node: expect.stringMatching(/^>=20/) },
      files: expect.any(Array),
    });
    expect(Object.keys(scripts).filter((script) => /^(pre|post)?install$/.test(script))).toEqual([]);
  },
);

test.each(published)("$name is packed with its licence and its changes", ({ files, scripts }) => {
  expect(files).toContain("CHANGELOG.md");
  expect([scripts["prepack"], scripts["postpack"]]).toEqual([
    expect.stringContaining("node ../../build/pack-licence.js"),
    expect.stringContaining("node ../../build/pack-licence.js remove"),
  ]);
});

/** What a script that packs puts into the package whose folder it runs in, and what stays when it takes that out again. */
function packedBy(script: string, ...args: string[]): { readonly folder: string; readonly files: string[] } {
  const folder = mkdtempSync(join(tmpdir(), "treadle-pack-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const run = (...more: string[]) =>
    execFileSync(process.execPath, [join(projectRoot, "build", script), ...args, ...more], { cwd: folder });
  run();
  run("remove");
  expect(readdirSync(folder)).toEqual([]);
  run();
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  return {
    folder,
    files: entries.map(({ parentPath, name }) => join(parentPath, name).slice(folder.length + 1)).sort(),
  };
}

const publishedAs = (name: string) =>
  published.find((manifest) => manifest.name === name) as (typeof published)[number];

const tracked = (...paths: string[]): string[] =>
  execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", ...paths], {
    cwd: projectRoot,
    encoding: "utf8",
  })
    .trim()
    .split("\n")
    .sort();

test.each([
  ["@treadle/engines", "treadle_torch"],
  ["@treadle/actions", "treadle"],
])("%s is packed with the Python package '%s', whole", (packageName, name) => {
  const { files = [], scripts } = publishedAs(packageName);
  expect(files).toContain("python");
  expect(scripts["prepack"]).toContain(`node ../../build/pack-python.js ${name}`);
  expect(scripts["postpack"]).toContain(`node ../../build/pack-python.js ${name} remove`);
  const parts = ["pyproject.toml", "README.md", "requirements.txt", "src"].map((part) => `python/${name}/${part}`);
  expect(packedBy("pack-python.js", name).files).toEqual(tracked(...parts));
});

test("treadle is packed with every page of the documentation, and no link of them leads elsewhere", () => {
  const { files = [], scripts } = publishedAs("treadle");
  expect(files).toContain("docs");
  expect(scripts["prepack"]).toContain("node ../../build/pack-docs.js");
  expect(scripts["postpack"]).toContain("node ../../build/pack-docs.js remove");
  const packed = packedBy("pack-docs.js");
  expect(packed.files).toEqual(tracked("docs/*.md"));
  const blocks = (text: string) => text.match(/^( *)```.*?\n\1```$/gms) ?? [];
  for (const page of packed.files) {
    const text = readFileSync(join(packed.folder, page), "utf8");
    expect(blocks(text)).toEqual(blocks(readFileSync(join(projectRoot, page), "utf8")));
    const targets = [...text.matchAll(/\]\((?!https?:|#)([^)\s#]+)[^)\s]*\)/g)].map(([, target]) => target as string);
    expect(
      targets.map((target) => join(dirname(page), target)).filter((target) => !packed.files.includes(target)),
    ).toEqual([]);
  }
});

test.each(manifests)(
  "$name needs exactly the siblings that it was built with, and leaves zod to whoever installs it",
  (manifest) => {
    for (const needs of [manifest.dependencies, manifest.devDependencies]) {
      for (const [name, version] of Object.entries(needs).filter(([name]) => own.has(name)))
        expect(`${name} ${version}`).toBe(`${name} ${own.get(name)}`);
    }
    // Two copies of a schema's class are two classes.
    if (!manifest.private) expect(Object.keys(manifest.dependencies)).not.toContain("zod");
  },
);

test("the lock file has what other platforms need, too", () => {
  const { packages } = Lock.parse(readJson("package-lock.json"));
  const optional = Object.entries(packages).flatMap(([path, { optionalDependencies }]) =>
    Object.keys(optionalDependencies).map((name) => ({ path, name })),
  );
  expect(optional.length).toBeGreaterThan(100);
  // Where npm looks for it: beside what needs it, or in any node_modules above.
  const isLocked = ({ path, name }: { path: string; name: string }): boolean => {
    for (let folder = path; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf("node_modules/") - 1))) {
      if (packages[`${folder === "" ? "" : `${folder}/`}node_modules/${name}`] !== undefined) return true;
      if (folder === "") return false;
    }
  };
  expect(optional.filter((one) => !isLocked(one)).map(({ path, name }) => `${path}: ${name}`)).toEqual([]);
});

/** What needs a newer Node than we do, and why it is installed all the same: npm warns of it. */
const needsNewerNode: Readonly<Record<string, string>> = {
  "@nats-io/nuid": "all versions that NATS's client takes say 22; this one runs on 20, on which all tests run",
};

test("what is installed with the packages runs on the lowest Node that they name", () => {
  const { packages } = Lock.parse(readJson("package-lock.json"));
  const [lowestNode = ""] = published.map(({ engines }) => minVersion(engines?.node ?? "")?.version);
  const installed = Object.entries(packages).filter(([path, { dev }]) => path.includes("node_modules/") && !dev);
  expect(installed.length).toBeGreaterThan(100);
  const excludes = installed.filter(([, { engines }]) => {
    const range = Array.isArray(engines) ? undefined : engines?.node;
    return range !== undefined && !satisfies(lowestNode, range);
  });
  const names = excludes.map(([path]) => path.slice(path.lastIndexOf("node_modules/") + "node_modules/".length));
  expect(names.sort()).toEqual(Object.keys(needsNewerNode).sort());
});

/** Nothing that npm installs has to run anything: why each of these scripts is not needed. */
const neededByNobody: Readonly<Record<string, string>> = {
  "cpu-features": "compiles what 'ssh2' can do without",
  ssh2: "compiles a faster cipher for hosts of Docker over SSH, which 'ssh2' can do without",
  esbuild: "replaces its launcher by the program, which a package of each platform brings",
  koffi: "looks for the prebuilt library, which a package of each platform brings",
  "msgpackr-extract": "looks for the prebuilt library, which a package of each platform brings",
  protobufjs: "warns of versions",
};

test("no package has an install script but those that nobody needs, which are refused by name, also in the projects that 'init' writes", async () => {
  const { packages } = Lock.parse(readJson("package-lock.json"));
  const scripted = Object.entries(packages).flatMap(([path, { dev, hasInstallScript }]) =>
    hasInstallScript ? [{ name: path.slice(path.lastIndexOf("node_modules/") + "node_modules/".length), dev }] : [],
  );
  expect([...new Set(scripted.map(({ name }) => name))].sort()).toEqual(Object.keys(neededByNobody).sort());
  const { allowScripts } = z
    .object({ allowScripts: z.record(z.string(), z.boolean()) })
    .parse(readJson("package.json"));
  // By name, so that npm neither runs nor asks about them.
  const refused = (names: readonly string[]) => Object.fromEntries(names.map((name) => [name, false]));
  expect(allowScripts).toEqual(refused(Object.keys(neededByNobody)));
  const installed = refused(scripted.flatMap(({ name, dev }) => (dev ? [] : [name])));
  expect(allowScripts).toEqual(installed);
  const files = await projectFiles(join(projectRoot, "mine"), "own");
  expect(JSON.parse(files["package.json"] ?? "")).toMatchObject({ allowScripts: installed });
});

test("what is bundled finds its files from its package's folder: a bundle stands elsewhere than its modules", () => {
  const bundled = folders.filter((_, index) => manifests[index]?.scripts["build"]?.includes("bundle-package.js"));
  const sources = bundled.flatMap((folder) =>
    readdirSync(join(projectRoot, "packages", folder, "src"), { recursive: true, encoding: "utf8" })
      .filter((path) => path.endsWith(".ts"))
      .map((path) => `packages/${folder}/src/${path}`),
  );
  expect(sources.length).toBeGreaterThan(100);
  const besideThemselves = sources.filter((path) =>
    /new URL\(\s*["'`](?!\.["'`])[^)]*import\.meta\.url|import\.meta\.(dirname|filename)/.test(
      readFileSync(join(projectRoot, path), "utf8"),
    ),
  );
  expect(besideThemselves).toEqual([]);
});
