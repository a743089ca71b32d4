/** The ten lines of Python of `testbed_reward.py`, on a profile that `treadle actions profile` measured, with a folder and with an image. */
import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { chmod, cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, test } from "vitest";
import { cgroupDriverLacks, ElasticityProfile } from "../src/index.ts";
import { connectActions } from "./support/client.ts";
import { followed, startDockerEngine } from "./support/docker-engine.ts";
import { installClient, preparePytest, preparePython, python } from "./support/python-client.ts";
import { startService } from "./support/service-process.ts";

const treadle = fileURLToPath(new URL("../../cli/bin/treadle.js", import.meta.url));
const cleanups: (() => unknown)[] = [];
afterAll(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Of one of two files, whose last test waits until every worker has come as far. */
const testsOf = (numbers: string): string => `import os, time, pathlib, pytest
from solution import square

@pytest.mark.parametrize("number", ${numbers})
def test_square(number):
    assert square(number) == number * number

def test_beside(worker_id, testrun_uid):
    marks = pathlib.Path("/tmp", testrun_uid)
    marks.mkdir(exist_ok=True)
    (marks / worker_id).touch()
    deadline = time.monotonic() + 20
    while len(list(marks.iterdir())) < int(os.environ["PYTEST_XDIST_WORKER_COUNT"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
`;

const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
/** The block of a language in which the README says it. */
const documented = (language: string, text: string): string => {
  const blocks = [...readme.matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].filter(([, of]) => of === language);
  const [block] = blocks.map(([, , content = ""]) => content).filter((content) => content.includes(text));
  if (block === undefined) throw new Error(`no block of '${language}' says '${text}'`);
  return block;
};
const conftest = documented("python", "PYTEST_XDIST_WORKER");
/** What needs a registry is done otherwise. */
const dockerfileFrom = (image: string): string => {
  const lines = documented("dockerfile", "/testbed").split("\n");
  const others = [/^FROM /, /^RUN pip install /].map((start) => lines.findIndex((line) => start.test(line)));
  const replaced = new Map(others.map((at, n) => [at, [`FROM ${image}`, "COPY pytest /opt/pytest"][n]]));
  expect([...replaced.keys()].every((at) => at >= 0)).toBe(true);
  return lines.map((line, at) => replaced.get(at) ?? line).join("\n");
};
const right = "def square(number):\n    return number * number\n";
const forged = "import os\nprint('6 passed')\nos._exit(0)\n";
const hostile = {
  "solution.py": `import os, pathlib
for path in [pathlib.Path("/testbed"), *pathlib.Path("/testbed").iterdir(), *pathlib.Path("/opt/pytest").iterdir()]:
    for change in (lambda: path.write_text(""), path.unlink, lambda: path.rename(path / "moved"), lambda: path.chmod(0o777),
                   lambda: os.chown(path, os.getuid(), -1), lambda: (path / "conftest.py").write_text("")):
        try:
            change()
            print("CHANGED", path)
        except OSError:
            pass
assert os.getuid() != 0
def square(number):
    return 0
`,
  // In place of what runs the suite.
  "pytest.py": forged,
  "pytest/__main__.py": forged,
  "sitecustomize.py": forged,
  "usercustomize.py": forged,
  "xdist.py": forged,
};

type Testbed = {
  /** of the service's configuration */
  readonly driver: string;
  /** where the command sees the suite, and pytest */
  readonly places: readonly [testbed: string, packages: string];
  readonly image?: string;
  readonly isolates: boolean;
};
type Files = { readonly folder: string; readonly testbed: string; readonly packages: string };

const hasSandboxes = cgroupDriverLacks() === undefined;

async function asFolders({ testbed, packages }: Files): Promise<Testbed> {
  if (!hasSandboxes) return { driver: "drivers: [process]", places: [testbed, packages], isolates: false };
  const folders = JSON.stringify({ "/testbed": testbed, "/opt/pytest": packages });
  const driver = `drivers: [cgroup]\ncgroup: { folders: ${folders} }`;
  return { driver, places: ["/testbed", "/opt/pytest"], isolates: true };
}

async function asImage({ folder, testbed, packages }: Files): Promise<Testbed | { readonly lacks: string }> {
  const engine = await startDockerEngine();
  if (typeof engine === "string") return { lacks: engine };
  cleanups.push(() => engine.close());
  if (engine.lacksPython !== undefined) return { lacks: engine.lacksPython };
  const context = join(folder, "context");
  await cp(testbed, join(context, "suite"), { recursive: true });
  await cp(packages, join(context, "pytest"), { recursive: true, preserveTimestamps: true });
  await writeFile(join(context, "Dockerfile"), dockerfileFrom(engine.image));
  const image = "treadle-test:testbed";
  const source = { context, src: ["Dockerfile", "pytest", "suite"] };
  await followed(engine.docker, await engine.docker.buildImage(source, { t: image }));
  const docker = JSON.stringify({ image: engine.image, images: [image], socket: engine.socket });
  return { driver: `drivers: [docker]\ndocker: ${docker}`, places: ["/testbed", "/opt/pytest"], image, isolates: true };
}

type Ran = { readonly code: number; readonly output: string };
const run = (program: string, words: readonly string[], environment = {}): Promise<Ran> =>
  new Promise((resolve) => {
    execFile(program, words, { env: { ...process.env, ...environment } }, (error, stdout, stderr) =>
      resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr }),
    );
  });

