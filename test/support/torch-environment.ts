/**
 * Before all tests: PyTorch, in an environment in the cache folder. It is made where `CI` is set, and by
 * `npm run test:torch`; elsewhere, tests that need it are skipped until it has been made, and say so.
 */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { projectRoot } from "./project.ts";
import { environmentAt, environmentOf, makeEnvironment } from "./python-environment.ts";

const requirements = join(projectRoot, "python/treadle_torch/requirements.txt");

/** As `npm run test:torch` and CI ask for it: without PyTorch, tests that need it fail. */
export async function setup(): Promise<void> {
  if (existsSync(environmentAt(name())) || process.env["CI"]) await makeTorchEnvironment();
}

/** Where there is none yet, unless TREADLE_PYTHON names another; it is what engines take from then on. */
export async function makeTorchEnvironment(): Promise<void> {
  if (process.env["TREADLE_PYTHON"]) return;
  const environment = environmentAt(name());
  if (!existsSync(environment)) await makeEnvironment(name(), (pip) => pip("--require-hashes", "-r", requirements));
  process.env["TREADLE_PYTHON"] = join(environment, "bin/python");
}

const name = (): string => environmentOf("torch", [requirements]);
