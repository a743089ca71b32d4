/** Before packages are published, a project takes them from a folder of archives, and a registry is asked for none of them. */
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { z } from "zod";
import { projectRoot } from "../../../test/support/project.ts";
import { treadle } from "../../../test/support/treadle.ts";

const Manifest = z.looseObject({ version: z.string().default(""), dependencies: z.record(z.string(), z.string()) });
const readManifest = async (folder: string) =>
  Manifest.parse(JSON.parse(await readFile(join(folder, "package.json"), "utf8")));

test("'init --packages' names an archive for each package, and refuses a folder that lacks one", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-packed-"));
  onTestFinished(() => rm(root, { recursive: true, force: true }));
  const { version, dependencies } = await readManifest(join(projectRoot, "packages/cli"));
  const siblings = Object.keys(dependencies).filter((name) => name.startsWith("@treadle/"));
  const init = () => treadle(["init", join(root, "mine"), "--template", "own", "--no-install", "--packages", root]);

  const refused = await init();
  expect(refused.code).not.toBe(0);
  expect(refused.stderr).toContain(`has no 'treadle-${version}.tgz'`);
  expect(refused.stderr).toContain(`npm run pack -- ${root}`);

  for (const name of ["treadle", ...siblings]) {
    const archive = `${name.replace("@", "").replace("/", "-")}-${version}.tgz`;
    await writeFile(join(root, archive), "");
  }
  await writeFile(join(root, "treadle-actions-0.0.1.tgz"), ""); // of an earlier version
  expect(await init()).toMatchObject({ code: 0 });
  const { dependencies: written } = await readManifest(join(root, "mine"));
  expect(written["treadle"]).toBe(`file:${join(root, `treadle-${version}.tgz`)}`);
  const locations = siblings.map((name) => [name, `file:${join(root, `treadle-${name.slice(9)}-${version}.tgz`)}`]);
  expect(written).toMatchObject(Object.fromEntries(locations));
});
