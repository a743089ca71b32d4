import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type ControlPlane, type Member, type Peer, type ReachableMessage, runProtocol } from "@treadle/contracts";
import { createPeer, localControlPlanes, openEndpoint } from "@treadle/transport";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import { startNodeService } from "./node-service.ts";
import { spawnCommand } from "./spawn-command.ts";

const token = "a token of enough characters";

/** A worker's process, and those who talk with it: the test plays its runner, and another worker of the run. */
export type LoneWorker = {
  readonly plane: ControlPlane;
  /** once its runner knows where it is; its set-up may go on */
  readonly ofRunner: Peer;
  readonly ofAnother: Peer;
  readonly ready: Promise<void>;
  close(): Promise<void>;
};

/** Of this source, as `worker.mjs` in a project that has Treadle's packages; it exports `MakerWorker`. */
export async function startLoneWorker(project: string, source: string): Promise<LoneWorker> {
  await writeFile(join(project, "package.json"), '{"type":"module"}');
  await writeFile(join(project, "worker.mjs"), source);
  const planes = localControlPlanes();
  const plane = planes.connect();
  const service = await startNodeService(planes.connect(), project, 60_000);
  await plane.announce("run", "run-1", {}, () => undefined);
  const runner = await openEndpoint({ name: "runner", runId: "run-1", token, segments: false, tcp: { port: 0 } });
  const another = await openEndpoint({ name: "other/0#0", runId: "run-1", token, segments: false });
  let isReady!: () => void;
  const ready = new Promise<void>((resolve) => {
    isReady = resolve;
  });
  const reached = new Promise<{ readonly peer: Peer; readonly at: ReachableMessage }>((resolve) => {
    runner.onLink((link) => {
      const peer = createPeer(link, runProtocol);
      peer.handle("configuration", async () => ({ config: {} }));
      peer.handle("reachable", async (at) => resolve({ peer, at }));
      peer.handle("ready", async () => isReady());
      peer.handle("telemetry", () => {});
    });
  });
  const { hash } = await new ProjectCode(project).current();
  const command = spawnCommand(project, hash, {
    over: { modulePath: "worker.mjs" },
    boot: { runnerAddresses: [...runner.addresses] },
  });
  await plane.command(plane.members("node")[0] as Member, "spawn", command, { timeoutMs: 120_000 });
  const { peer, at } = await reached;
  return {
    plane,
    ofRunner: peer,
    ofAnother: createPeer(await another.connect(at.addresses), runProtocol),
    ready,
    async close() {
      await another.close();
      await runner.close();
      await service.close("the test is over");
      await plane.close();
    },
  };
}
