/**
 * Two projects share an account, keys and all, and differ in their subject prefix. Whoever may say everything there carries
 * every word of one to the other, and the other's questions back, so that each is answered by a member that is there.
 */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ClusterConfig, type ControlPlane, NatsConfig } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { Nodes } from "../../packages/runtime/src/runner/nodes/nodes.ts";
import { until } from "../support/cluster.ts";
import { startNodeService } from "../support/node-service.ts";

let folder: string;
let project: string;
let server: NatsServer;
let stranger: Awaited<ReturnType<typeof connectStranger>>;
/** what was carried, by what it is */
const carried = new Map<string, number>();

async function planeOf(role: "runner" | "node", subjectPrefix: string): Promise<ControlPlane> {
  const values = await clusterValues(folder, { role });
  return openNatsControlPlane({
    nats: NatsConfig.parse({ ...values, url: server.url, subjectPrefix }),
    name: `${role} of ${subjectPrefix}`,
    keepsRecords: role === "runner",
  });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-keys-"));
  project = await mkdtemp(join(tmpdir(), "treadle-project-"));
  await writeFile(join(project, "worker.ts"), "");
  await initCluster(folder, { servers: ["127.0.0.1:4222"] }, []);
  server = await startNatsServer();
  stranger = await connectStranger(server.url);
  const carry = (from: string, to: string, what: string) =>
    stranger.subscribe(`${from}.${what}.>`, {
      callback: (_, { subject, data }) => {
        carried.set(what, (carried.get(what) ?? 0) + 1);
        stranger.publish(subject.replace(`${from}.`, `${to}.`), data);
      },
    });
  for (const what of ["entry", "beat", "command"]) carry("here", "there", what);
  carry("there", "here", "ask");
  await stranger.flush();
});
afterAll(async () => {
  await stranger.close();
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
  await rm(project, { recursive: true, force: true });
});

test("TR7: an agent that is there under one prefix keeps nobody from its name under another", async () => {
  const [here, there] = [await planeOf("node", "here"), await planeOf("node", "there")];
  const first = await startNodeService(here, project, 60_000);
  await until(() => there.members("node").some(({ name }) => name === "a"), "what was carried");
  const second = await startNodeService(there, project, 60_000);
  const runner = await planeOf("runner", "there");
  const seen = await until(() => runner.members("node").find((each) => !each.isUntrusted), "the genuine one");
  expect(seen.incarnation).toBe(second.incarnation);
  const runnerHere = await planeOf("runner", "here");
  const member = await until(() => runnerHere.members("node").find(({ name }) => name === "a"), "the agent here");
  await runnerHere.command(member, "ping", {}, { timeoutMs: 5000 });
  for (const what of ["entry", "beat", "command"]) await until(() => carried.get(what), `a carried ${what}`);
  await Promise.all([first.close("over"), second.close("over")]);
  await Promise.all([here, there, runner, runnerHere].map((plane) => plane.close()));
}, 120_000);

test("TR7: a runner that is there under one prefix locks no run under another", async () => {
  const nodesOf = async (prefix: string) =>
    new Nodes({
      plane: await planeOf("runner", prefix),
      cluster: ClusterConfig.parse({}),
      projectRoot: folder,
      runId: "run-1",
    });
  const first = await nodesOf("here");
  await first.claim("run-1");
  const watcher = await planeOf("runner", "there");
  await until(() => watcher.members("run").some(({ name }) => name === "run-1"), "what was carried");
  const second = await nodesOf("there");
  await second.claim("run-1");
  await Promise.all([first.close(), second.close(), watcher.close()]);
}, 120_000);

test("TR1, TR7: a command that acted under one prefix does not act under another, at a member of the same name and incarnation", async () => {
  const runner = await planeOf("runner", "here");
  const done: string[] = [];
  const planes = new Map<string, ControlPlane>();
  const incarnations = new Map<string, number>();
  for (const prefix of ["here", "there"]) {
    const plane = await planeOf("node", prefix);
    planes.set(prefix, plane);
    const { incarnation } = await plane.announce("node", "b", {}, (method) => void done.push(`${method} ${prefix}`));
    incarnations.set(prefix, incarnation);
  }
  const member = await until(() => runner.members("node").find(({ name }) => name === "b"), "node 'b'");
  const heard: Uint8Array[] = [];
  stranger.subscribe("here.command.node.b.*", { callback: (_, { data }) => void heard.push(data) });
  await stranger.flush();
  await runner.command(member, "ping", {}, { timeoutMs: 5000 });
  await until(() => heard.length > 0, "the command");
  const answer = await stranger.request(`there.command.node.b.${incarnations.get("there")}`, heard[0] as Uint8Array, {
    timeout: 5000,
    noMux: true,
    reply: `_INBOX.answer.${crypto.randomUUID()}`,
  });
  expect(answer.string()).toContain("not signed");
  expect(done).toEqual(["ping here"]);
  await Promise.all([runner, ...planes.values()].map((plane) => plane.close()));
}, 120_000);
