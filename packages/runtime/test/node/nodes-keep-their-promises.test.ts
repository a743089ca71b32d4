import { existsSync, readdirSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import {
  type ControlPlane,
  LinksConfig,
  type Member,
  runPrefix,
  type SpawnCommand,
  type TreadleError,
  WorkerPermissions,
} from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ProjectCode } from "../../src/node/code-hash.ts";
import { Descendants } from "../../src/node/descendants.ts";
import { NodeService } from "../../src/node/node-service.ts";
import { openSocketFolder } from "../../src/node/socket-folder.ts";
import { codeVersions } from "../../src/node/treadle-code.ts";

const codeHash = async (folder: string): Promise<string> => (await new ProjectCode(folder).current()).hash;

const folders: string[] = [];
let openingFails: Error | undefined;
const openFolder = async (segmentPrefix: string) => {
  if (openingFails) throw openingFails;
  const folder = await openSocketFolder(segmentPrefix);
  folders.push(folder.path);
  return folder;
};

/** The flags that keep a worker alive which connects nowhere. */
const keepsAlive = (folder: string): string[] => ["--require", join(folder, "preload.cjs")];

let root: string;
let plane: ControlPlane;
let service: NodeService;
const exits: unknown[] = [];

const timeoutMs = 10_000;
const nodeMember = (): Member => plane.members("node")[0] as Member;
const tell = (method: string, body: unknown) => plane.command(nodeMember(), method, body, { timeoutMs });

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-a-"));
  await mkdir(join(root, "node_modules"));
  // Workers that cannot connect anywhere: what is tested is the node that starts and ends them.
  await writeFile(join(root, "worker.ts"), "export const nothing = 1;\n");
  const planes = localControlPlanes();
  plane = planes.connect();
  exits.length = 0;
  openingFails = undefined;
  service = new NodeService({
    name: "a",
    plane: planes.connect(),
    info: { cpus: 2, memoryBytes: 2 ** 30, devices: [], labels: {}, platform: "linux" },
    projectRoot: root,
    place: {
      kind: "machine",
      links: LinksConfig.parse({}),
      permissions: WorkerPermissions.parse({ interpreters: [process.execPath], flags: keepsAlive(root) }),
      openFolder,
      cutOffMs: 1000,
    },
  });
  await service.start();
});
afterEach(async () => {
  await service.close("the test is over");
  await plane.close();
  await rm(root, { recursive: true, force: true });
});

async function announceRun(runId: string) {
  return plane.announce("run", runId, {}, (method, body) => {
    if (method === "exited") exits.push((body as { report: unknown }).report);
  });
}

async function spawnCommand(
  over: Partial<SpawnCommand> = {},
  devices = ["a/cpu:0"],
  incarnation = 0,
): Promise<SpawnCommand> {
  const run = over.run ?? "run-1";
  return {
    run,
    session: 1,
    segmentPrefix: `${runPrefix(run)}1-`,
    modulePath: "worker.ts",
    projectRoot: pathToFileURL(`${root}/`).href,
    codeHash: await codeHash(root),
    env: {},
    boot: {
      runId: run,
      component: "maker",
      rank: 0,
      rankDevices: [1],
      incarnation,
      devices,
      module: "",
      exportName: "MakerWorker",
      runnerAddresses: ["tcp:127.0.0.1:1"],
      startTimeoutMs: 120_000,
      peerTimeoutMs: 60_000,
      token: "a token of enough characters",
      seed: 0,
      trace: false,
    },
    ...over,
  };
}

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

const until = async (holds: () => boolean): Promise<void> => {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 20));
};

test("RU1, NS3: a start that is asked for twice starts one process, and its end is reported with its reason", async () => {
  await announceRun("run-1");
  const command = await spawnCommand();
  const [first, second] = (await Promise.all([tell("spawn", command), tell("spawn", command)])) as { pid: number }[];
  expect(first).toEqual(second);
  await until(() => exits.length > 0);
  expect(exits).toMatchObject([
    { worker: "maker/0", incarnation: 0, pid: first?.pid, failure: { code: "link.refused" } },
  ]);
});

