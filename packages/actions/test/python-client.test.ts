import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, expect, test } from "vitest";
import { environmentAt } from "../../../test/support/python-environment.ts";
import { installClient, preparePython, python } from "./support/python-client.ts";
import { startService } from "./support/service-process.ts";

const run = promisify(execFile);

const cleanups: (() => unknown)[] = [];
afterAll(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

const configuration = `listen: 127.0.0.1:0
drivers: [process]
resources: { cpu: { type: cpu, overcommit: 64 }, search: &one { type: quota, concurrency: 1 }, judge: *one }
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
  const service = await startService(config);
  cleanups.push(service.kill);
  await installClient(interpreter, installed);
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
