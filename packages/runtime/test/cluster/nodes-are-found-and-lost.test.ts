import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Announcement, ClusterConfig, type ControlPlane, type NodeInfo } from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach, beforeEach, expect, test } from "vitest";
import { codeHash } from "../../src/agent/code-hash.ts";
import { type LaunchRequest, Nodes } from "../../src/cluster/nodes.ts";

let root: string;
let planes: ReturnType<typeof localControlPlanes>;
let outside: ControlPlane;
let nodes: Nodes;
const notices: string[] = [];
const heartbeats: string[] = [];
const lines: string[] = [];

const info: NodeInfo = { cpus: 2, memoryBytes: 2 ** 33, devices: [], labels: {}, platform: "linux", workers: {} };

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-r-"));
  await writeFile(join(root, "worker.ts"), "export const nothing = 1;\n");
  planes = localControlPlanes();
  outside = planes.connect();
  for (const list of [notices, heartbeats, lines]) list.length = 0;
  nodes = new Nodes({
    plane: planes.connect(),
    cluster: ClusterConfig.parse({ devices: 4, minNodes: 1, nodeWaitMs: 300 }),
    projectRoot: root,
    onNotice: (text) => notices.push(text),
  });
});
afterEach(async () => {
  await nodes.close();
  await outside.close();
  await rm(root, { recursive: true, force: true });
});

type FakeNode = { readonly announcement: Announcement; readonly told: [method: string, body: unknown][] };

/** A node that does nothing but remember what it was told. */
async function announceNode(name: string, hash?: string, body: unknown = info): Promise<FakeNode> {
  const told: [string, unknown][] = [];
  const own = hash ?? (await codeHash(root));
  const announcement = await outside.announce("node", name, body, (method, said) => {
    told.push([method, said]);
    if (method === "check") return { codeHash: own };
    return method === "spawn" ? { pid: 4711 } : undefined;
  });
  return { announcement, told };
}

const openRun = () =>
  nodes.open(
    { runId: "run-1", segmentPrefix: "treadle-run-1-" },
    {
      onHeartbeat: (worker) => heartbeats.push(worker),
      onLog: (_, __, line) => lines.push(line),
      onCommand: (method) => `answer to ${method}`,
    },
  );

const request: LaunchRequest = {
  boot: {
    runId: "run-1",
    component: "maker",
    rank: 0,
    worldSize: 1,
    incarnation: 3,
    devices: ["a/cpu:0"],
    module: "file:///project/worker.ts",
    exportName: "MakerWorker",
    runnerAddresses: [],
    token: "a token of enough characters",
    runFolder: "/",
    seed: 0,
    trace: false,
  },
  modulePath: "worker.ts",
  env: {},
};

const settled = async (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 50));

test("nodes of the same code are found; one of other code, or that says nonsense, is named and not used", async () => {
  await announceNode("other", "another hash");
  await announceNode("broken", undefined, { cpus: "many" });
  await expect(nodes.find()).rejects.toMatchObject({
    code: "node.unavailable",
    message: expect.stringContaining("'other' cannot be used"),
  });
  expect(notices.some((text) => text.includes("'other'") && text.includes("same version"))).toBe(true);
  await announceNode("a");
  await nodes.find();
  expect(nodes.devices().map(({ id }) => id)).toEqual(["a/cpu:0", "a/cpu:1", "a/cpu:2", "a/cpu:3"]);
});

test("B1: a process ends once: by its own node's report, or with that node, and not by a stranger's word", async () => {
  const a = await announceNode("a");
  await announceNode("b");
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  expect(worker).toMatchObject({ worker: "maker/0", incarnation: 3, node: "a", pid: 4711, alive: true });
  const run = outside.members("run")[0];
  const report = { worker: "maker/0", incarnation: 3, pid: 4711, code: 1, signal: null, logTail: ["last words"] };
  const say = (node: string, over: object = {}) =>
    outside.command(run as never, "exited", { node, report: { ...report, ...over } }, { timeoutMs: 1000 });
  await say("b");
  await say("a", { incarnation: 2 });
  expect(worker.alive).toBe(true);
  worker.end({ code: "worker.unresponsive", message: "too slow" });
  await say("a");
  await a.announcement.withdraw("it drains");
  expect(await worker.exited).toMatchObject({
    code: 1,
    logTail: ["last words"],
    failure: { code: "worker.unresponsive" },
  });
  expect(a.told.map(([method]) => method)).toContain("end");
});

test("B1, B2: with its node a process is lost, and the node is used again when nothing of the run is left there", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  await a.announcement.withdraw("its power failed");
  expect(await worker.exited).toMatchObject({
    failure: { code: "node.lost", details: { node: "a" }, message: expect.stringContaining("its power failed") },
  });
  expect(nodes.has("a")).toBe(false);
  // Starting something there meanwhile is an end at once, not a failure of the run.
  expect(await (await nodes.launch("a", request)).exited).toMatchObject({ failure: { code: "node.lost" } });
  const again = await announceNode("a");
  expect(await nodes.until(() => nodes.has("a"), 5000)).toBe(true);
  expect(again.told.map(([method]) => method)).toEqual(["check", "release"]);
});

test("whatever arrives under its topics, the run goes on; what its nodes say is heard", async () => {
  await announceNode("a");
  await nodes.find();
  await openRun();
  for (const nonsense of [null, 7, "x", [], { session: "x" }, { beats: 1 }, { lines: [{ worker: 1 }] }]) {
    outside.publish("heartbeats.run-1", nonsense);
    outside.publish("log.run-1", nonsense);
  }
  const beat = { worker: "maker/0", incarnation: 3, busyMs: 0, rssBytes: 1 };
  outside.publish("heartbeats.run-1", { session: 99, beats: [{ ...beat, worker: "of an old runner" }] });
  outside.publish("heartbeats.run-1", { session: 1, beats: [beat] });
  outside.publish("log.run-1", { node: "a", lines: [{ worker: "maker/0", level: "info", line: "hello" }] });
  await settled();
  expect(heartbeats).toEqual(["maker/0"]);
  expect(lines).toEqual(["hello"]);
  const run = outside.members("run")[0];
  expect(await outside.command(run as never, "status", {}, { timeoutMs: 1000 })).toBe("answer to status");
});