test("RU1: a start that is asked for again after its process has ended starts none, nor does one that was told to end before", async () => {
  await announceRun("run-1");
  const command = await spawnCommand();
  const first = await tell("spawn", command);
  await until(() => exits.length > 0);
  expect(await tell("spawn", command)).toEqual(first);
  await tell("end", { run: "run-1", session: 1, worker: "maker/0", incarnation: 1 });
  const late = await spawnCommand({}, ["a/cpu:0"], 1);
  await expect(tell("spawn", late)).rejects.toMatchObject({ code: "worker.died" });
  await expect(tell("spawn", command)).rejects.toMatchObject({ code: "worker.died" });
  const next = (await tell("spawn", await spawnCommand({}, ["a/cpu:0"], 2))) as { pid: number };
  await until(() => exits.length > 1);
  expect(exits).toMatchObject([{ incarnation: 0 }, { incarnation: 2, pid: next.pid }]);
});

test("who tells a node to end what it has not is told so, and who tells it to end what it has, too", async () => {
  await writeFile(join(root, "preload.cjs"), "setInterval(() => {}, 1000);\n");
  await announceRun("run-1");
  const end = { run: "run-1", session: 1, worker: "maker/0", incarnation: 0 };
  expect(await tell("end", end)).toEqual({ isHere: false });
  const interpreter = { command: process.execPath, flags: keepsAlive(root) };
  await tell("spawn", await spawnCommand({ interpreter }, ["a/cpu:0"], 1));
  expect(await tell("end", end)).toEqual({ isHere: false });
  expect(await tell("end", { ...end, incarnation: 1 })).toEqual({ isHere: true });
  await until(() => exits.length > 0);
  for (const verb of ["end", "stop"])
    expect(await tell(verb, { ...end, incarnation: 1, graceMs: 10 })).toEqual({ isHere: false });
});

test("NS1: an accelerator is held by one run at a time, and free again when that run has left", async () => {
  const run = await announceRun("run-1");
  await announceRun("run-2");
  await tell("spawn", await spawnCommand({}, ["a/cuda:0", "b/cuda:1", "a/cpu:0"]));
  const other = async () => spawnCommand({ run: "run-2" }, ["a/cuda:0"]);
  await expect(tell("spawn", await other())).rejects.toMatchObject({
    code: "node.unavailable",
    message: expect.stringMatching(/'a\/cuda:0'.*'run-1'/),
  });
  await expect(tell("spawn", await spawnCommand({ run: "run-2" }, ["b/cuda:1", "a/cpu:0"]))).resolves.toBeDefined();
  await run.withdraw("it is over");
  let granted = false;
  for (let attempt = 0; attempt < 100 && !granted; attempt++) {
    granted = await tell("spawn", await other()).then(
      () => true,
      () => new Promise<boolean>((resolve) => setTimeout(() => resolve(false), 50)),
    );
  }
  expect(granted).toBe(true);
});

test("NS6: beside a run that wants the node for itself no other has workers, whichever came first, until it is gone", async () => {
  await writeFile(join(root, "preload.cjs"), "setInterval(() => {}, 1000);\n");
  const interpreter = { command: process.execPath, flags: keepsAlive(root) };
  for (const run of ["run-1", "run-2"]) await announceRun(run);
  const prepared = await spawnCommand({ interpreter });
  // Nothing is awaited before the command is told, so two of them come in the order in which they are written.
  const spawn = (run: string, exclusive: boolean) => {
    const { boot, ...command } = prepared;
    const started = tell("spawn", {
      ...command,
      run,
      exclusive,
      segmentPrefix: `${runPrefix(run)}1-`,
      boot: { ...boot, runId: run },
    });
    return started.then(
      () => "started",
      (error: TreadleError) => `${error.code} ${error.details["takenBy"]}`,
    );
  };
  const held = () => (nodeMember().body as { exclusiveTo?: string }).exclusiveTo;
  expect(await spawn("run-1", false)).toBe("started");
  expect(await spawn("run-2", true)).toBe("node.unavailable run-1");
  await tell("release", { run: "run-1", session: 1 });
  expect(await Promise.all([spawn("run-2", true), spawn("run-1", false)])).toEqual([
    "started",
    "node.unavailable run-2",
  ]);
  await until(() => held() === "run-2");
  await tell("release", { run: "run-2", session: 1 });
  await until(() => held() === undefined);
  expect(await spawn("run-1", false)).toBe("started");
  // A start that fails holds nothing.
  await tell("release", { run: "run-1", session: 1 });
  const other = await spawnCommand({ run: "run-2", exclusive: true, codeHash: "other" });
  await expect(tell("spawn", other)).rejects.toMatchObject({ code: "node.unavailable" });
  expect(await spawn("run-1", false)).toBe("started");
});

