/**
 * Whoever has a run's token dials a worker of another node, and whoever has a runner's key calls it, with arguments that name
 * code: what it would leave behind is looked for, besides the refusal.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import {
  type ControlPlane,
  type Member,
  type Peer,
  type ReachableMessage,
  runProtocol,
  type TreadleError,
} from "@treadle/contracts";
import { createPeer, type Endpoint, localControlPlanes, openEndpoint } from "@treadle/transport";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import type { NodeService } from "../../packages/runtime/src/node/node-service.ts";
import { startNodeService } from "../support/node-service.ts";
import { projectRoot as checkout } from "../support/project.ts";
import { spawnCommand } from "../support/spawn-command.ts";

const token = "a token of enough characters";
const leavesMark = (path: string): string =>
  `import { writeFileSync } from "node:fs"; writeFileSync(${JSON.stringify(path)}, ""); export const Item = 1;\n`;

let root: string;
let project: string;
let mark: string;
let plane: ControlPlane;
let service: NodeService;
let runner: Endpoint;
let stranger: Endpoint;
let ofRunner: Peer;
let ofStranger: Peer;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  project = join(root, "project");
  mark = join(root, "was-run");
  for (const run of ["runs/other", "kept/elsewhere"]) {
    await mkdir(join(project, run, "state"), { recursive: true });
    await writeFile(join(project, run, "journal.jsonl"), "");
    await writeFile(join(project, run, "state/fetched.mjs"), leavesMark(mark));
  }
  await symlink(join(checkout, "node_modules"), join(project, "node_modules"));
  await writeFile(join(project, "package.json"), '{"type":"module"}');
  await writeFile(
    join(project, "worker.mjs"),
    `import { Worker } from "@treadle/runtime";
export class MakerWorker extends Worker { async make() { return "made"; } }\n`,
  );
  await writeFile(join(root, "outside.mjs"), leavesMark(mark));

  const planes = localControlPlanes();
  plane = planes.connect();
  service = await startNodeService(planes.connect(), project, 60_000);
  await plane.announce("run", "run-1", {}, () => undefined);

  runner = await openEndpoint({ name: "runner", runId: "run-1", token, segments: false, tcp: { port: 0 } });
  let at: ReachableMessage | undefined;
  const isReady = new Promise<ReachableMessage>((resolve) => {
    runner.onLink((link) => {
      ofRunner = createPeer(link, runProtocol);
      ofRunner.handle("configuration", async () => ({ config: {} }));
      ofRunner.handle("reachable", async (message) => {
        at = message;
      });
      ofRunner.handle("ready", async () => resolve(at as ReachableMessage));
      ofRunner.handle("telemetry", () => {});
    });
  });
  const { hash } = await new ProjectCode(project).current();
  const command = spawnCommand(project, hash, {
    over: { modulePath: "worker.mjs" },
    boot: { runnerAddresses: [...runner.addresses] },
  });
  await plane.command(plane.members("node")[0] as Member, "spawn", command, { timeoutMs: 120_000 });
  const { addresses } = await isReady;
  stranger = await openEndpoint({ name: "other/0#0", runId: "run-1", token, segments: false });
  ofStranger = createPeer(await stranger.connect(addresses), runProtocol);
});
afterEach(async () => {
  await stranger.close();
  await runner.close();
  await service.close("the test is over");
  await plane.close();
  await rm(root, { recursive: true, force: true });
});

const sinkOf = (module: string) => ({
  $channel: "items",
  role: "sink",
  granularity: "all",
  schema: { module, exportName: "Item" },
});

/** The code of the refusal, or what was returned. */
const call = (peer: Peer, changes: object): Promise<unknown> =>
  peer.request("call", { call: "1/0", sequence: 0, method: "make", args: [], ...changes }).then(
    ({ value }) => value,
    (error: TreadleError) => error.code,
  );

test("WH6, NA2: a call runs no code that its arguments carry, or that lies outside of the project, whoever makes it", async () => {
  await symlink(join(root, "outside.mjs"), join(project, "innocent.mjs")); // since then: no worker is started with it
  expect(await call(ofRunner, {})).toBe("made");
  const here = pathToFileURL(`${project}/`).href;
  for (const module of [
    `data:text/javascript,${encodeURIComponent(leavesMark(mark))}`,
    pathToFileURL(join(root, "outside.mjs")).href,
    `${here}../outside.mjs`,
    `${here}innocent.mjs`,
    `${here}runs/other/state/fetched.mjs`,
    `${here}kept/elsewhere/state/fetched.mjs`,
    "node:child_process",
    "https://example.org/x.mjs",
    "../../../outside.mjs",
    "no-such-package",
  ]) {
    expect(await call(ofRunner, { args: [sinkOf(module)] }), module).toBe("worker.load-failed");
    expect(await call(ofStranger, { args: [[{ deep: sinkOf(module) }]] }), module).toBe("workflow.invalid");
    expect(existsSync(mark), module).toBe(false);
  }
  const shipped = { ...sinkOf("@treadle/contracts"), schema: { module: "@treadle/contracts", exportName: "Episode" } };
  expect(await call(ofRunner, { args: [shipped] })).toBe("made");
});

test("WH6: another worker calls beside the runner's calls, takes no turn of theirs, and saves nothing", async () => {
  expect(await call(ofStranger, {})).toBe("made");
  expect(await call(ofStranger, { sequence: 7 })).toBe("workflow.invalid");
  expect(await call(ofStranger, { saveIn: join(root, "saved") })).toBe("workflow.invalid");
  expect((await readdir(root)).filter((name) => name.startsWith("saved"))).toEqual([]);
});
