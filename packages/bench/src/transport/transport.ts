/**
 * Measures the transport between two processes of this host, next to the same work by hand in the same run.
 *
 * All rounds alternate between the two, and medians are reported, so that a busy machine disturbs both alike. Not
 * measured: other hosts, many peers at once, the wait for a garbage collection that a receiver with a large heap pays.
 */

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Link, median, type Peer, runPrefix } from "@treadle/contracts";
import { createPeer, Encoder, openEndpoint, removeSegments } from "@treadle/transport";
import { envelopeKind, headBytes } from "@treadle/transport/internal";
import { moduleFile, scriptArguments } from "../processes.ts";
import { type BenchRow, row } from "../row.ts";
import { exchange, fileByHand, type Hand, mappedByHand } from "./by-hand.ts";
import { farWords } from "./far-words.ts";

export type TransportBenchOptions = {
  /** Sizes of the arrays passed in bulk. Default 16 MiB and 256 MiB. */
  readonly bulkBytes?: readonly number[] | undefined;
  /** Multiplies the number of rounds. Default 1, about ten seconds. */
  readonly effort?: number | undefined;
};

const mebibyte = 1024 * 1024;
const warmRounds = 3;
const notMeasured = "other hosts, many peers at once, a receiver whose large heap is being collected";

type Far = { readonly peer: Peer<typeof farWords>; readonly bare: net.Socket; readonly runId: string };

/** Runs every measurement; starts a second process and stops it. */
export async function benchTransport(options: TransportBenchOptions = {}): Promise<BenchRow[]> {
  const effort = options.effort ?? 1;
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-"));
  const runId = `bench-${process.pid}`;
  const token = randomBytes(16).toString("hex");
  const near = await openEndpoint({ name: "near", runId, token, unixPath: join(folder, "peer") });
  const bareServer = net.createServer().listen(join(folder, "bare"));
  try {
    const linked = new Promise<Link>((resolve) => near.onLink(resolve));
    const bareConnected = once(bareServer, "connection") as Promise<[net.Socket]>;
    const script = fileURLToPath(new URL(moduleFile("./far-end"), import.meta.url));
    const args = [...scriptArguments(script), near.addresses[0]!, runId, token, join(folder, "bare")];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "inherit", "inherit"] });
    const died = once(child, "exit").then(() => {
      throw new Error("the far process of the benchmark died");
    });
    const far: Far = {
      peer: createPeer(await Promise.race([linked, died]), farWords),
      bare: (await Promise.race([bareConnected, died]))[0],
      runId,
    };
    died.catch(() => {}); // From here on the peer notices.
    const rows = await benchSmall(far, effort);
    for (const bytes of options.bulkBytes ?? [16 * mebibyte, 256 * mebibyte])
      rows.push(...(await benchBulk(far, bytes, effort)));
    far.bare.destroy();
    return rows;
  } finally {
    await near.close();
    bareServer.close();
    removeSegments(runPrefix(runId));
    await rm(folder, { recursive: true, force: true });
  }
}

const smallBody = { component: "rollout/3", step: 1234, keys: ["a", "b"], weight: 0.75, done: false };

