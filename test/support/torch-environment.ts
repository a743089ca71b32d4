/**
 * Before all tests: PyTorch, in an environment in the cache folder. It is made where `CI` is set, and by
 * `npm run test:torch`; elsewhere, tests that need it are skipped until it has been made, and say so.
 */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { projectRoot } from "./project.ts";

const requirements = join(projectRoot, "python/treadle_torch/tests/requirements.txt");

/** As `npm run test:torch` and CI ask for it: without PyTorch, tests that need it fail. */
export function setup(): void {
  if (process.env["TREADLE_PYTHON"]) return;
  const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle");
  const name = createHash("sha256").update(readFileSync(requirements)).digest("hex").slice(0, 12);
  const environment = join(cache, `torch-${name}`);
  if (!existsSync(environment)) {
    if (!process.env["CI"]) return;
    make(cache, environment);
  }
  process.env["TREADLE_PYTHON"] = join(environment, "bin/python");
}

/** Beside its place: one that is half made is nobody's. It is used by its interpreter alone, which may be moved. */
function make(cache: string, environment: string): void {
  mkdirSync(cache, { recursive: true });
  const beside = mkdtempSync(`${environment}-`);
  const python = (...words: string[]) =>
    execFileSync(join(beside, "bin/python"), words, { stdio: "inherit", cwd: projectRoot });
  try {
    execFileSync("python3", ["-m", "venv", beside], { stdio: "inherit" });
    python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements);
    if (!existsSync(environment)) renameSync(beside, environment);
  } finally {
    rmSync(beside, { recursive: true, force: true });
  }
}
