/** What a worker may ask of the runner, request by request. Each request is checked before anything acts on it. */
import { dirname } from "node:path";
import { type DepotsReply, type Peer, type SpanBatch, TreadleError } from "@treadle/contracts";
import { readState, writeState } from "../../author/state-file.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { Component } from "../placement/component.ts";
import type { ArtifactFolder } from "./artifact-folder.ts";
import type { ChannelDesk } from "./channel-desk.ts";
import type { WorkerEnd } from "./worker-end.ts";

export type WorkerServicePorts = {
  readonly of: WorkerEnd;
  readonly component: Component;
  readonly desk: ChannelDesk;
  readonly loop: RunnerLoop;
  /** it cannot read the run's folder */
  readonly isRemote: boolean;
  readonly stateFolder: string;
  readonly artifacts: ArtifactFolder;
  /** the newest saved state of the component, if there is one */
  readonly statePath: () => string | undefined;
  readonly resolve: (worker: string, ready: boolean) => Promise<{ addresses: string[]; incarnation: number }>;
  readonly depots: (channel: string) => DepotsReply;
  readonly onSpans: (batch: SpanBatch) => void;
};

export function serveWorker(peer: Peer, ports: WorkerServicePorts): void {
  const { of: end, component, desk, loop } = ports;
  // The process of this link, whatever comes after it.
  const from = { worker: end.worker, incarnation: end.incarnation };
  peer.handle("configuration", async () => {
    const statePath = ports.statePath();
    if (!ports.isRemote || statePath === undefined) return { config: component.config, statePath };
    return { config: component.config, state: await readState(statePath) };
  });
  peer.handle("state.save", async ({ path, state }) => {
    if (dirname(path) !== ports.stateFolder) {
      throw new TreadleError("link.protocol", `'${end.worker}' wants its state saved at '${path}', outside of its run`);
    }
    await writeState(path, state);
  });
  peer.handle("artifact.write", ({ name, data }) => ports.artifacts.write(end.worker, name, data));
  peer.handle("resolve", ({ worker, ready = false }) => ports.resolve(worker, ready));
  peer.handle("awaits", ({ messages }) => loop.feed({ type: "awaits", ...from, messages }));
  peer.handle("telemetry", (batch) => ports.onSpans(batch));
  peer.handle("channel.put", (request) => desk.put(request, from));
  peer.handle("channel.take", (request) => desk.take(request, from));
  peer.handle("channel.commit", (request) => desk.commitFor(request, from));
  peer.handle("segments.read", ({ segments }) => desk.read(end.worker, segments));
  peer.handle("depots", ({ channel }) => ports.depots(channel));
  peer.handle("lock.acquire", async ({ call }) => {
    const answer = await loop.ask({ type: "acquire", from, call });
    if (answer.type === "token") return { token: answer.token };
    throw new TreadleError(
      "link.protocol",
      `the device lock answered '${call}' with '${answer.type}', not with a token`,
    );
  });
  peer.handle("lock.lend", (message) => loop.feed({ type: "lend", from, ...message }));
  peer.handle("lock.release", async ({ call, token }) => {
    await loop.ask({ type: "release", from, call, token });
  });
}
