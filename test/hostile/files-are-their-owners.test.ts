/** Another user of the machine: what a run leaves and listens on is its owner's alone. */
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, statSync } from "node:fs";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { segmentsOf, until } from "../support/cluster.ts";
import { socketFolders } from "../support/ledger.ts";
import { NodesWorld } from "../support/nodes.ts";
import { command, loaderFlags, projectRoot, runner } from "../support/project.ts";

const nobody = 65_534;
const isRoot = process.getuid?.() === 0;
const tried = isRoot ? "; another user opens none" : " (that another user opens none is tried as root alone)";

test(`a run's folder and every file in it are its owner's alone, whatever whoever starts it lets others read${tried}`, async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-l-"));
  await chmod(root, 0o755); // others may come as far as the runs' own folder
  try {
    const runs = join(root, "runs");
    const settings = ["steps=1", "observe.record=true", "checkpoints.everySteps=1"];
    const args = [...loaderFlags, runner, projectRoot, runs, join(projectRoot, "workflows/bandit"), "new", ...settings];
    const careless = ["-c", 'umask 022; exec "$0" "$@"', process.execPath, ...args];
    const { status, stderr } = spawnSync("sh", careless, { cwd: projectRoot, encoding: "utf8" });
    expect(status, stderr).toBe(0);
    const [run = ""] = readdirSync(runs);
    const paths = readdirSync(join(runs, run), { recursive: true, encoding: "utf8" }).map((path) =>
      join(runs, run, path),
    );
    expect(paths.map((path) => path.slice(runs.length + run.length + 2))).toEqual(
      expect.arrayContaining(["config.json", "journal.jsonl", "logs", "recordings", "checkpoints/step-000001"]),
    );
    const open = [join(runs, run), ...paths].filter((path) => (statSync(path).mode & 0o077) !== 0);
    expect(open).toEqual([]);
    if (!isRoot) return;
    const file = join(runs, run, "config.json");
    expect(existsSync(file)).toBe(true);
    expect(spawnSync("cat", [file], { uid: nobody, gid: nobody }).status).not.toBe(0);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
});

test("so is what a workflow writes elsewhere when the command line runs it", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-l-"));
  try {
    const begins = join(root, "begins");
    await writeFile(begins, "");
    const settings = ["steps=1", `beginsWith=${begins}`].flatMap((each) => ["--set", each]);
    const workflow = join(projectRoot, "test/support/workflows/ledger");
    const args = [command, "run", workflow, "--plain", "--runs", join(root, "runs"), ...settings];
    const careless = ["-c", 'umask 022; exec "$0" "$@"', process.execPath, ...args];
    const { status, stderr } = spawnSync("sh", careless, { cwd: projectRoot, encoding: "utf8" });
    expect(status, stderr).toBe(0);
    expect(statSync(`${begins}.awaited`).mode & 0o777).toBe(0o600);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}, 120_000);

test(`sockets and shared memory of a run under way are its owner's alone${tried}`, async () => {
  await using world = await NodesWorld.open();
  for (const folder of [world.root, world.temporary]) await chmod(folder, 0o755); // others may come as far as there
  await world.startNode("a");
  const run = world.startRun(["steps=100000", "pauseMs=100", "payload=300000"]);
  const { runId } = await run.event("run-started");
  await run.event("step-finished");
  const folders = await until(async () => {
    const found = await socketFolders(world.temporary);
    return found.length === 0 ? undefined : found.map((name) => join(world.temporary, name));
  }, "the sockets");
  const segments = await until(async () => {
    const found = await segmentsOf(runId);
    return found.length === 0 ? undefined : found.map((name) => join("/dev/shm", name));
  }, "shared memory");
  const isOpen = (path: string) => existsSync(path) && (statSync(path).mode & 0o077) !== 0;
  expect([...folders, ...segments].filter(isOpen)).toEqual([]);
  if (isRoot) {
    const [folder = ""] = folders;
    const dial = `require("node:net").connect(process.argv[1]).on("connect", () => process.exit(0)).on("error", () => process.exit(7))`;
    for (const name of readdirSync(folder)) {
      const options = { uid: nobody, gid: nobody, cwd: "/" };
      expect(spawnSync(process.execPath, ["-e", dial, join(folder, name)], options).status, name).toBe(7);
    }
    for (const path of segments) expect(spawnSync("cat", [path], { uid: nobody, gid: nobody }).status).not.toBe(0);
  }
  run.child.kill("SIGINT");
  expect(await run.exited).toBe(0);
}, 240_000);
