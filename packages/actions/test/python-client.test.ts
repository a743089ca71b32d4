import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, expect, test } from "vitest";
import { environmentAt, environmentOf, makeEnvironment } from "../../../test/support/python-environment.ts";
import { startService } from "./support/service-process.ts";

const run = promisify(execFile);
const python = fileURLToPath(new URL("../../../python/treadle", import.meta.url));
const tests = join(python, "tests");

const cleanups: (() => unknown)[] = [];
afterAll(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** A Python with what the tests need, made once; or why there is none. */
async function preparePython(): Promise<{ interpreter: string } | { lacks: string }> {
  const [usual, alone] = ["requirements.txt", "requirements-alone.txt"].map((list) => join(tests, list)) as [
    string,
    string,
  ];
  const name = environmentOf("python", [usual, alone]);
  try {
    if (!existsSync(environmentAt(name)))
      await makeEnvironment(name, async (pip) => {
        await pip("-r", usual);
        await pip("--no-deps", "-r", alone);
      });
  } catch (error) {
    const { code, stderr = "", stdout = "" } = error as { code?: unknown; stderr?: string; stdout?: string };
    if (code === "ENOENT" || stdout.includes("ensurepip")) return { lacks: "there is no python3 with venv" };
    if (/connection|resolution|timed? ?out|unreachable/i.test(stderr))
      return { lacks: "the package index of Python cannot be reached" };
    throw error;
  }
  return { interpreter: join(environmentAt(name), "bin/python") };
}

const configuration = `listen: 127.0.0.1:0
drivers: [process]
resources: { cpu: { type: cpu, overcommit: 64 }, search: { type: quota, concurrency: 1 } }
limits: { trajectoryMemoryMib: 16 }
`;

test("the Python package installs with pip, and its tests pass against a live service", async (context) => {
  const prepared = await preparePython();
  if ("lacks" in prepared) return context.skip(prepared.lacks);
  const { interpreter } = prepared;
  const folder = await mkdtemp(join(tmpdir(), "treadle-python-"));
  cleanups.push(() => rm(folder, { recursive: true }));
  const config = join(folder, "config.yaml");
  await writeFile(config, configuration);
  const installed = join(folder, "installed");
  const offline = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"];
  const service = await startService(config);
  cleanups.push(service.kill);
  await run(interpreter, ["-m", "pip", "install", "--quiet", ...offline, "--target", installed, python]);
  expect(existsSync(join(installed, "treadle/py.typed"))).toBe(true);
  const env = {
    ...process.env,
    PYTHONPATH: installed,
    PYTHONDONTWRITEBYTECODE: "1",
    TREADLE_ACTIONS: service.address,
    TREADLE_MYPY_CACHE: environmentAt("mypy"),
  };
  const { stdout } = await run(interpreter, ["-m", "pytest", "-n", "3", "-q", "--durations=5"], {
    cwd: python,
    env,
  }).catch((error: { stdout: string; stderr: string }) => {
    throw new Error(error.stdout + error.stderr);
  });
  expect(stdout).toMatch(/\d+ passed/);
  expect(stdout).not.toMatch(/skipped|failed/);
}, 900_000);