test("NS6: a newer runner of a run that has the node for itself has it for itself, too", async () => {
  await writeFile(join(root, "preload.cjs"), "setInterval(() => {}, 1000);\n");
  const interpreter = { command: process.execPath, flags: keepsAlive(root) };
  for (const run of ["run-1", "run-2"]) await announceRun(run);
  await tell("spawn", await spawnCommand({ interpreter, exclusive: true }));
  await tell("spawn", await spawnCommand({ interpreter, exclusive: true, session: 2 }, ["a/cpu:0"], 1));
  const other = tell("spawn", await spawnCommand({ interpreter, run: "run-2" }));
  await expect(other).rejects.toMatchObject({ code: "node.unavailable", details: { takenBy: "run-1" } });
});

test("NS2, RU2: when its runner leaves, or a newer one comes, a run's workers end and nothing of them stays", async () => {
  await writeFile(join(root, "preload.cjs"), "setInterval(() => {}, 1000);\n");
  folders.length = 0;
  const run = await announceRun("run-1");
  const interpreter = { command: process.execPath, flags: keepsAlive(root) };
  const { pid } = (await tell("spawn", await spawnCommand({ interpreter }))) as { pid: number };
  const newer = (await tell("spawn", await spawnCommand({ session: 2, interpreter }, ["a/cpu:0"], 1))) as {
    pid: number;
  };
  expect(isAlive(pid)).toBe(false);
  expect(await tell("spawn", await spawnCommand({ interpreter })).catch((error: TreadleError) => error.code)).toBe(
    "node.lost",
  );
  await tell("release", { run: "run-1", session: 1 });
  expect(newer.pid).not.toBe(pid);
  await run.withdraw("it is over");
  await tell("release", { run: "run-1", session: 2 });
  expect(isAlive(newer.pid)).toBe(false);
  expect(folders).toHaveLength(2);
  expect(folders.filter((folder) => existsSync(folder))).toEqual([]);
});

test("NS2, RU2: twenty runs that come and go leave an agent no file, folder, timer or listener more than the first two", async () => {
  await writeFile(join(root, "preload.cjs"), "process.exit(0);\n");
  const interpreter = { command: process.execPath, flags: keepsAlive(root) };
  const held = () => ({
    files: existsSync("/proc/self/fd") ? readdirSync("/proc/self/fd").length : 0,
    resources: process.getActiveResourcesInfo().length,
    listeners: process.listenerCount("exit"),
  });
  let before = held();
  for (let number = 1; number <= 20; number++) {
    const run = await announceRun(`run-${number}`);
    await tell("spawn", await spawnCommand({ run: `run-${number}`, interpreter }));
    await until(() => exits.length === number);
    await run.withdraw("it is over");
    await tell("release", { run: `run-${number}`, session: 1 });
    if (number === 2) before = held();
  }
  // Fewer than one a run: the test's own come and go.
  await until(() => held().files < before.files + 9 && held().resources < before.resources + 9);
  expect(held().listeners).toBeLessThanOrEqual(before.listeners);
  expect(folders.filter((folder) => existsSync(folder))).toEqual([]);
});

