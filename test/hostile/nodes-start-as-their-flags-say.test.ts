/**
 * A runner before agents as `treadle node` starts them, without keys on loopback: how workers start there is what the flags of
 * the command say, and nothing besides.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ControlPlane, NatsConfig, type TreadleError } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import { until } from "../support/cluster.ts";
import { spawnCommand } from "../support/spawn-command.ts";
import { type Started, startTreadle } from "../support/treadle.ts";

let root: string;
let server: NatsServer;
let runner: ControlPlane;
const agents: Started[] = [];
const project = (): string => join(root, "project");
const mark = (): string => join(root, "was-run");

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  await mkdir(join(project(), "node_modules"), { recursive: true });
  await writeFile(join(project(), "worker.ts"), "export const nothing = 1;\n");
  server = await startNatsServer();
  runner = await openNatsControlPlane({ nats: NatsConfig.parse({ url: server.url }), name: "runner" });
  await runner.announce("run", "run-1", {}, () => undefined);
});
afterAll(async () => {
  for (const { child } of agents) child.kill("SIGTERM");
  await Promise.all(agents.map(({ finished }) => finished));
  await runner.close();
  await server[Symbol.asyncDispose]();
  await rm(root, { recursive: true, force: true });
});

async function startAgent(name: string, flags: readonly string[] = []): Promise<Started> {
  const agent = startTreadle(["node", "--nats", server.url, "--name", name, "--project", project(), ...flags]);
  agents.push(agent);
  await until(() => agent.output().includes("is ready for runs"), `agent '${name}' to be ready`, 150_000);
  return agent;
}

async function spawn(node: string, over: object): Promise<string> {
  const { hash } = await new ProjectCode(project()).current();
  const member = await until(() => runner.members("node").find(({ name }) => name === node), `node '${node}'`);
  const command = spawnCommand(project(), hash, { over, boot: { devices: [`${node}/cpu:0`] } });
  return runner.command(member, "spawn", command, { timeoutMs: 60_000 }).then(
    () => "started",
    (error: TreadleError) => error.code,
  );
}

const own = process.execPath;

test("without flags an agent starts its own Node, as it is; without keys it says who may start what", async () => {
  const agent = await startAgent("bare");
  await until(() => agent.output().includes("no keys are given: every user of this machine"), "the line on keys");
  const attacks = [
    { interpreter: { command: "/bin/sh", flags: [] } },
    { interpreter: { command: "/bin/sh", flags: ["-c", `touch ${mark()}`] } },
    { interpreter: { command: own, flags: ["-c"] } },
    { env: { NODE_OPTIONS: "--expose-gc" } },
    { env: { HF_HOME: "/tmp" } },
  ];
  for (const over of attacks) expect([await spawn("bare", over), over]).toEqual(["node.forbidden", over]);
  expect(await spawn("bare", {})).toBe("started");
  expect(existsSync(mark())).toBe(false);
});

test("with flags it allows what they name, and nothing beside that", async () => {
  await startAgent("open", ["--allow-interpreter", own, "--allow-flag=--expose-gc", "--allow-env", "HF_HOME"]);
  const forbidden = [
    { interpreter: { command: "/bin/sh", flags: [] } },
    { interpreter: { command: own, flags: ["-c"] } },
    { interpreter: { command: own, flags: ["--expose-gc", "-e"] } },
    { env: { HF_TOKEN: "x" } },
    { env: { NODE_OPTIONS: "--expose-gc" } },
  ];
  for (const over of forbidden) expect([await spawn("open", over), over]).toEqual(["node.forbidden", over]);
  const asked = { interpreter: { command: own, flags: ["--expose-gc"] }, env: { HF_HOME: "/tmp" } };
  expect(await spawn("open", asked)).toBe("started");
});