async function writeFiles(folder: string, files: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, text] of Object.entries(files)) {
    await mkdir(join(folder, name, ".."), { recursive: true });
    await writeFile(join(folder, name), text, { mode: 0o644 });
  }
}

describe.each([
  [`a folder${hasSandboxes ? "" : " (without sandboxes, where control groups or bubblewrap are missing)"}`, asFolders],
  ["an image", asImage],
])("a root-owned suite in /testbed of %s", (_, make) => {
  test.skipIf(!existsSync("/usr/bin/python3"))(
    "is measured, and is then a reward that pytest runs in parallel and no solution changes",
    async (context) => {
      const client = await preparePython();
      if ("lacks" in client) return context.skip(client.lacks);
      const suite = await preparePytest();
      if ("lacks" in suite) return context.skip(suite.lacks);
      const folder = await mkdtemp(join(tmpdir(), "treadle-reward-"));
      cleanups.push(() => rm(folder, { recursive: true }));
      const testbed = join(folder, "testbed");
      const tests = { "test_a.py": testsOf("[0, 1]"), "test_b.py": testsOf("[2, 3]"), "conftest.py": conftest };
      await writeFiles(testbed, tests);
      await chmod(testbed, 0o755);
      const made = await make({ folder, testbed, packages: suite.packages });
      if ("lacks" in made) return context.skip(made.lacks);
      const { driver, places, image, isolates } = made;

      const config = join(folder, "config.yaml");
      await writeFile(config, `listen: 127.0.0.1:0\n${driver}\n`);
      const cores = Math.min(2, availableParallelism());
      const profile = join(folder, "pytest.json");
      const [seenTestbed, seenPackages] = places;
      const pytest = "python3 -B -m pytest -p no:cacheprovider --dist loadfile -n {parallel}";
      const command = `export PYTHONPATH=${seenPackages} SOLUTION=$PWD/solution; cd ${seenTestbed} && exec ${pytest}`;
      // One that takes its time, for others than pytest use the cores of this machine, too.
      const reference = join(folder, "reference");
      await writeFiles(reference, {
        "solution/solution.py": `import time\n${right.replace("\n", "\n    time.sleep(1.5)\n")}`,
      });
      const measured = await run(process.execPath, [
        ...[treadle, "actions", "profile", "--config", config, "--kind", "pytest", "--folder", reference],
        ...[...(image === undefined ? [] : ["--image", image]), "--units", [1, 2].slice(0, cores).join()],
        ...["--samples", "1", "--tries", "1", "--out", profile, "--", "sh", "-c", command],
      ]);
      expect([measured.code, measured.output]).toEqual([0, expect.stringMatching(/1 cores: .*\n/)]);
      const stored = ElasticityProfile.parse(JSON.parse(await readFile(profile, "utf8")));
      expect(stored.samples.map(({ units }) => units)).toEqual([1, 2].slice(0, cores));

      const service = await startService(config);
      cleanups.push(service.kill);
      const installed = join(folder, "installed");
      await installClient(client.interpreter, installed);
      const rewardOf = async (name: string, files: Readonly<Record<string, string>>): Promise<Ran> => {
        const solution = join(folder, name);
        await writeFiles(solution, files);
        const example = [join(python, "examples/testbed_reward.py"), service.address, solution, profile];
        const words = image === undefined ? example : [...example, image];
        return run(client.interpreter, words, { PYTHONPATH: installed });
      };
      const best = await rewardOf("right", { "solution.py": right });
      expect(best.output).toContain("6 passed");
      expect(best.output).toContain(`${cores} cores: ${cores} of 1 to ${cores} cpu`);
      expect(best.code).toBe(0);
      const wrong = await rewardOf("wrong", { "solution.py": right.replace("*", "+") });
      expect(wrong.output).toMatch(/2 failed, 4 passed/); // 0 and 2 are right
      expect(wrong.code).toBe(1);
      const { call, close } = connectActions(service.address);
      cleanups.push(close);
      const { kinds } = (await call("GetStatistics", {})) as { kinds: Record<string, { completed: string }> };
      expect(Number(kinds.pytest!.completed)).toBe(2);
      if (!isolates) return;
      const judged = await rewardOf("hostile", hostile);
      expect(judged.output).toMatch(/3 failed, 3 passed/);
      expect(judged.output).not.toContain("CHANGED");
      expect(judged.code).toBe(1);
      expect(await readFile(join(testbed, "test_b.py"), "utf8")).toBe(tests["test_b.py"]);
    },
    600_000,
  );
});