async function benchSmall({ peer, bare }: Far, effort: number): Promise<BenchRow[]> {
  const frameBytes = frameBytesOf([envelopeKind.request, 100_000, "echo", smallBody]);
  const answerBytes = frameBytesOf([envelopeKind.reply, 100_000, smallBody]);
  const frame = Buffer.alloc(frameBytes, 1);
  const ours: number[] = [];
  const byHand: number[] = [];
  for (let block = 0; block < Math.ceil(12 * effort) + warmRounds; block++) {
    for (let round = 0; round < 500; round++) {
      const start = performance.now();
      await exchange(bare, frame, frameBytes);
      if (block >= warmRounds) byHand.push(performance.now() - start);
    }
    for (let round = 0; round < 500; round++) {
      const start = performance.now();
      await peer.request("echo", smallBody);
      if (block >= warmRounds) ours.push(performance.now() - start);
    }
  }
  const name = `request and reply, ${frameBytes} + ${answerBytes} bytes, against a bare socket's ping-pong`;
  const rows = [figure(name, "µs", median(ours) * 1000, median(byHand) * 1000, { ratioAtMost: 1.5 })];

  const count = Math.ceil(50_000 * effort);
  const [oursRate, handRate]: [number[], number[]] = [[], []];
  const noticeFrame = Buffer.alloc(frameBytesOf([envelopeKind.notify, "notice", smallBody]), 1);
  for (let round = 0; round < 5; round++) {
    await peer.request("prepare", { kind: "count", bytes: count * noticeFrame.length });
    handRate.push(count / (await seconds(() => floodByHand(bare, noticeFrame, count))));
    oursRate.push(count / (await seconds(() => flood(peer, count))));
  }
  rows.push(
    figure("notifications one way, against one bare write each", "messages/s", median(oursRate), median(handRate)),
  );
  return rows;
}

async function flood(peer: Peer<typeof farWords>, count: number): Promise<void> {
  for (let index = 0; index < count; index++) {
    peer.notify("notice", smallBody);
    if (index % 500 === 499) await peer.link.drained();
  }
  await peer.request("notices", undefined);
}

async function floodByHand(bare: net.Socket, frame: Buffer, count: number): Promise<void> {
  const answered = once(bare, "data");
  for (let index = 0; index < count; index++) if (!bare.write(frame)) await once(bare, "drain");
  await answered;
}

async function benchBulk({ peer, bare, runId }: Far, bytes: number, effort: number): Promise<BenchRow[]> {
  const data = new Float32Array(bytes / 4).fill(1);
  const rounds = Math.max(5, Math.ceil((320 * mebibyte * effort) / bytes)) + warmRounds;
  const signal = Buffer.alloc(1);
  const byHand = async (hand: Hand) => {
    hand.write(new Uint8Array(data.buffer));
    await exchange(bare, signal, 1);
  };
  const name = `${runPrefix(runId)}hand`;
  const hands = [
    { what: "mapped memory, copied in and out by hand", ratioAtLeast: 0.6, hand: mappedByHand(`${name}-1`, bytes) },
    {
      what: "a file in shared memory, written and read by hand",
      ratioAtLeast: 0.6,
      hand: fileByHand(`${name}-2`, bytes),
    },
  ];
  const rows: BenchRow[] = [];
  for (const { what, hand, ratioAtLeast } of hands) {
    if (hand === undefined) continue;
    await peer.request("prepare", hand.mode);
    const [handTimes, released, kept]: [number[], number[], number[]] = [[], [], []];
    for (let round = 0; round < rounds; round++) {
      handTimes.push(await seconds(() => byHand(hand)));
      released.push(await seconds(() => peer.request("release", data)));
    }
    for (let round = 0; round < rounds; round++) kept.push(await seconds(() => peer.request("keep nothing", data)));
    await peer.request("prepare", { kind: "echo" });
    hand.dispose();
    const rate = (times: number[]) => bytes / 1e9 / median(times.slice(warmRounds));
    const title = `${bytes / mebibyte} MiB Float32Array`;
    rows.push(
      figure(`${title}, released after use, against ${what}`, "GB/s", rate(released), rate(handTimes), {
        ratioAtLeast,
      }),
    );
    rows.push(figure(`${title}, left to garbage collection, against ${what}`, "GB/s", rate(kept), rate(handTimes)));
  }
  return rows;
}

function frameBytesOf(envelope: unknown): number {
  const encoder = new Encoder();
  encoder.encode(envelope);
  return encoder.encode(envelope).header.length + headBytes;
}

async function seconds(run: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await run();
  return (performance.now() - start) / 1000;
}

type Promised = { readonly ratioAtMost?: number; readonly ratioAtLeast?: number };

/** Next to the same work by hand. */
function figure(name: string, unit: string, value: number, baseline: number, promised: Promised = {}): BenchRow {
  return row({ name, value, unit, baseline, against: "the same work by hand", notMeasured, ...promised });
}
