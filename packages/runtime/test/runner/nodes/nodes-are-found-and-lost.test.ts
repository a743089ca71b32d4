import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Announcement,
  ClusterConfig,
  type ControlPlane,
  type NodeInfo,
  type RunStatus,
  TreadleError,
} from "@treadle/contracts";
import { localControlPlanes } from "@treadle/transport";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ProjectCode } from "../../../src/node/code-hash.ts";
import { EventProver } from "../../../src/node/event-proof.ts";
import { codeVersions } from "../../../src/node/treadle-code.ts";
import { type LaunchRequest, Nodes } from "../../../src/runner/nodes/nodes.ts";
import { pass, realSetTimeout } from "../../support/pass.ts";

const codeHash = async (folder: string): Promise<string> => (await new ProjectCode(folder).current()).hash;
/** Long enough for whatever nodes answer, where a test waits for all of it. */
const wholeWaitMs = 5000;

let root: string;
let planes: ReturnType<typeof localControlPlanes>;
let outside: ControlPlane;
let nodes: Nodes;
const notices: string[] = [];
const heartbeats: string[] = [];
const lines: string[] = [];

const info: NodeInfo = { cpus: 2, memoryBytes: 2 ** 33, devices: [], labels: {}, platform: "linux", workers: {} };

const openNodes = (nodeWaitMs: number, exclusive = false) =>
  new Nodes({
    plane: planes.connect(),
    cluster: ClusterConfig.parse({ devices: 4, minNodes: 1, nodeWaitMs, exclusive }),
    projectRoot: root,
    runId: "run-1",
    onNotice: (text) => notices.push(text),
  });

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-r-"));
  await writeFile(join(root, "worker.ts"), "export const nothing = 1;\n");
  planes = localControlPlanes();
  outside = planes.connect();
  for (const list of [notices, heartbeats, lines]) list.length = 0;
  nodes = openNodes(60_000);
});
afterEach(async () => {
  await nodes.close();
  await outside.close();
  await rm(root, { recursive: true, force: true });
});

type FakeNode = {
  readonly announcement: Announcement;
  readonly told: [method: string, body: unknown][];
  /** why it starts nothing */
  refuse: { readonly takenBy: string } | { readonly refuses: true } | undefined;
  /** what becomes of commands to end a process */
  fail: TreadleError | undefined;
  /** whether it has what it is told to end */
  isHere: boolean;
};

/** A node that does nothing but remember what it was told. */
async function announceNode(
  name: string,
  hash?: string,
  body: unknown = info,
  versions = codeVersions,
): Promise<FakeNode> {
  const told: [string, unknown][] = [];
  const own = hash ?? (await codeHash(root));
  const announcement = await outside.announce("node", name, body, async (method, said) => {
    told.push([method, said]);
    if (method === "check") return { codeHash: own, versions };
    if (method === "files") {
      const { files } = await new ProjectCode(root).current();
      return { files: [...new Map(files).set("worker.ts", "another")], isLast: true };
    }
    if (method === "spawn" && node.refuse)
      throw new TreadleError("node.unavailable", "taken", { details: node.refuse });
    if (method === "end" && node.fail) throw node.fail;
    if (method === "end" || method === "stop") return { isHere: node.isHere };
    return method === "spawn" ? { pid: 4711 } : undefined;
  });
  const node: FakeNode = { announcement, told, refuse: undefined, fail: undefined, isHere: true };
  return node;
}

const token = "a token that only this run has";
const status: RunStatus = { restarts: 0, workers: [], channels: [], waits: [] };

const openRun = () =>
  nodes.open(
    { runId: "run-1", segmentPrefix: "treadle-run-1.1-", token },
    {
      onHeartbeat: (worker) => heartbeats.push(worker),
      onLog: (_, __, line) => lines.push(line),
      onStatus: () => status,
      onRead: async (asked) => ({ ...asked, sizeBytes: 0, data: "" }),
      onLeave: async () => {},
      onStop: () => {},
    },
  );

const request: LaunchRequest = {
  boot: {
    runId: "run-1",
    component: "maker",
    rank: 0,
    rankDevices: [1],
    incarnation: 3,
    devices: ["a/cpu:0"],
    module: "file:///project/worker.ts",
    exportName: "MakerWorker",
    runnerAddresses: [],
    startTimeoutMs: 120_000,
    peerTimeoutMs: 60_000,
    token: "a token of enough characters",
    seed: 0,
    trace: false,
  },
  modulePath: "worker.ts",
  env: {},
};

const settled = async (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 50));