test("NS1: a start that is under way while its run leaves holds no device", async () => {
  // So many files that looking at them takes longer than ending the run.
  await mkdir(join(root, "many"));
  await Promise.all(
    Array.from({ length: 2000 }, (_, i) => writeFile(join(root, `many/${i}.ts`), `export const x = ${i};\n`)),
  );
  for (const run of ["run-1", "run-2"]) await announceRun(run);
  await tell("spawn", await spawnCommand());
  await until(() => exits.length > 0);
  const late = tell("spawn", await spawnCommand({}, ["a/cuda:0"], 1)).catch((error: TreadleError) => error.code);
  await tell("release", { run: "run-1", session: 1 });
  expect(await late).toBe("node.lost");
  await expect(tell("spawn", await spawnCommand({ run: "run-2" }, ["a/cuda:0"]))).resolves.toBeDefined();
});

test("NS4: a variable that no process can have is refused, and one that is too long for the system leaves nothing", async () => {
  await announceRun("run-1");
  const nul = await spawnCommand({ env: { OMP_NUM_THREADS: "1\0" } });
  await expect(tell("spawn", nul)).rejects.toMatchObject({
    code: "link.protocol",
    message: expect.stringContaining("must not hold the character NUL"),
  });
  const long = await spawnCommand({ env: { OMP_NUM_THREADS: "1".repeat(500_000) } });
  await expect(tell("spawn", long)).rejects.toMatchObject({
    code: "worker.load-failed",
    message: expect.stringContaining("longer than the operating system takes"),
  });
  const parent = new Descendants().environment["TREADLE_WORKER_GROUP"];
  const groups = parent === undefined ? [] : readdirSync(join(parent, ".."));
  expect(groups.filter((name) => name.startsWith(`treadle-worker-${process.pid}-`))).toHaveLength(
    parent === undefined ? 0 : 1,
  );
});

test("NS4: code that changes while a run is there is started no more, and is named", async () => {
  await announceRun("run-1");
  const first = await spawnCommand();
  await tell("spawn", first);
  await writeFile(join(root, "worker.ts"), "export const nothing = 2;\n");
  const again = { ...first, boot: { ...first.boot, incarnation: 1 } };
  await expect(tell("spawn", again)).rejects.toMatchObject({
    code: "node.unavailable",
    message: expect.stringMatching(/'a' has changed since run 'run-1' began there: 'worker.ts' differs/),
    details: { refuses: true },
  });
  await writeFile(join(root, "worker.ts"), "export const nothing = 1;\n");
  expect(await tell("spawn", again)).toMatchObject({ pid: expect.any(Number) });
});

test("NS4: other code, a module outside of the project, and nonsense are refused", async () => {
  await announceRun("run-1");
  const refusal = async (body: unknown, method = "spawn") =>
    tell(method, body).then(
      () => "accepted",
      (error: TreadleError) => error.code,
    );
  expect(await refusal(await spawnCommand({ codeHash: "other" }))).toBe("node.unavailable");
  expect(await refusal(await spawnCommand({ modulePath: "../../etc/passwd" }))).toBe("link.protocol");
  expect(await refusal(await spawnCommand({ modulePath: "missing.ts" }))).toBe("worker.load-failed");
  await mkdir(join(root, ".hidden"));
  await writeFile(join(root, ".hidden/worker.ts"), "export const nothing = 1;\n"); // where nothing is compared
  expect(await refusal(await spawnCommand({ modulePath: ".hidden/worker.ts" }))).toBe("worker.load-failed");
  expect(await refusal({ run: 7 })).toBe("link.protocol");
  expect(await refusal({}, "format-disk")).toBe("call.unknown-method");
  expect(await tell("check", {})).toEqual({ codeHash: await codeHash(root), versions: codeVersions });
});

test("a node whose disk is full refuses a run by name, and serves it once there is space", async () => {
  await announceRun("run-1");
  openingFails = new Error("ENOSPC: no space left on device, write");
  await expect(tell("spawn", await spawnCommand())).rejects.toMatchObject({
    code: "node.unavailable",
    details: { refuses: true },
    message: expect.stringMatching(/node 'a' cannot serve run 'run-1': ENOSPC.*temporary files is '/),
  });
  openingFails = undefined;
  await expect(tell("spawn", await spawnCommand())).resolves.toMatchObject({ pid: expect.any(Number) });
});
