/** Real processes that wait to become workers. */
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, readlink, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { randomOf } from "../../../../test/soak/virtual-network.ts";
import { childrenOf } from "../../../../test/support/cluster.ts";
import { projectRoot as checkout } from "../../../../test/support/project.ts";
import { until } from "../../../../test/support/treadle.ts";
import { HostProcess, type HostStart } from "../../src/node/host-process.ts";
import { SpareHosts } from "../../src/node/spare-hosts.ts";

let project: string;
let spares: SpareHosts;
const given: HostProcess[] = [];
beforeEach(async () => {
  project = await realpath(await mkdtemp(join(tmpdir(), "treadle-s-")));
  await symlink(join(checkout, "node_modules"), join(project, "node_modules"));
  await writeFile(join(project, "package.json"), JSON.stringify({ type: "module" }));
  spares = new SpareHosts({ node: "a", count: 2, quietMs: 20, restMs: 100 });
});
afterEach(async () => {
  spares.close();
  for (const host of given.splice(0)) host.kill();
  await until(() => waiting().length === 0);
  await rm(project, { recursive: true });
});

function start(env: Record<string, string> = {}): Required<HostStart> {
  const ahead = pathToFileURL(join(project, "worker.ts")).href;
  const interpreter = { command: process.execPath, flags: [] };
  return { interpreter, memoryLimitMiB: undefined, rights: undefined, projectRoot: project, env, ahead };
}

const waiting = (): number[] => childrenOf(process.pid, project);

function take(env?: Record<string, string>, codeHash = "code"): number | undefined {
  const host = spares.take(start(env), codeHash);
  if (host !== undefined) given.push(host);
  return host?.child.pid;
}

test("a worker runs in the root of its project, which relative paths of its configuration are of", async ({ skip }) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  const host = await HostProcess.start("a", start());
  given.push(host);
  expect(await readlink(`/proc/${host.child.pid}/cwd`)).toBe(project);
});

test("SPH1: what waits is given once, and only for a start like the one it was made by, of the same code", async ({
  skip,
}) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  expect(take()).toBeUndefined();
  await until(() => waiting().length === 1);
  const [pid] = waiting();
  expect(take({}, "other code")).toBeUndefined();
  expect(take({ COLOUR: "red" })).toBeUndefined();
  await until(() => waiting().length === 2 && !waiting().includes(pid as number)); // one of each of the last two
  const before = waiting();
  const red = take({ COLOUR: "red" });
  expect(before).toContain(red);
  expect(take({ COLOUR: "red" })).not.toBe(red);
});

test("SPH1, SPH4: whatever is asked for in whatever order, no more wait than may, and none is given twice", async ({
  skip,
}) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  const random = randomOf(Number(process.env.TREADLE_SEED));
  const seen = new Set<number>();
  let numGiven = 0;
  for (let round = 0; round < 12; round++) {
    const pid = take({ COLOUR: random() < 0.7 ? "red" : "blue" });
    if (pid !== undefined) {
      numGiven++;
      expect(seen.has(pid)).toBe(false);
      seen.add(pid);
    }
    if (random() < 0.6) await until(() => waiting().some((each) => !seen.has(each)));
    await until(() => waiting().filter((each) => !seen.has(each)).length <= 2); // what was ended ends soon
  }
  expect(numGiven).toBeGreaterThan(0);
  spares.rest();
  await until(() => waiting().every((pid) => seen.has(pid)));
});

test("SPH2: what waits has run nothing of the project", async ({ skip }) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  const mark = join(project, "ran");
  const code = `import { Worker } from "@treadle/runtime";
    import { writeFileSync } from "node:fs";
    writeFileSync(${JSON.stringify(mark)}, "");
    export class Mine extends Worker {}`;
  await writeFile(join(project, "worker.ts"), code);
  take();
  await until(() => waiting().length === 1);
  take();
  const host = given[0] as HostProcess;
  const exited = new Promise((resolve) => host.child.once("exit", resolve));
  host.child.stdin?.end(); // it has loaded what it may, and ends, as nobody needs it
  expect(await exited).toBe(0);
  expect(existsSync(mark)).toBe(false);
});

test("one that ends by itself is given to nobody, and not made again and again", async () => {
  const [command, made] = [join(project, "ends.sh"), join(project, "made")];
  await writeFile(command, `#!/bin/sh\necho made >> '${made}'\n`, { mode: 0o755 });
  const request = { ...start(), interpreter: { command, flags: [] } };
  expect(spares.take(request, "code")).toBeUndefined();
  await until(() => existsSync(made));
  await delay(600); // thirty times as long as until the next would be made
  expect(readFileSync(made, "utf8")).toBe("made\n");
  expect(spares.take(request, "code")).toBeUndefined();
});

test("SPH4: one whose loading never ends is gone with the agent, however it went", async ({ skip }) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  await rm(join(project, "node_modules"));
  const installed = join(project, "node_modules", "treadle");
  await mkdir(installed, { recursive: true });
  const entry = `require("node:fs").writeFileSync("stuck", ""); for (;;);`;
  await writeFile(join(installed, "package.json"), JSON.stringify({ main: "index.cjs" }));
  await writeFile(join(installed, "index.cjs"), entry);
  await writeFile(join(project, "worker.ts"), `import { Worker } from "treadle"; export class Mine extends Worker {}`);
  const host = await HostProcess.start("a", start());
  await until(() => existsSync(join(project, "stuck")));
  const exited = once(host.child, "exit");
  for (const stream of host.child.stdio) stream?.destroy(); // as those of an agent that was killed
  expect(await exited).toEqual([null, "SIGKILL"]);
});

test("SPH3: none is started while workers are, however long that goes on; then it is", async () => {
  vi.useFakeTimers();
  const started = vi.spyOn(HostProcess, "start").mockRejectedValue(new Error("not in this test"));
  const quiet = new SpareHosts({ node: "a", count: 2, quietMs: 1000 });
  try {
    for (let worker = 0; worker < 20; worker++) {
      quiet.take(start(), "code");
      await vi.advanceTimersByTimeAsync(900);
    }
    expect(started).not.toHaveBeenCalled();
    await vi.advanceTimersByTimeAsync(200);
    expect(started).toHaveBeenCalledOnce();
  } finally {
    quiet.close();
    started.mockRestore();
    vi.useRealTimers();
  }
});
