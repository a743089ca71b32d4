/** What a worker may ask of the runner, request by request. Each request is checked before anything acts on it. */
import { mkdir, open } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { type DepotsReply, type Peer, type SavedStateMessage, type SpanBatch, TreadleError } from "@treadle/contracts";
import type { Incarnation } from "@treadle/core";
import type { z } from "zod";
import { guardDisk } from "../../author/guard-disk.ts";
import { pieceBytes } from "../../author/state/part-writer.ts";
import { fileOf, openState, partBeside } from "../../author/state/saved-state.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { PoolClient } from "../nodes/pool-client.ts";
import type { Component } from "../placement/component.ts";
import type { SizedRanks } from "../placement/sized-ranks.ts";
import type { ArtifactFolder } from "./artifact-folder.ts";
import type { ChannelDesk } from "./channel-desk.ts";
import type { PredictorFolder } from "./predictor-folder.ts";
import type { WorkerEnd } from "./worker-end.ts";

export type WorkerServicePorts = {
  readonly of: WorkerEnd;
  readonly component: Component;
  readonly desk: ChannelDesk;
  readonly loop: RunnerLoop;
  readonly stateFolder: string;
  readonly artifacts: ArtifactFolder;
  readonly predictors: PredictorFolder;
  readonly sized: SizedRanks;
  /** the newest saved state of the component, if there is one */
  readonly newestState: () => string | undefined;
  readonly onSaved: (from: Incarnation, message: z.infer<typeof SavedStateMessage>) => void;
  readonly resolve: (worker: string, ready: boolean) => Promise<{ addresses: string[]; incarnation: number }>;
  readonly nodeOf: (worker: string) => string | undefined;
  readonly depots: (channel: string) => DepotsReply;
  readonly onSpans: (batch: SpanBatch) => void;
  readonly pool: PoolClient | undefined;
};

export function serveWorker(peer: Peer, ports: WorkerServicePorts): void {
  const { of: end, component, desk, loop } = ports;
  // The process of this link, whatever comes after it.
  const from = { worker: end.worker, incarnation: end.incarnation };
  const rank = Number(end.worker.slice(end.worker.lastIndexOf("/") + 1));
  let told: string | undefined;
  const state = (): string => {
    if (told !== undefined) return told;
    throw new TreadleError("link.protocol", `'${end.worker}' asks for a state, and has none to restore`);
  };
  peer.handle("configuration", () => {
    told = ports.newestState();
    return { config: component.config, stateFolder: told };
  });
  peer.handle("state.saved", (message) => ports.onSaved(from, message));
  peer.handle("state.write", async ({ folder, name, ...piece }) => {
    if (dirname(folder) !== ports.stateFolder || !basename(folder).startsWith(`${component.name}.`)) {
      throw new TreadleError(
        "link.protocol",
        `'${end.worker}' wants its state saved in '${folder}', outside of its run`,
      );
    }
    await writePiece(join(partBeside(folder, rank), name), piece);
  });
  peer.handle("state.open", () => openState(state()));
  peer.handle("state.read", ({ rank: of, name, offset }) => readPiece(fileOf(state(), of, name), offset));
  peer.handle("artifact.write", ({ name, data }) => ports.artifacts.write(end.worker, name, data));
  peer.handle("predictor.read", () => ports.predictors.read(end.worker));
  peer.handle("predictor.write", ({ text }) => ports.predictors.write(end.worker, text));
  peer.handle("sizing.report", ({ step, report }) => ports.sized.told(component.name, rank, step, report));
  peer.handle("resolve", ({ worker, ready = false }) => ports.resolve(worker, ready));
  peer.handle("nodes", ({ workers }) => ({ nodes: workers.map((worker) => ports.nodeOf(worker) ?? "") }));
  peer.handle("awaits", ({ messages }) => loop.feed({ type: "awaits", ...from, messages }));
  peer.handle("telemetry", (batch) => ports.onSpans(batch));
  peer.handle("channel.put", (request) => desk.put(request, from));
  peer.handle("channel.take", (request) => desk.take(request, from));
  peer.handle("channel.commit", (request) => desk.commitFor(request, from));
  peer.handle("segments.read", ({ segments }) => desk.read(end.worker, segments));
  peer.handle("depots", ({ channel }) => ports.depots(channel));
  peer.handle("lock.acquire", async ({ call, tags }) => {
    const answer = await loop.ask({ type: "acquire", from, call, tags });
    if (answer.type === "token") return { token: answer.token };
    throw new TreadleError(
      "link.protocol",
      `the device lock answered '${call}' with '${answer.type}', not with a token`,
    );
  });
  peer.handle("lock.lend", (message) => loop.feed({ type: "lend", from, ...message }));
  peer.handle("worked", (done) => {
    const rank = loop.state.rank(end.worker);
    if (rank) ports.pool?.worked(component.name, rank.place.devices, done);
  });
  peer.handle("lock.release", async ({ call, token }) => {
    await loop.ask({ type: "release", from, call, token });
  });
}

/** The one at 0 begins the file anew. */
function writePiece(
  path: string,
  { offset, data, isLast }: { readonly offset: number; readonly data: Uint8Array; readonly isLast: boolean },
): Promise<void> {
  return guardDisk(path, async () => {
    if (offset === 0) await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    const file = await open(path, offset === 0 ? "w" : "a", 0o600);
    try {
      await file.appendFile(data);
      if (isLast) await file.datasync();
    } finally {
      await file.close();
    }
  });
}

async function readPiece(path: string, offset: number): Promise<Uint8Array> {
  const file = await open(path, "r");
  try {
    const piece = Buffer.allocUnsafe(pieceBytes);
    const { bytesRead } = await file.read(piece, 0, pieceBytes, offset);
    return piece.subarray(0, bytesRead);
  } finally {
    await file.close();
  }
}
