import { chmodSync, chownSync, lstatSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { guardCompileCache } from "../../src/author/compile-cache.ts";

let root: string;
let folder: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "treadle-cache-"));
  folder = join(root, `tsx-${process.geteuid?.()}`);
  vi.stubEnv("TMPDIR", root);
  vi.stubEnv("TSX_DISABLE_CACHE", undefined);
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(root, { recursive: true, force: true });
});
const isUsed = (): boolean => {
  guardCompileCache();
  return process.env["TSX_DISABLE_CACHE"] === undefined;
};

test("the folder of what was compiled is made, its user's alone, and used again", () => {
  expect(isUsed()).toBe(true);
  expect(lstatSync(folder).mode & 0o777).toBe(0o700);
  expect(isUsed()).toBe(true);
});

test("one that others may write to, that leads elsewhere, or that is none, is not used", () => {
  mkdirSync(folder);
  chmodSync(folder, 0o777);
  expect(isUsed()).toBe(false);
  rmSync(folder, { recursive: true });
  vi.stubEnv("TSX_DISABLE_CACHE", undefined);
  mkdirSync(join(root, "elsewhere"));
  symlinkSync(join(root, "elsewhere"), folder);
  expect(isUsed()).toBe(false);
  vi.stubEnv("TSX_DISABLE_CACHE", undefined);
  vi.stubEnv("TMPDIR", join(root, "nowhere"));
  expect(isUsed()).toBe(false);
});

test.skipIf(process.getuid?.() !== 0)("one that another user has made is not used (tried as root)", () => {
  mkdirSync(folder, { mode: 0o700 });
  chownSync(folder, 65_534, 65_534);
  expect(isUsed()).toBe(false);
});