test("nodes of the same code are found; one of other code, or that says nonsense, is named and not used", async () => {
  await nodes.close();
  nodes = openNodes(wholeWaitMs);
  await announceNode("other", "another hash");
  await announceNode("broken", undefined, { cpus: "many" });
  await announceNode("runner"); // by which relays would find it in the runner's place
  await expect(nodes.find()).rejects.toMatchObject({
    code: "node.unavailable",
    message: expect.stringContaining("'other' cannot be used"),
  });
  expect(notices.some((text) => text.includes("'other'") && text.includes("same version"))).toBe(true);
  await announceNode("a");
  await nodes.find();
  expect(nodes.devices().map(({ id }) => id)).toEqual(["a/cpu:0", "a/cpu:1", "a/cpu:2", "a/cpu:3"]);
});

test("nodes that go away before anything is placed are placed on all the same, since others may come", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await a.announcement.withdraw("it is preempted");
  expect(nodes.devices()).toEqual([]);
  const [devices] = nodes.devicesToPlaceOn();
  expect(devices.map(({ id }) => id)).toEqual(["a/cpu:0", "a/cpu:1", "a/cpu:2", "a/cpu:3"]);
  await announceNode("b");
  await nodes.find();
  expect(nodes.places().map(({ id }) => id)).toEqual(["b/cpu:0", "b/cpu:1", "b/cpu:2", "b/cpu:3"]);
});

test("a node is what it was while it is away: its labels and its number place what was to run there", async () => {
  const [a] = [await announceNode("a", undefined, { ...info, labels: { pool: "h200" } }), await announceNode("b")];
  await vi.waitFor(() => expect(nodes.present).toHaveLength(2), 30_000);
  await nodes.find();
  await a.announcement.withdraw("it is preempted");
  const [present, before] = nodes.devicesToPlaceOn();
  expect(new Set(present.map(({ node }) => node))).toEqual(new Set(["b"]));
  expect(nodes.labelled(before as typeof present).nodes).toEqual([
    { name: "a", number: 0, labels: { pool: "h200" } },
    { name: "b", number: 1, labels: {} },
  ]);
  expect(nodes.labelled(present)).toEqual({ nodes: [{ name: "b", number: 1, labels: {} }], numKnown: 2 });
});

test("ND1: a process ends once: by its own node's report, or with that node, and not by a stranger's word", async () => {
  const a = await announceNode("a");
  await announceNode("b");
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  expect(worker).toMatchObject({ worker: "maker/0", incarnation: 3, node: "a", pid: 4711, alive: true });
  const run = outside.members("run")[0];
  const report = { worker: "maker/0", incarnation: 3, pid: 4711, code: 1, signal: null, logTail: ["last words"] };
  const say = (node: string, over: object = {}) =>
    outside.command(run as never, "exited", { node, report: { ...report, ...over } }, { timeoutMs: 30_000 });
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

test("ND1: an end that nobody took, since the agent was about to find another server, is told again; one that is refused costs the node", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  a.fail = new TreadleError("node.lost", "node 'a' is not there any more");
  worker.end();
  const numEnds = () => a.told.filter(([method]) => method === "end").length;
  await vi.waitFor(() => expect(numEnds()).toBe(2), { timeout: 10_000 });
  a.fail = undefined;
  await vi.waitFor(() => expect(numEnds()).toBeGreaterThan(2), { timeout: 10_000 });
  expect(worker.alive).toBe(true); // until it is reported
  a.fail = new TreadleError("control-plane.untrusted", "the runner's key is not known");
  worker.end();
  expect(await worker.exited).toMatchObject({
    failure: { code: "node.lost", message: expect.stringContaining("the runner's key is not known") },
  });
});

test("ND1, S2: a process that its node has not, when it is told to end it, is lost there; a report on its way counts first", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  a.isHere = false;
  const unresponsive = { code: "worker.unresponsive" as const, message: "silent" };
  const unreported = await nodes.launch("a", request);
  unreported.end(unresponsive);
  expect(await unreported.exited).toMatchObject({
    failure: {
      code: "node.lost",
      details: { endedByNode: true },
      message: expect.stringContaining("has not reported"),
    },
  });
  const reported = await nodes.launch("a", { ...request, boot: { ...request.boot, incarnation: 4 } });
  reported.end(unresponsive);
  await settled();
  expect(reported.alive).toBe(true);
  const report = { worker: "maker/0", incarnation: 4, code: 1, signal: null, logTail: [] };
  await outside.command(outside.members("run")[0] as never, "exited", { node: "a", report }, { timeoutMs: 30_000 });
  expect(await reported.exited).toEqual(report);
});

