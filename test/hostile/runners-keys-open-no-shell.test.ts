/**
 * The holder of a runner's key, at servers that `treadle cluster init` has configured, before a node agent as it is shipped:
 * it runs modules of the node's project, and nothing else.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { type ControlPlane, type Member, NatsConfig, type TreadleError } from "@treadle/contracts";
import { NatsRunStore, openNatsControlPlane } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { clusterValues, initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import type { NodeService } from "../../packages/runtime/src/node/node-service.ts";
import { keptRuns } from "../../packages/runtime/src/runner/run/kept-run.ts";
import { until } from "../support/cluster.ts";
import { startNodeService } from "../support/node-service.ts";
import { spawnCommand } from "../support/spawn-command.ts";

let folder: string;
let server: NatsServer;
let service: NodeService;
let node: ControlPlane;
let runner: ControlPlane;
let member: Member;
const mark = (): string => join(folder, "was-run");
const project = (): string => join(folder, "project");

async function planeOf(role: "runner" | "node", name?: string): Promise<ControlPlane> {
  const values = await clusterValues(join(folder, "keys"), { role, name });
  return openNatsControlPlane({
    nats: NatsConfig.parse({ ...values, url: server.url }),
    name: role,
    keepsRecords: role === "runner",
  });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-k-"));
  const [config = ""] = await initCluster(join(folder, "keys"), { servers: ["127.0.0.1:4222"] }, ["a"]);
  server = await startNatsServer({ args: ["-c", config] });
  await mkdir(join(project(), "node_modules"), { recursive: true });
  await writeFile(join(project(), "worker.ts"), "export const nothing = 1;\n");
  await writeFile(join(folder, "outside.mjs"), `import fs from "node:fs"; fs.writeFileSync("${mark()}", "");\n`);
  node = await planeOf("node", "a");
  service = await startNodeService(node, project(), 60_000);
  runner = await planeOf("runner");
  await runner.announce("run", "run-1", {}, () => undefined);
  member = await until(() => runner.members("node")[0], "the node");
});
afterAll(async () => {
  await service.close("the test is over");
  await Promise.all([node.close(), runner.close()]);
  await server[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

async function spawn(over: object = {}, boot: object = {}): Promise<string> {
  const { hash } = await new ProjectCode(project()).current();
  const command = spawnCommand(project(), hash, { over, boot });
  return runner.command(member, "spawn", command, { timeoutMs: 60_000 }).then(
    () => "started",
    (error: TreadleError) => error.code,
  );
}

test("what an agent does not allow it refuses, whoever signs it; a module of its project it starts", async () => {
  const shell = { command: "/bin/sh", flags: ["-c", `touch ${mark()}`] };
  const script = { command: process.execPath, flags: ["-e", `fs.writeFileSync("${mark()}", "")`] };
  const preload = { NODE_OPTIONS: `--import=${pathToFileURL(join(folder, "outside.mjs")).href}` };
  const attacks: [string, object, object?][] = [
    ["node.forbidden", { interpreter: shell }],
    ["node.forbidden", { interpreter: script }],
    ["node.forbidden", { env: preload }],
    ["node.forbidden", { env: { LD_PRELOAD: "/tmp/evil.so" } }],
    ["node.forbidden", { run: "run-1" }, { runId: "run-2" }],
    ["node.forbidden", { segmentPrefix: "treadle-run-2.1-" }],
    ["link.protocol", { modulePath: "../outside.mjs" }],
    ["link.protocol", { run: "../x" }, { runId: "../x" }],
    ["node.unavailable", { codeHash: "another" }],
  ];
  for (const [refusal, over, boot] of attacks) expect([await spawn(over, boot), over]).toEqual([refusal, over]);
  expect(await spawn()).toBe("started");
  await new Promise((resolve) => setTimeout(resolve, 1000)); // what was started would have done its harm
  expect(existsSync(mark())).toBe(false);
});

test("NP3: the key is no node's: the server lets it read no command to a node, and announce none", async () => {
  const seed = new TextEncoder().encode((await readFile(join(folder, "keys/runner.nk"), "utf8")).trim());
  const stranger = await connectStranger(server.url, seed);
  const denied: string[] = [];
  void (async () => {
    for await (const status of stranger.status()) if (status.type === "error") denied.push(String(status.error));
  })();
  const isDenied = async (act: () => void, what: string) => {
    const before = denied.length;
    act();
    await until(() => denied.length > before, `${what} to be denied`);
  };
  for (const subject of ["treadle.command.node.>", "treadle.command.node.a.*", "_INBOX.>", ">"])
    await isDenied(() => stranger.subscribe(subject, { callback: () => {} }), `listening to '${subject}'`);
  for (const subject of ["treadle.beat.node.a", "treadle.entry.node.a", "$JS.API.STREAM.DELETE.KV_treadle-records"])
    await isDenied(() => stranger.publish(subject, "{}"), `saying '${subject}'`);
  await stranger.close();
});

test("it stops and forgets runs: that is what runners' keys are for, so each is as good as another", async () => {
  const other = await planeOf("runner");
  const asked: string[] = [];
  await other.announce("run", "run-2", {}, (method) => void asked.push(method));
  const run = await until(() => runner.members("run").find(({ name }) => name === "run-2"), "the other run");
  await runner.command(run, "stop", {}, { timeoutMs: 10_000 });
  expect(asked).toEqual(["stop"]);
  await other.close();
  const values = await clusterValues(join(folder, "keys"), { role: "runner" });
  const nats = NatsConfig.parse({ ...values, url: server.url });
  const kept = await NatsRunStore.open({ nats, name: "its runner", runId: "run-2", folder });
  await kept.take();
  await writeFile(join(folder, "config.json"), "{}");
  await kept.append("a step", ["config.json"]);
  expect(await keptRuns(nats)).toEqual(["run-2"]);
  expect(await keptRuns(nats, "run-2")).toEqual([]);
  await expect(kept.append("another step")).rejects.toMatchObject({ code: "journal.corrupt" });
  await kept.close();
});
