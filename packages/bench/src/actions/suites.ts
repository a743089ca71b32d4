/** Suites of tests that are the reward of replayed trajectories. */
import { execFile } from "node:child_process";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { CgroupDriver, cgroupDriverLacks, ProcessDriver, type SandboxDriver } from "@treadle/actions";

export type Suite = {
  readonly makeDriver: () => SandboxDriver;
  /** the first action of a trajectory */
  readonly write: { readonly program: string; readonly args: readonly string[] };
  /** its other tool calls */
  readonly tool: string;
  /** text for a shell; `parallel` are its cores */
  readonly reward: (parallel: string) => string;
  /** Removes what it made. */
  readonly close: () => Promise<void>;
};

/** Keeps one core busy for some tenths of a second. */
const nodeTest = `import { test } from "node:test";
import assert from "node:assert";
test("sum", () => {
  let sum = 0;
  for (let i = 0; i < 2e8; i++) sum += i % 7;
  assert.ok(sum > 0);
});
`;

/** Files that the trajectory itself writes, each in a process of its own. */
export function nodeSuite(testFiles: number): Suite {
  return {
    makeDriver: () => (cgroupDriverLacks() === undefined ? new CgroupDriver() : new ProcessDriver()),
    write: {
      program: 'n=$1; while [ "$n" -gt 0 ]; do printf %s "$2" > "case$n.test.mjs"; n=$((n-1)); done',
      args: [String(testFiles), nodeTest],
    },
    tool: 'grep -c assert ./*.mjs | sort | tail -1; for f in ./*.mjs; do wc -c < "$f"; done',
    reward: (parallel) => `node --test --test-concurrency=${parallel}`,
    close: async () => {},
  };
}

/** It waits, as tests do that start programs and servers: what else the machine computes changes little of it. */
const pythonTest = `import time
from solution import step

def test_waits():
    time.sleep(1)
    assert step(8) == 1
`;

/** Files of pytest in a root-owned /testbed, which the trajectory cannot change. Or what this machine lacks. */
export async function pytestSuite(testFiles: number): Promise<Suite | string> {
  const lacks = cgroupDriverLacks();
  if (lacks !== undefined) return lacks;
  const folder = await mkdtemp(join(tmpdir(), "treadle-pytest-"));
  const close = (): Promise<void> => rm(folder, { recursive: true, force: true });
  const [testbed, packages] = [join(folder, "testbed"), join(folder, "packages")];
  try {
    // Whatever the umask of this process is: sandboxes have users of their own.
    const install = 'umask 022; exec python3 -m pip install --quiet --target "$1" pytest pytest-xdist';
    await promisify(execFile)("sh", ["-c", install, "sh", packages]);
    await mkdir(testbed);
    const files = Array.from({ length: testFiles }, (_, n) => [`test_${n}.py`, pythonTest] as const);
    for (const [name, text] of [...files, ["pytest.ini", "[pytest]\npythonpath = /work\n"] as const]) {
      await writeFile(join(testbed, name), text);
      await chmod(join(testbed, name), 0o644);
    }
    await chmod(testbed, 0o755);
  } catch (error) {
    await close();
    return `pytest and pytest-xdist could not be installed by python3: ${(error as Error).message.split("\n")[0]}`;
  }
  const folders = { "/testbed": testbed, "/opt/pytest": packages };
  const pytest = "python3 -B -m pytest -q -p no:cacheprovider --dist loadfile -n";
  return {
    makeDriver: () => new CgroupDriver({ folders }),
    write: { program: 'printf %s "$1" > solution.py', args: ["def step(number):\n    return number % 7\n"] },
    tool: 'grep -c assert /testbed/*.py | sort | tail -1; for f in /testbed/*.py; do wc -c < "$f"; done',
    reward: (parallel) => `cd /testbed && exec env PYTHONPATH=/opt/pytest ${pytest} ${parallel}`,
    close,
  };
}