test("ND4: a process that says that its node is lost, or its runner not reached, has crashed all the same", async () => {
  await announceNode("a");
  await nodes.find();
  await openRun();
  const run = outside.members("run")[0];
  for (const [incarnation, code] of (["node.lost", "runner.unreachable"] as const).entries()) {
    const worker = await nodes.launch("a", { ...request, boot: { ...request.boot, incarnation } });
    const failure = { code, message: "its own words" };
    const report = { worker: "maker/0", incarnation, pid: 4711, code: 1, signal: null, failure, logTail: [] };
    await outside.command(run as never, "exited", { node: "a", report }, { timeoutMs: 30_000 });
    expect((await worker.exited).failure).toEqual({ code: "worker.died", message: "its own words" });
  }
});

test("ND4, S2: what a node has ended of its own accord, since it heard nobody, is lost as with its node, and costs no restart", async () => {
  await announceNode("a");
  await nodes.find();
  await openRun();
  const [run] = outside.members("run");
  const worker = await nodes.launch("a", request);
  const ended = { code: null, signal: "SIGKILL", endedByNode: "which did not hear the runner" };
  const report = { worker: "maker/0", incarnation: request.boot.incarnation, pid: 4711, ...ended, logTail: [] };
  await outside.command(run as never, "exited", { node: "a", report }, { timeoutMs: 30_000 });
  expect((await worker.exited).failure).toMatchObject({
    code: "node.lost",
    message: "worker 'maker/0' was ended by node 'a', which did not hear the runner",
    details: { endedByNode: true },
  });
  expect(nodes.present).toEqual(["a"]);
});

test("ND1, ND2: with its node a process is lost, and the node is used again when nothing of the run is left there", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  await a.announcement.withdraw("its power failed");
  expect(await worker.exited).toMatchObject({
    failure: { code: "node.lost", details: { node: "a" }, message: expect.stringContaining("its power failed") },
  });
  expect(nodes.present).toEqual([]);
  // Starting something there meanwhile is an end at once, not a failure of the run.
  expect(await (await nodes.launch("a", request)).exited).toMatchObject({ failure: { code: "node.lost" } });
  const again = await announceNode("a");
  await expect.poll(() => nodes.present, { timeout: 60_000 }).toEqual(["a"]);
  expect(again.told.map(([method]) => method)).toEqual(["check", "release"]);
});

test("NS6: an exclusive run takes nodes once other runs are gone from them, and says so until then", async () => {
  await nodes.close();
  nodes = openNodes(wholeWaitMs, true);
  const busy = { ...info, workers: { other: ["maker/0"], "run-1": ["of an earlier runner"] } };
  const a = await announceNode("a", undefined, busy);
  await expect(nodes.find()).rejects.toMatchObject({
    code: "node.unavailable",
    message: expect.stringMatching(/'a' cannot be used: run 'other' has 1 workers there.*cluster.exclusive/),
  });
  await a.announcement.update({ ...info, workers: { "run-1": [] } });
  await expect.poll(() => nodes.present, { timeout: 60_000 }).toEqual(["a"]);
});

test("a run whose start an exclusive one has forestalled goes on elsewhere, and takes the node once it is free", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  a.refuse = { takenBy: "other" };
  expect(await (await nodes.launch("a", request)).exited).toMatchObject({ failure: { code: "node.lost" } });
  expect(nodes.present).toEqual([]);
  a.refuse = undefined;
  await expect.poll(() => nodes.present, { timeout: 60_000 }).toEqual(["a"]);
  await a.announcement.update({ ...info, exclusiveTo: "other" });
  await expect.poll(() => nodes.present, { timeout: 60_000 }).toEqual([]);
});

test("a node whose code has changed since it was admitted is used no more, and what was to start there finds another place", async () => {
  const a = await announceNode("a");
  await nodes.find();
  await openRun();
  a.refuse = { refuses: true };
  expect(await (await nodes.launch("a", request)).exited).toMatchObject({ failure: { code: "node.lost" } });
  expect(nodes.present).toEqual([]);
  expect(notices).toContain("node 'a' is not used: taken");
  a.refuse = undefined;
  await a.announcement.withdraw("it is started again");
  await announceNode("a");
  await expect.poll(() => nodes.present, { timeout: 60_000 }).toEqual(["a"]);
});

