import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { findProjectRoot } from "../src/commands/project.ts";

let root: string;
beforeEach(() => {
  root = realpathSync(mkdtempSync(join(tmpdir(), "treadle-root-")));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

const put = (path: string): void => {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), "{}");
};
const folder = (path: string): string => {
  mkdirSync(join(root, path), { recursive: true });
  return join(root, path);
};

test.each([
  ["npm", "package-lock.json"],
  ["pnpm", "pnpm-lock.yaml"],
  ["Yarn", "yarn.lock"],
  ["Bun", "bun.lock"],
  ["Bun before 1.2", "bun.lockb"],
])("a project of %s begins where its lock file is, also above a workspace's own package.json", (_, lock) => {
  put(`project/${lock}`);
  put("project/package.json");
  put("project/packages/training/package.json");
  const workflow = folder("project/packages/training/workflows/mine");
  expect(findProjectRoot(workflow)).toBe(join(root, "project"));
});

/** On most machines nothing above the folder of temporary files is a project. */
const isBelowProject = findProjectRoot(realpathSync(tmpdir())) !== realpathSync(tmpdir());

test.skipIf(isBelowProject)("without a lock file the nearest package.json is the root, else the folder itself", () => {
  put("package.json");
  put("inner/package.json");
  expect(findProjectRoot(folder("inner/workflows/mine"))).toBe(join(root, "inner"));
  rmSync(join(root, "inner/package.json"));
  expect(findProjectRoot(join(root, "inner/workflows/mine"))).toBe(root);
  rmSync(join(root, "package.json"));
  expect(findProjectRoot(join(root, "inner/workflows/mine"))).toBe(join(root, "inner/workflows/mine"));
});
