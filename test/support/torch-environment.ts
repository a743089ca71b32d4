/**
 * Before all tests: PyTorch, in an environment in the cache folder. It is made where `CI` is set, and by
 * `npm run test:torch`; elsewhere, tests that need it are skipped until it has been made, and say so.
 */
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { projectRoot } from "./project.ts";
import { environmentAt, makeEnvironment } from "./python-environment.ts";

const requirements = join(projectRoot, "python/treadle_torch/tests/requirements.txt");

/** As `npm run test:torch` and CI ask for it: without PyTorch, tests that need it fail. */
export function setup(): void {
  if (process.env["TREADLE_PYTHON"]) return;
  const name = `torch-${createHash("sha256").update(readFileSync(requirements)).digest("hex").slice(0, 12)}`;
  const environment = environmentAt(name);
  if (!existsSync(environment)) {
    if (!process.env["CI"]) return;
    makeEnvironment(name, (pip) => pip("-r", requirements));
  }
  process.env["TREADLE_PYTHON"] = join(environment, "bin/python");
}
