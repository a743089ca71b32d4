import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { type ControlPlane, LinksConfig, type Member, type SpawnCommand, type TreadleError } from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach, beforeEach, expect, test } from "vitest";
import { codeHash } from "../../src/agent/code-hash.ts";
import { NodeService } from "../../src/agent/node-service.ts";
import { openSocketFolder } from "../../src/cluster/socket-folder.ts";

const folders: string[] = [];
const openFolder = async (segmentPrefix: string) => {
  const folder = await openSocketFolder(segmentPrefix);
  folders.push(folder.path);
  return folder;
};

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
  service = new NodeService({
    name: "a",
    plane: planes.connect(),
    info: { cpus: 2, memoryBytes: 2 ** 30, devices: [], labels: {}, platform: "linux" },
    projectRoot: root,
    place: { kind: "machine", links: LinksConfig.parse({}), openFolder, cutOffMs: 1000 },
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
    segmentPrefix: `treadle-${run}-`,
    modulePath: "worker.ts",
    projectRoot: pathToFileURL(`${root}/`).href,
    codeHash: await codeHash(root),
    env: {},
    boot: {
      runId: run,
      component: "maker",
      rank: 0,
      worldSize: 1,
      incarnation,
      devices,
      module: "",
      exportName: "MakerWorker",
      runnerAddresses: ["tcp:127.0.0.1:1"],
      token: "a token of enough characters",
      runFolder: root,
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

test("Q1, A3: a start that is asked for twice starts one process, and its end is reported with its reason", async () => {
  await announceRun("run-1");
  const command = await spawnCommand();
  const [first, second] = (await Promise.all([tell("spawn", command), tell("spawn", command)])) as { pid: number }[];
  expect(first).toEqual(second);
  await until(() => exits.length > 0);
  expect(exits).toMatchObject([
    { worker: "maker/0", incarnation: 0, pid: first?.pid, failure: { code: "link.refused" } },
  ]);
});

test("A1: an accelerator is held by one run at a time, and free again when that run has left", async () => {
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

test("A2: when its runner leaves, or a newer one comes, a run's workers end and nothing of them stays", async () => {
  await writeFile(join(root, "preload.cjs"), "setInterval(() => {}, 1000);\n");
  folders.length = 0;
  const run = await announceRun("run-1");
  const env = { NODE_OPTIONS: `--require ${join(root, "preload.cjs")}` };
  const { pid } = (await tell("spawn", await spawnCommand({ env }))) as { pid: number };
  const newer = (await tell("spawn", await spawnCommand({ session: 2, env }, ["a/cpu:0"], 1))) as { pid: number };
  expect(isAlive(pid)).toBe(false);
  expect(await tell("spawn", await spawnCommand({ env })).catch((error: TreadleError) => error.code)).toBe("node.lost");
  await tell("release", { run: "run-1", session: 1 });
  expect(newer.pid).not.toBe(pid);
  await run.withdraw("it is over");
  await tell("release", { run: "run-1", session: 2 });
  expect(isAlive(newer.pid)).toBe(false);
  expect(folders).toHaveLength(2);
  expect(folders.filter((folder) => existsSync(folder))).toEqual([]);
});

test("A4: other code, a module outside of the project, and nonsense are refused", async () => {
  await announceRun("run-1");
  const refusal = async (body: unknown, method = "spawn") =>
    tell(method, body).then(
      () => "accepted",
      (error: TreadleError) => error.code,
    );
  expect(await refusal(await spawnCommand({ codeHash: "other" }))).toBe("node.unavailable");
  expect(await refusal(await spawnCommand({ modulePath: "../../etc/passwd" }))).toBe("worker.load-failed");
  expect(await refusal(await spawnCommand({ modulePath: "missing.ts" }))).toBe("worker.load-failed");
  expect(await refusal({ run: 7 })).toBe("link.protocol");
  expect(await refusal({}, "format-disk")).toBe("call.unknown-method");
  expect(await tell("check", {})).toEqual({ codeHash: await codeHash(root) });
});

test("the hash of the code follows code and locks, and nothing else", async () => {
  const before = await codeHash(root);
  await writeFile(join(root, "README.md"), "words");
  await mkdir(join(root, "runs"));
  await writeFile(join(root, "runs", "left.ts"), "what a run leaves");
  await writeFile(join(root, "node_modules", "package.ts"), "a package");
  expect(await codeHash(root)).toBe(before);
  await writeFile(join(root, "worker.ts"), "export const nothing = 2;\n");
  const changed = await codeHash(root);
  expect(changed).not.toBe(before);
  await writeFile(join(root, "package-lock.json"), "{}");
  expect(await codeHash(root)).not.toBe(changed);
});
