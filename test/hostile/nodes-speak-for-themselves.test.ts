/**
 * The holder of a key that all nodes share, the default, at servers that `treadle cluster init` has configured. A node's key may
 * say how workers end and beat, of any run; whose word that is, the runner finds out.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  ClusterConfig,
  type ControlPlane,
  type ExitReport,
  type Member,
  NatsConfig,
  runPrefix,
} from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import { EventProver } from "../../packages/runtime/src/node/event-proof.ts";
import { codeVersions } from "../../packages/runtime/src/node/treadle-code.ts";
import { type LaunchRequest, Nodes } from "../../packages/runtime/src/runner/nodes/nodes.ts";
import { until } from "../support/cluster.ts";

const token = "a token that only this run has";
const run = "run-1";
const timeoutMs = 20_000;

let folder: string;
let server: NatsServer;
let agent: ControlPlane;
let attacker: ControlPlane;
let nodes: Nodes;
const heartbeats: number[] = [];
const lines: string[] = [];
const closing: (() => Promise<unknown>)[] = [];

async function planeOf(role: "runner" | "node"): Promise<ControlPlane> {
  const nats = NatsConfig.parse({ ...(await clusterValues(folder, { role })), url: server.url });
  return openNatsControlPlane({ nats, name: role, keepsRecords: role === "runner" });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  const project = await mkdtemp(join(tmpdir(), "treadle-project-"));
  closing.push(() => rm(folder, { recursive: true }));
  closing.push(() => rm(project, { recursive: true }));
  await writeFile(join(project, "worker.ts"), "export const nothing = 1;\n");
  const [config = ""] = await initCluster(folder, { servers: ["127.0.0.1:4222"] }, []);
  server = await startNatsServer({ args: ["-c", config] });
  closing.push(() => server[Symbol.asyncDispose]());
  agent = await planeOf("node");
  closing.push(() => agent.close());
  const { hash } = await new ProjectCode(project).current();
  const info = { cpus: 2, memoryBytes: 2 ** 33, devices: [], labels: {}, platform: "linux", workers: {} };
  await agent.announce("node", "a", info, (method) => {
    if (method === "check") return { codeHash: hash, versions: codeVersions };
    return method === "spawn" ? { pid: 4711 } : undefined;
  });
  attacker = await planeOf("node");
  closing.push(() => attacker.close());
  await attacker.announce("node", "evil", { ...info, isDraining: true }, () => undefined);
  nodes = new Nodes({
    plane: await planeOf("runner"),
    cluster: ClusterConfig.parse({ devices: 4, minNodes: 1, nodeWaitMs: 60_000 }),
    projectRoot: project,
    runId: run,
  });
  closing.push(() => nodes.close());
  await nodes.find();
  await nodes.open(
    { runId: run, segmentPrefix: `${runPrefix(run)}1-`, token },
    {
      onHeartbeat: (_, __, busyMs) => heartbeats.push(busyMs),
      onLog: (_, __, line) => lines.push(line),
      onStatus: () => ({ restarts: 0, workers: [], channels: [], waits: [] }),
      onRead: async (asked) => ({ ...asked, sizeBytes: 0, data: "" }),
      onLeave: async () => {},
      onStop: () => {},
    },
  );
}, 120_000);
afterAll(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const request: LaunchRequest = {
  boot: {
    runId: run,
    component: "maker",
    rank: 0,
    rankDevices: [1],
    incarnation: 0,
    devices: [],
    module: "file:///worker.ts",
    exportName: "Maker",
    runnerAddresses: [],
    startTimeoutMs: 120_000,
    peerTimeoutMs: 60_000,
    token,
    seed: 0,
    trace: false,
  },
  modulePath: "worker.ts",
  env: {},
  memoryLimitMiB: undefined,
};

const report: ExitReport = {
  worker: "maker/0",
  incarnation: 0,
  code: 1,
  signal: null,
  failure: { code: "worker.setup-failed", message: "ended by a stranger" },
  logTail: [],
};

test("ND3: how a worker ended counts only from the process that is its node, whatever name another gives itself", async () => {
  const worker = await nodes.launch("a", request);
  const runner = await until((): Member | undefined => attacker.members("run")[0], "the run");
  for (const node of ["a", "evil"]) {
    const said = attacker.command(runner, "exited", { node, report }, { timeoutMs });
    if (node === "a") await expect(said).rejects.toMatchObject({ code: "control-plane.untrusted" });
    else await said; // that node has no such worker
    expect(worker.alive).toBe(true);
  }
  const end: ExitReport = { ...report, failure: { code: "worker.died", message: "by its own node" } };
  await agent.command(
    await until(() => agent.members("run")[0], "the run"),
    "exited",
    { node: "a", report: end },
    { timeoutMs },
  );
  expect(await worker.exited).toMatchObject({ failure: { message: "by its own node" } });
});

test("ND3, EV1, EV2: beats and lines count only from who has the run's token, and once", async () => {
  const prover = new EventProver({ topic: "heartbeats", run, token });
  const { incarnation: session } = await until(() => agent.members("run")[0], "the run");
  const beat = (busyMs: number) => ({ worker: "maker/0", incarnation: 0, busyMs, rssBytes: 1 });
  const eventOf = (busyMs: number) => ({ node: "a", session, beats: [beat(busyMs)] });
  const genuine = prover.prove(eventOf(1));
  agent.publish(`heartbeats.${run}`, genuine);
  await until(() => heartbeats.length === 1 || undefined, "the beat");
  // What it has heard, also as it changes it, and what it makes itself.
  const stranger = new EventProver({ topic: "heartbeats", run, token: "a token that is of another run" });
  attacker.publish(`heartbeats.${run}`, genuine);
  attacker.publish(`heartbeats.${run}`, { ...genuine, ...eventOf(2) });
  attacker.publish(`heartbeats.${run}`, stranger.prove(eventOf(3)));
  const line = { node: "a", lines: [{ worker: "maker/0", level: "error", line: "forged" }] };
  attacker.publish(`log.${run}`, line);
  attacker.publish(`log.${run}`, { ...line, proof: genuine.proof });
  await attacker.command(
    await until(() => attacker.members("run")[0], "the run"),
    "exited",
    { node: "evil", report },
    { timeoutMs },
  );
  agent.publish(`heartbeats.${run}`, prover.prove(eventOf(4)));
  await until(() => heartbeats.includes(4) || undefined, "the beat after");
  expect(heartbeats).toEqual([1, 4]);
  expect(lines).toEqual([]);
});