test("which file differs is said of a node, and of one with another release of the same Node which", async () => {
  await announceNode("other", "another hash");
  const [major = ""] = process.version.split(".");
  await announceNode("patched", undefined, info, { ...codeVersions, node: `${major}.999.1` });
  await announceNode("built", undefined, info, {
    ...codeVersions,
    form: codeVersions.form === "sources" ? "compiled" : "sources",
  });
  await nodes.find();
  await expect.poll(() => notices.filter((text) => text.includes("not used")).length, { timeout: 60_000 }).toBe(2);
  expect(nodes.present).toEqual(["patched"]);
  const said = (node: string) => notices.find((text) => text.startsWith(`node '${node}' is`));
  expect(said("other")).toMatch(/its code is not the runner's: 'worker.ts' differs; bring both/);
  expect(said("patched")).toMatch(
    new RegExp(`is used, though it runs Node '${major}.999.1', the runner '${process.version}'`),
  );
  expect(said("built")).toMatch(/Treadle from '(sources|compiled)', the runner from/);
});

test("of another run on its nodes a run says so once, and the last step of one that is gone is kept", async () => {
  const a = await announceNode("a");
  await nodes.find();
  nodes.record.committed(6);
  await openRun();
  await nodes.launch("a", request);
  for (const num of [1, 2]) {
    const workers = { "run-1": ["maker/0"], other: ["maker/0", "maker/1"].slice(0, num) };
    await a.announcement.update({ ...info, workers });
    await settled();
  }
  expect(notices.filter((text) => text.includes("run 'other'"))).toEqual([
    expect.stringMatching(/^node 'a' also runs 1 workers of run 'other'.*cluster.exclusive/),
  ]);
  const kept = async () => (await outside.kept()).get("run-1")?.value;
  expect(await kept()).toMatchObject({ state: "running", step: 6 });
  for (const step of [7, 8, 9]) nodes.record.committed(step);
  await expect.poll(kept, { timeout: 30_000 }).toMatchObject({ state: "running", step: 9 });
  nodes.record.committed(10);
  await nodes.record.ended("stopped");
  await new Promise((resolve) => setTimeout(resolve, 1200));
  expect(await kept()).toMatchObject({ state: "stopped", step: 10 });
});

test("ND1: a start that a node never answers is over with the node, not with the patience for an answer", async () => {
  let isAsked = false;
  const codeHashHere = await codeHash(root);
  const a = await outside.announce("node", "a", info, (method) => {
    if (method === "check") return { codeHash: codeHashHere, versions: codeVersions };
    isAsked = method === "spawn";
    return new Promise(() => {});
  });
  await nodes.find();
  await openRun();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] }); // no patience ends
  try {
    const launching = nodes.launch("a", request);
    while (!isAsked) await new Promise<void>((resolve) => realSetTimeout(resolve, 2));
    await a.withdraw("its power failed");
    expect(await (await launching).exited).toMatchObject({ failure: { code: "node.lost" } });
  } finally {
    vi.useRealTimers();
  }
});

/** A node that beats, as all of a local plane do, and answers as long as `answers` says so. */
async function announceHanging(name: string, answers: (method: string) => boolean) {
  const codeHashHere = await codeHash(root);
  await outside.announce("node", name, info, (method) => {
    if (!answers(method)) return new Promise(() => {});
    if (method === "check") return { codeHash: codeHashHere, versions: codeVersions };
    return method === "spawn" ? { pid: 4712 } : undefined;
  });
}

test("an agent that never answers delays a launch by the time to answer, and is named", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  try {
    await announceHanging("hung", () => false);
    await announceNode("a");
    await nodes.close();
    nodes = openNodes(60_000);
    let isFound = false;
    const finding = nodes.find().then(() => {
      isFound = true;
    });
    await pass(4000);
    expect(isFound).toBe(false);
    await pass(2000);
    expect(isFound).toBe(true);
    await finding;
    expect(nodes.present.includes("hung")).toBe(false);
    expect(notices).toContainEqual(expect.stringContaining("without node 'hung'"));
  } finally {
    vi.useRealTimers();
  }
});

test("MB4: a start on a node that hangs is over within seconds, and the node passed over and named; a slow one is waited for", async () => {
  let answers = (_: string): boolean => true;
  await announceHanging("a", (method) => answers(method));
  await announceNode("b");
  await nodes.find();
  await openRun();
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  try {
    answers = (method) => method === "ping"; // it hashes, and says that it is there
    let isOver = false;
    const slow = nodes.launch("a", { ...request, boot: { ...request.boot, rank: 7 } }).then(() => {
      isOver = true;
    });
    await pass(30_000);
    expect(isOver).toBe(false);
    expect(nodes.present).toContain("a");
    answers = () => false;
    await pass(8000);
    await slow;
    expect(nodes.present).toEqual(["b"]);
    expect(notices).toContain("node 'a' is lost: it beats, and does not answer");
  } finally {
    vi.useRealTimers();
  }
});

