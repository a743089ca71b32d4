/** What `.github/workflows/release.yml` does at a tag, done here to a registry of the test's own. */
import { execFile } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { gunzipSync } from "node:zlib";
import { expect, onTestFinished, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { PackageRegistry, type Published } from "../support/package-registry.ts";
import { projectRoot } from "../support/project.ts";

const execute = promisify(execFile);

const Manifest = z.looseObject({ name: z.string(), version: z.string(), private: z.boolean().default(false) });
const Workflow = z.object({
  jobs: z.object({ publish: z.object({ steps: z.array(z.object({ run: z.string().optional() })) }) }),
});

/** What a package has of these kinds of needs, in the manifest that the registry was given. */
const needsOf = ({ versions }: Published): [string, string][] =>
  Object.values(versions).flatMap(({ dependencies, peerDependencies }) =>
    Object.entries({ ...(dependencies as object), ...(peerDependencies as object) }),
  );

/** Names of the files in a package's archive: headers of 512 bytes, each with a name and an octal size. */
function filesOf({ _attachments }: Published): string[] {
  const [attached] = Object.values(_attachments);
  const archive = gunzipSync(Buffer.from(attached?.data ?? "", "base64"));
  const names: string[] = [];
  for (let at = 0; at + 512 <= archive.length && archive[at] !== 0; ) {
    const text = (from: number, length: number) =>
      archive.toString("utf8", at + from, at + from + length).replace(/\0.*$/s, "");
    const prefix = text(345, 155);
    names.push(`${prefix === "" ? "" : `${prefix}/`}${text(0, 100)}`);
    at += 512 * (1 + Math.ceil(Number.parseInt(text(124, 12), 8) / 512));
  }
  return names;
}

// From sources there is nothing to publish.
test.skipIf(process.env["TREADLE_COMPILED"] !== "1")(
  "a tag publishes every package once, with what it needs, and nothing that is private",
  async () => {
    await using registry = await PackageRegistry.open();
    const root = await mkdtemp(join(tmpdir(), "treadle-release-"));
    onTestFinished(() => rm(root, { recursive: true, force: true }));
    const checkout = join(root, "checkout");
    for (const path of ["packages", "python", "docs", "workflows", "build", "LICENSE", ".changeset", "package.json"])
      await cp(join(projectRoot, path), join(checkout, path), {
        recursive: true,
        filter: (each) => !each.includes("/node_modules"),
      });
    await symlink(join(projectRoot, "node_modules"), join(checkout, "node_modules"));
    const settings = join(root, "npmrc");
    await writeFile(settings, `registry=${registry.url}\n${registry.url.replace("http:", "")}:_authToken=ours\n`);
    const { version } = Manifest.parse(JSON.parse(await readFile(join(checkout, "packages/cli/package.json"), "utf8")));
    const person = { NAME: "release", EMAIL: "release@localhost" };
    const env = {
      ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name))),
      CI: "true",
      npm_config_userconfig: settings,
      npm_config_registry: registry.url,
      npm_config_cache: join(root, "cache"),
      npm_config_update_notifier: "false",
      GITHUB_REF_NAME: `v${version}`,
      GITHUB_SERVER_URL: "https://git.example",
      GITHUB_REPOSITORY: "looms/treadle",
      ...Object.fromEntries(
        Object.entries(person).flatMap(([what, value]) =>
          ["AUTHOR", "COMMITTER"].map((role) => [`GIT_${role}_${what}`, value]),
        ),
      ),
    };
    const run = (file: string, ...args: string[]) =>
      execute(file, args, { cwd: checkout, env, maxBuffer: 2 ** 24 }).then(({ stdout, stderr }) => stdout + stderr);
    await writeFile(join(checkout, "packages/cli/CHANGELOG.md"), "# treadle\n");
    await writeFile(join(checkout, ".gitignore"), "node_modules\ndist\n");
    await run("git", "init", "--quiet", "--initial-branch=main");
    await run("git", "add", ".changeset", "package.json");
    await run("git", "commit", "--quiet", "--message=release");

    // Its own commands, but for those that install, test and build: that has been done here.
    const workflow = Workflow.parse(parse(await readFile(join(projectRoot, ".github/workflows/release.yml"), "utf8")));
    const commands = workflow.jobs.publish.steps.flatMap(({ run: command }) => command ?? []);
    const done = ["npm ci", "npm run verify"];
    expect(commands).toEqual(expect.arrayContaining(done));
    for (const command of commands.filter((each) => !done.includes(each)))
      await run("bash", "-c", command === "npm run release" ? "node_modules/.bin/changeset publish" : command);

    const folders = await readdir(join(projectRoot, "packages"));
    const manifests = await Promise.all(
      folders.map(async (folder) =>
        Manifest.parse(JSON.parse(await readFile(join(projectRoot, "packages", folder, "package.json"), "utf8"))),
      ),
    );
    const names = manifests.filter((manifest) => !manifest.private).map(({ name }) => name);
    expect([...registry.published.keys()].sort()).toEqual(names.sort());
    for (const found of registry.published.values()) {
      expect([found.access, found["dist-tags"]]).toEqual(["public", { latest: version }]);
      expect(found.versions[version]).toMatchObject({
        repository: {
          url: "git+https://git.example/looms/treadle.git",
          directory: expect.stringMatching(/^packages\/[a-z-]+$/),
        },
      });
      // What a package needs of its siblings is what was published with it.
      for (const [name, range] of needsOf(found))
        if (names.includes(name)) expect(`${found.name}: ${name} ${range}`).toBe(`${found.name}: ${name} ${version}`);
      expect(filesOf(found)).toEqual(expect.arrayContaining(["package/README.md", "package/LICENSE"]));
      expect(filesOf(found).filter((path) => /(^|\/)(test|node_modules)\/|\.tsbuildinfo$/.test(path))).toEqual([]);
    }
    const treadle = registry.published.get("treadle") as Published;
    expect(filesOf(treadle)).toEqual(
      expect.arrayContaining([
        "package/bin/treadle.js",
        "package/CHANGELOG.md",
        "package/dist/main.js",
        "package/templates/bandit/run.ts",
      ]),
    );
    // A tag that is pushed again publishes nothing again.
    const again = await run("node_modules/.bin/changeset", "publish");
    expect(again).toMatch(/No unpublished (projects|packages) to publish/);
    // And one that names another version than the packages have stops before anything is published.
    const check = commands.find((command) => command.startsWith("test ")) as string;
    await expect(
      execute("bash", ["-c", check], { cwd: checkout, env: { ...env, GITHUB_REF_NAME: "v0.0.9" } }),
    ).rejects.toMatchObject({ code: 1 });
  },
  900_000,
);
