import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { cgroupDriverLacks } from "../src/index.ts";
import { connectActions } from "./support/client.ts";
import { installClient, preparePytest, preparePython, python } from "./support/python-client.ts";
import { startService } from "./support/service-process.ts";

const cleanups: (() => unknown)[] = [];
afterAll(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Of one of two files, whose last test waits for the other's, where there are two cores. */
const testsOf = (numbers: string, numWorkers: number): string => `import time, pathlib, pytest
from solution import square

@pytest.mark.parametrize("number", ${numbers})
def test_square(number):
    assert square(number) == number * number

def test_beside(worker_id, testrun_uid):
    marks = pathlib.Path("/tmp", testrun_uid)
    marks.mkdir(exist_ok=True)
    (marks / worker_id).touch()
    deadline = time.monotonic() + 20
    while len(list(marks.iterdir())) < ${numWorkers}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
`;

const hasSandboxes = cgroupDriverLacks() === undefined;

test.skipIf(!existsSync("/usr/bin/python3"))(
  `a suite in /testbed is a reward, run in parallel by pytest${hasSandboxes ? ", that its solution cannot change" : " (without sandboxes, where control groups or bubblewrap are missing)"}`,
  async (context) => {
    const client = await preparePython();
    if ("lacks" in client) return context.skip(client.lacks);
    const suite = await preparePytest();
    if ("lacks" in suite) return context.skip(suite.lacks);
    const folder = await mkdtemp(join(tmpdir(), "treadle-reward-"));
    cleanups.push(() => rm(folder, { recursive: true }));
    const numWorkers = Math.min(2, availableParallelism());
    const testbed = join(folder, "testbed");
    await mkdir(testbed);
    await chmod(testbed, 0o755);
    for (const [file, numbers] of [
      ["test_a.py", "[0, 1]"],
      ["test_b.py", "[2, 3]"],
    ] as const)
      await writeFile(join(testbed, file), testsOf(numbers, numWorkers), { mode: 0o644 });
    await writeFile(join(testbed, "pytest.ini"), "[pytest]\n", { mode: 0o644 });
    const config = join(folder, "config.yaml");
    const folders = JSON.stringify({ "/testbed": testbed, "/opt/pytest": suite.packages });
    const driver = hasSandboxes ? `drivers: [cgroup]\ncgroup: { folders: ${folders} }` : "drivers: [process]";
    const [seenTestbed, seenPackages] = hasSandboxes ? ["/testbed", "/opt/pytest"] : [testbed, suite.packages];
    await writeFile(config, `listen: 127.0.0.1:0\n${driver}\n`);
    const service = await startService(config);
    cleanups.push(service.kill);
    const installed = join(folder, "installed");
    await installClient(client.interpreter, installed);
    const profile = join(folder, "pytest.json");
    const pytest = "python3 -B -m pytest -p no:cacheprovider --dist loadfile -n {parallel}";
    const points = [1, 2].map((units) => ({ units, efficiency: units === 1 ? 1 : 0.9 }));
    await writeFile(
      profile,
      JSON.stringify({
        kind: "pytest",
        command: ["sh", "-c", `export PYTHONPATH=$PWD/solution:${seenPackages}; cd ${seenTestbed} && exec ${pytest}`],
        duration: 3,
        elasticity: { type: "table", points: points.slice(0, numWorkers) },
      }),
    );
    const rewardOf = async (name: string, code: string): Promise<{ code: number; output: string }> => {
      const solution = join(folder, name);
      await mkdir(solution);
      await writeFile(join(solution, "solution.py"), code);
      const words = [join(python, "examples/testbed_reward.py"), service.address, solution, profile];
      const env = { ...process.env, PYTHONPATH: installed };
      return new Promise((resolve) => {
        execFile(client.interpreter, words, { env }, (error, stdout, stderr) =>
          resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr }),
        );
      });
    };
    const right = await rewardOf("right", "def square(number):\n    return number * number\n");
    expect(right.output).toContain("6 passed");
    expect(right.output).toContain(`${numWorkers} cores: ${numWorkers} of 1 to ${numWorkers} cpu`);
    expect(right.code).toBe(0);
    const wrong = await rewardOf("wrong", "def square(number):\n    return number + number\n");
    expect(wrong.output).toMatch(/2 failed, 4 passed/); // 0 and 2 are right
    expect(wrong.code).toBe(1);
    const { call, close } = connectActions(service.address);
    cleanups.push(close);
    const { kinds } = (await call("GetStatistics", {})) as { kinds: Record<string, { completed: string }> };
    expect(Number(kinds.pytest!.completed)).toBe(2);
    if (!hasSandboxes) return;
    const hostile = `import os, pathlib
for path in pathlib.Path("/testbed").iterdir():
    for change in (lambda: path.write_text(""), path.unlink, lambda: path.chmod(0o777)):
        try:
            change()
        except OSError:
            pass
def square(number):
    return 0
`;
    expect((await rewardOf("hostile", hostile)).output).toMatch(/3 failed, 3 passed/);
    expect(await readFile(join(testbed, "test_b.py"), "utf8")).toContain("square(number) == number * number");
  },
  600_000,
);