test("while a node may have gone, no rank is moved to it; once it has answered, any may be", async () => {
  let answers = true;
  await announceHanging("a", (method) => method !== "ping" || answers);
  await announceNode("b");
  await nodes.find();
  const places = () => [...new Set(nodes.places().map(({ node }) => node))].sort();
  const seen: string[][] = [];
  nodes.onChanged(() => seen.push(places()));
  expect(places()).toEqual(["a", "b"]);
  answers = false;
  const doubting = nodes.doubt("a");
  expect(places()).toEqual(["b"]);
  answers = true; // the next question
  await doubting;
  expect(places()).toEqual(["a", "b"]);
  expect(seen).toEqual([["b"], ["a", "b"]]);
});

test("ND1, ND2: what runs on a node that hangs is lost in the end, and the node is used again when it answers", async () => {
  let hangs = false;
  await announceHanging("a", () => !hangs);
  await nodes.find();
  await openRun();
  const worker = await nodes.launch("a", request);
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  try {
    hangs = true;
    worker.end({ code: "worker.unresponsive", message: "no heartbeat" });
    await pass(4500);
    expect(worker.alive).toBe(true);
    await pass(3500);
    expect(worker.alive).toBe(false);
    expect(nodes.present.includes("a")).toBe(false);
    expect(notices).toContainEqual(expect.stringContaining("does not answer"));
    hangs = false;
    await pass(61_000);
    expect(nodes.present.includes("a")).toBe(true);
  } finally {
    vi.useRealTimers();
  }
});

test("whatever arrives under its topics, the run goes on; what its nodes say is heard", async () => {
  await announceNode("a");
  await nodes.find();
  await openRun();
  for (const nonsense of [null, 7, "x", [], { session: "x" }, { beats: 1 }, { lines: [{ worker: 1 }] }]) {
    outside.publish("heartbeats.run-1", nonsense);
    outside.publish("log.run-1", nonsense);
  }
  const proverOf = (topic: string, over: object = {}) => new EventProver({ topic, run: "run-1", token, ...over });
  const beats = proverOf("heartbeats");
  const beat = { worker: "maker/0", incarnation: 3, busyMs: 0, rssBytes: 1 };
  const say = (event: object) => outside.publish("heartbeats.run-1", event);
  say(beats.prove({ node: "a", session: 99, beats: [{ ...beat, worker: "of an old runner" }] }));
  const genuine = beats.prove({ node: "a", session: 1, beats: [beat] });
  say(genuine);
  const hello = { node: "a", lines: [{ worker: "maker/0", level: "info", line: "hello" }] };
  outside.publish("log.run-1", proverOf("log").prove(hello));
  // ND3, EV1, EV2: others' words for its own, changed or old ones, and those of another topic, run or token, are not.
  const forged = { node: "a", session: 1, beats: [{ ...beat, worker: "forged/0" }] };
  for (const event of [forged, { ...forged, proof: genuine.proof }, genuine]) say(event);
  for (const over of [{ topic: "log" }, { run: "run-2" }, { token: "a token that is of another run" }]) {
    say(proverOf("heartbeats", over).prove(forged));
    outside.publish("log.run-1", proverOf("log", { ...over, topic: "heartbeats" }).prove(hello));
  }
  outside.publish("log.run-1", { ...hello, proof: genuine.proof });
  await settled();
  expect(heartbeats).toEqual(["maker/0"]);
  expect(lines).toEqual(["hello"]);
  say(beats.prove({ node: "a", session: 1, beats: [beat] }));
  await settled();
  expect(heartbeats).toEqual(["maker/0", "maker/0"]);
  const run = outside.members("run")[0];
  expect(await outside.command(run as never, "status", {}, { timeoutMs: 30_000 })).toEqual(status);
  await expect(outside.command(run as never, "start", {}, { timeoutMs: 30_000 })).rejects.toMatchObject({
    code: "call.unknown-method",
    message: "command 'start' is not known to a run; it knows exited, status, read, stop",
  });
  await expect(outside.command(run as never, "exited", { node: 7 }, { timeoutMs: 30_000 })).rejects.toMatchObject({
    code: "link.protocol",
  });
});
