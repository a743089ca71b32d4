/** What a release does: one version for all packages, with what changed for users in the CHANGELOG of the one that they install. */
import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { projectRoot } from "../support/project.ts";

const Manifest = z.object({
  name: z.string(),
  version: z.string(),
  dependencies: z.record(z.string(), z.string()).default({}),
  devDependencies: z.record(z.string(), z.string()).default({}),
});
const readManifests = (root: string) =>
  readdirSync(join(root, "packages")).map((folder) =>
    Manifest.parse(JSON.parse(readFileSync(join(root, "packages", folder, "package.json"), "utf8"))),
  );

test("a change of one package raises all of them to one version, and stands in the CHANGELOG of 'treadle'", () => {
  const copy = mkdtempSync(join(tmpdir(), "treadle-release-"));
  onTestFinished(() => rmSync(copy, { recursive: true, force: true }));
  for (const path of [
    ".changeset",
    "package.json",
    ...readdirSync(join(projectRoot, "packages")).map((name) => `packages/${name}/package.json`),
  ])
    cpSync(join(projectRoot, path), join(copy, path), { recursive: true });
  symlinkSync(join(projectRoot, "node_modules"), join(copy, "node_modules"));
  writeFileSync(join(copy, ".changeset/one.md"), '---\n"treadle": minor\n---\n\nLooms can be steered.\n');
  const git = (...words: string[]) =>
    execFileSync("git", ["-c", "user.name=test", "-c", "user.email=test@localhost", ...words], { cwd: copy });
  git("init", "--quiet", "--initial-branch=main");
  git("add", ".changeset", "package.json", "packages");
  git("commit", "--quiet", "--message=before");

  execFileSync(join(projectRoot, "node_modules/.bin/changeset"), ["version"], { cwd: copy });

  const before = readManifests(projectRoot);
  const after = readManifests(copy);
  const [major, minor] = (before[0]?.version ?? "").split(".").map(Number);
  const raised = `${major}.${(minor ?? 0) + 1}.0`;
  expect(new Set(after.map(({ version }) => version))).toEqual(new Set([raised]));
  const own = new Set(after.map(({ name }) => name));
  for (const { name, dependencies, devDependencies } of after) {
    for (const [needed, version] of Object.entries({ ...dependencies, ...devDependencies }))
      if (own.has(needed)) expect(`${name}: ${needed} ${version}`).toBe(`${name}: ${needed} ${raised}`);
  }
  expect(readFileSync(join(copy, "packages/cli/CHANGELOG.md"), "utf8")).toContain("Looms can be steered.");
});

test("a release names the repository and the package's folder in it, from which npm follows the links of a README", () => {
  const copy = mkdtempSync(join(tmpdir(), "treadle-release-"));
  onTestFinished(() => rmSync(copy, { recursive: true, force: true }));
  const folders = readdirSync(join(projectRoot, "packages"));
  for (const path of ["package.json", ...folders.map((name) => `packages/${name}/package.json`)])
    cpSync(join(projectRoot, path), join(copy, path));
  const Steps = z.object({
    jobs: z.object({ publish: z.object({ steps: z.array(z.object({ run: z.string().optional() })) }) }),
  });
  const { steps } = Steps.parse(parse(readFileSync(join(projectRoot, ".github/workflows/release.yml"), "utf8"))).jobs
    .publish;
  const env = { ...process.env, GITHUB_SERVER_URL: "https://git.example", GITHUB_REPOSITORY: "looms/treadle" };
  for (const { run } of steps) if (run?.includes("npm pkg set")) execFileSync("bash", ["-c", run], { cwd: copy, env });
  for (const name of folders) {
    const manifest = JSON.parse(readFileSync(join(copy, "packages", name, "package.json"), "utf8"));
    expect(manifest).toMatchObject({
      repository: { type: "git", url: "git+https://git.example/looms/treadle.git", directory: `packages/${name}` },
    });
  }
});

const Workflow = z.object({
  permissions: z.record(z.string(), z.string()),
  jobs: z.record(z.string(), z.object({ steps: z.array(z.object({ run: z.string().optional() })) })),
});
function workflowOf(name: string) {
  const { permissions, jobs } = Workflow.parse(
    parse(readFileSync(join(projectRoot, ".github/workflows", name), "utf8")),
  );
  return { permissions, commands: Object.values(jobs).flatMap(({ steps }) => steps.flatMap(({ run }) => run ?? [])) };
}

test.each(readdirSync(join(projectRoot, ".github/workflows")))("what '%s' runs exists", (name) => {
  const { scripts } = z
    .object({ scripts: z.record(z.string(), z.string()) })
    .parse(JSON.parse(readFileSync(join(projectRoot, "package.json"), "utf8")));
  const { commands } = workflowOf(name);
  const asked = commands.flatMap((command) => command.match(/(?<=^npm run )\S+/) ?? []);
  expect(asked.length).toBeGreaterThan(0);
  expect(asked.filter((script) => scripts[script] === undefined)).toEqual([]);
});

test("a release proves where it was made, and a change is tested as the README says, without a right to write", () => {
  const release = workflowOf("release.yml");
  expect(release.permissions).toMatchObject({ "id-token": "write" });
  expect(release.commands).toContain("npm run release");
  const change = workflowOf("ci.yml");
  expect(change.permissions).toEqual({ contents: "read" });
  expect(change.commands).toEqual(expect.arrayContaining(["bash .ci/run", "npm audit --omit=dev --audit-level=high"]));
});
