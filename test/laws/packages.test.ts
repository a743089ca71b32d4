/** What npm is told: each published package is whole by itself, and the lock file serves every platform. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { z } from "zod";
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
    z.object({ optionalDependencies: versions, hasInstallScript: z.boolean().optional() }),
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
