/** Help, completion and misspelt commands come from a manifest, and load nothing of what commands are made of. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { command, projectRoot } from "../support/project.ts";

const dataUrl = (code: string): string => `data:text/javascript,${encodeURIComponent(code)}`;

/** Writes the address of every module that is asked for into the file named by RECORDED_MODULES. */
const recorder = dataUrl(`
  import { register } from "node:module";
  register(${JSON.stringify(
    dataUrl(`
      import { appendFileSync } from "node:fs";
      const record = (url) => appendFileSync(process.env.RECORDED_MODULES, url + "\\n");
      export async function resolve(specifier, context, next) {
        const found = await next(specifier, context);
        record(found.url);
        return found;
      }
      export async function load(url, context, next) {
        record(url);
        return next(url, context);
      }`),
  )});`);

function packagesLoadedBy(args: readonly string[]): { packages: string[]; status: number | null; stderr: string } {
  const folder = mkdtempSync(join(tmpdir(), "treadle-modules-"));
  try {
    const file = join(folder, "modules");
    writeFileSync(file, "");
    const { status, stderr } = spawnSync(process.execPath, ["--import", recorder, command, ...args], {
      cwd: projectRoot,
      encoding: "utf8",
      env: { ...process.env, RECORDED_MODULES: file },
    });
    const found = readFileSync(file, "utf8").matchAll(/^file:.*\/packages\/([a-z-]+)\/(?:src|dist)\//gm);
    return { packages: [...new Set([...found].map(([, name]) => name as string))].sort(), status, stderr };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

test.each([
  [["--help"], 0],
  [["complete", "--", "ru"], 0],
  [["rum"], 2],
])("treadle %j loads the command line's own modules and contracts", (args, code) => {
  const { packages, status } = packagesLoadedBy(args);
  expect({ packages, status }).toEqual({ packages: ["cli", "contracts"], status: code });
});

test("a command's own help loads what the command is made of, so the recording sees it", () => {
  const { packages, stderr } = packagesLoadedBy(["help", "run"]);
  expect(packages, stderr).toContain("runtime");
});
