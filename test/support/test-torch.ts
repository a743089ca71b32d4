/** `npm run test:torch`: the tests that need PyTorch, in an environment that is made once in the cache folder. */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { projectRoot } from "./project.ts";

const requirements = join(projectRoot, "python/treadle_torch/tests/requirements.txt");
const cache = join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "treadle");
const name = createHash("sha256").update(readFileSync(requirements)).digest("hex").slice(0, 12);
const environment = join(cache, `torch-${name}`);
const run = (program: string, args: readonly string[], env = process.env) =>
  execFileSync(program, args, { stdio: "inherit", cwd: projectRoot, env });

if (!existsSync(environment)) {
  // Beside its place: one that is half made is nobody's.
  const beside = `${environment}-${process.pid}`;
  mkdirSync(cache, { recursive: true });
  try {
    run("python3", ["-m", "venv", beside]);
    run(join(beside, "bin/python"), [
      "-m",
      "pip",
      "install",
      "--quiet",
      "--disable-pip-version-check",
      "-r",
      requirements,
    ]);
    renameSync(beside, environment);
  } finally {
    rmSync(beside, { recursive: true, force: true });
  }
}
const tests = [
  "packages/engines/test/torch-engine.test.ts",
  "packages/learning/test/reference-loss-agrees-with-pytorch-engine.test.ts",
  "test/e2e/torch-engine-learns.test.ts",
];
const env = { ...process.env, TREADLE_PYTHON: join(environment, "bin/python"), TREADLE_REQUIRE_TORCH: "1" };
run("npx", ["vitest", "run", "--config", "test/vitest.config.ts", ...tests], env);
