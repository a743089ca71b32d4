/** What a worker may ask of the runner, request by request. Each request is checked before anything acts on it. */
import { dirname } from "node:path";
import {
  type DepotsReply,
  DepotsRequest,
  LockRequest,
  type Peer,
  ResolveRequest,
  readMessage,
  SaveStateRequest,
  TreadleError,
  UnlockRequest,
  WriteArtifactRequest,
} from "@treadle/contracts";
import type { ChannelHomes } from "../channel/channel-homes.ts";
import type { LockService } from "../device-lock/lock-service.ts";
import { readState, writeState } from "../host/state-file.ts";
import type { ArtifactFolder } from "./artifact-folder.ts";
import type { Component } from "./component.ts";
import type { Rank } from "./rank.ts";

export type WorkerServicePorts = {
  readonly rank: Rank;
  readonly component: Component;
  readonly homes: ChannelHomes;
  readonly locks: LockService;
  /** it cannot read the run's folder */
  readonly isRemote: boolean;
  readonly stateFolder: string;
  readonly artifacts: ArtifactFolder;
  /** the newest saved state of the component, if there is one */
  readonly statePath: () => string | undefined;
  readonly resolve: (worker: string) => Promise<{ addresses: string[]; incarnation: number }>;
  readonly depots: (channel: string) => DepotsReply;
  readonly onReady: (body: unknown) => void;
  readonly onSpans: (batch: unknown) => void;
};

export function serveWorker(peer: Peer, ports: WorkerServicePorts): void {
  const { rank, component, homes, locks } = ports;
  peer.handle("configuration", async () => {
    const statePath = ports.statePath();
    if (!ports.isRemote || statePath === undefined) return { config: component.config, statePath };
    return { config: component.config, state: await readState(statePath) };
  });
  peer.handle("state.save", async (body) => {
    const { path, state } = readMessage(SaveStateRequest, body);
    if (dirname(path) !== ports.stateFolder) {
      throw new TreadleError("link.protocol", `'${rank.name}' wants its state saved at '${path}', outside of its run`);
    }
    await writeState(path, state);
  });
  peer.handle("artifact.write", (body) => {
    const { name, data } = readMessage(WriteArtifactRequest, body);
    return ports.artifacts.write(rank.name, name, data);
  });
  peer.handle("ready", (body) => {
    ports.onReady(body);
  });
  peer.handle("resolve", (body) => ports.resolve(readMessage(ResolveRequest, body).worker));
  peer.handle("telemetry", (body) => ports.onSpans(body));
  peer.handle("channel.put", (body) => homes.put(body));
  peer.handle("channel.take", (body) => homes.take(body));
  peer.handle("segments.read", (body) => homes.read(rank.name, body));
  peer.handle("depots", (body) => ports.depots(readMessage(DepotsRequest, body).channel));
  peer.handle("lock.acquire", (body) => {
    const { call } = readMessage(LockRequest, body);
    return locks.acquire({ call, worker: rank.name });
  });
  peer.handle("lock.release", (body) => {
    const { call, token } = readMessage(UnlockRequest, body);
    locks.release({ call, worker: rank.name, token });
  });
}
