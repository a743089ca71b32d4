/** Between two network namespaces, over real TCP: the link next to a bare socket pair, gRPC and NATS in the same run. */
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import net from "node:net";
import { median, type Peer } from "@treadle/contracts";
import { createPeer, type Endpoint, openEndpoint, releaseArrays } from "@treadle/transport";
import { startNatsServer } from "@treadle/transport/testing";
import { z } from "zod";
import { type BenchRow, medianMs, row, timed } from "../row.ts";
import { startChild } from "./network/child.ts";
import { exchange } from "./network/exchange.ts";
import { farWords } from "./network/far-words.ts";
import { openGrpcSender, type Sender } from "./network/grpc-stream.ts";
import { type Namespace, openNamespace } from "./network/namespace.ts";
import { openNatsSender } from "./network/nats-chunks.ts";
import { benchShaped, type Near } from "./network/shaped.ts";

const mebibyte = 1024 * 1024;
const sizes = [16 * mebibyte, 128 * mebibyte];
const rounds = 7;
const message = { component: "rollout/3", step: 1234, keys: ["a", "b"], weight: 0.75, done: false };
const Ready = z.object({ barePort: z.int(), grpcPort: z.int(), address: z.string() });

export async function benchNetwork(): Promise<BenchRow[]> {
  let namespace: Namespace;
  try {
    namespace = await openNamespace();
  } catch (error) {
    const notMeasured = `not measured: ${(error as Error).message}`;
    return [row({ name: "link between two network namespaces", value: null, unit: "GB/s", notMeasured })];
  }
  await using cable = namespace;
  await using ways = await openWays(cable);
  const rows: BenchRow[] = [];
  rows.push(await benchRoundTrip(ways));
  for (const sizeBytes of sizes) rows.push(...(await benchBulk(ways, sizeBytes)));
  rows.push(await benchDirections(ways));
  rows.push(...(await benchShaped(cable, ways)));
  return rows;
}

/** Everything by which bytes reach the other side. */
type Ways = AsyncDisposable & Near & { readonly grpc: Sender; readonly nats: Sender };

async function openWays({ here, there, inside }: Namespace): Promise<Ways> {
  const run = { runId: `bench-${process.pid}`, token: randomBytes(16).toString("hex") };
  const ends: (() => unknown)[] = [];
  const close = async () => {
    for (const end of ends.splice(0).reverse()) await end();
  };
  try {
    const server = await startNatsServer({ host: here });
    ends.push(() => server[Symbol.asyncDispose]());
    const boot = { host: there, ...run, nats: `${here}:${server.port}`, largestBytes: Math.max(...sizes) };
    const child = await startChild("./network/far-side", boot, inside);
    ends.push(() => child[Symbol.asyncDispose]());
    const { barePort, grpcPort, address } = Ready.parse(child.ready);
    const endpoint: Endpoint = await openEndpoint({ name: "near", ...run, segments: false });
    ends.push(() => endpoint.close());
    const peer = createPeer(await endpoint.connect(address), farWords);
    const bare = net.connect({ host: there, port: barePort, noDelay: true });
    ends.push(() => void bare.destroy());
    await once(bare, "connect");
    const grpc = openGrpcSender(`${there}:${grpcPort}`);
    ends.push(() => grpc.close());
    const nats = await openNatsSender(`${here}:${server.port}`);
    ends.push(() => nats.close());
    const far = { barePort, linkPort: Number(address.slice(address.lastIndexOf(":") + 1)) };
    return { peer, bare, endpoint, far, grpc, nats, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

const notMeasured =
  "a real network card and its interrupts: the cable is the kernel's own, so that both sides share its cores";

/** In pairs of some milliseconds, as the round trip of a group call. */
async function benchRoundTrip({ peer, bare }: Ways): Promise<BenchRow> {
  const ask = Buffer.alloc(8);
  const pairs: { oursMs: number; bareMs: number }[] = [];
  for (let pair = 0; pair < 80; pair++) {
    const bareMs = await medianMs(50, () => exchange(bare, [ask]));
    const oursMs = await medianMs(50, () => peer.request("echo", message));
    if (pair >= 20) pairs.push({ oursMs, bareMs });
  }
  const middle = pairs.toSorted((a, b) => a.oursMs / a.bareMs - b.oursMs / b.bareMs)[pairs.length >> 1];
  if (!middle) throw new Error("no pair was measured");
  return row({
    name: "request over a link to another network namespace, round trip",
    value: middle.oursMs * 1000,
    unit: "µs",
    baseline: middle.bareMs * 1000,
    against: "8 bytes and 1 byte back over a bare TCP socket",
    ratioAtMost: 1.5,
    notMeasured,
  });
}

/** The ways take turns, so that a busy machine disturbs all alike. */
async function benchBulk({ peer, bare, grpc, nats }: Ways, sizeBytes: number): Promise<BenchRow[]> {
  const data = new Float32Array(sizeBytes / 4).fill(1);
  const bytes = Buffer.from(data.buffer);
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(sizeBytes));
  const ways = {
    link: () => peer.request("take", data),
    bare: () => exchange(bare, [head, bytes]),
    grpc: () => grpc.send(bytes),
    nats: () => nats.send(bytes),
  };
  const rates = { link: [], bare: [], grpc: [], nats: [] } as Record<keyof typeof ways, number[]>;
  const cpu = { link: [], bare: [], grpc: [], nats: [] } as Record<keyof typeof ways, number[]>;
  const numPairs = Math.ceil((rounds * Math.max(...sizes)) / sizeBytes); // short ones meet more of a busy machine
  for (let round = -2; round < numPairs; round++) {
    for (const name of ["bare", "link", "grpc", "nats"] as const) {
      if (round >= rounds && (name === "grpc" || name === "nats")) continue; // they take long
      const before = await cpuSeconds(peer);
      const rate = sizeBytes / (await timed(ways[name])) / 1e6;
      const used = (await cpuSeconds(peer)) - before;
      if (round < 0) continue;
      rates[name].push(rate);
      cpu[name].push((used * 2 ** 30) / sizeBytes);
    }
  }
  const inCache =
    "; who copies into one block of this size, over and over, finds it in the processor's cache, 16 MiB more than 128";
  const against = (name: keyof typeof ways, text: string, ratioAtLeast: number) =>
    row({
      name: `${sizeBytes / mebibyte} MiB Float32Array over a link to another network namespace`,
      value: median(rates.link),
      unit: "GB/s",
      // Neighbours in time are compared; the rest of the machine changes from round to round.
      baseline: median(rates.link) / median(rates[name].map((rate, i) => (rates.link[i] as number) / rate)),
      against: text,
      ratioAtLeast,
      notMeasured: notMeasured + inCache,
    });
  return [
    against("bare", "a bare TCP socket pair, copied into memory in use", 0.85),
    against("grpc", "a gRPC stream of messages of 1 MiB", 5),
    against("nats", "NATS, messages of 512 KiB, 16 under way", 5),
    ...(["bare", "grpc", "nats"] as const).map((name) =>
      row({
        name: `${sizeBytes / mebibyte} MiB over a link to another network namespace, processor time of both ends per GiB`,
        value: median(cpu.link),
        unit: "s",
        baseline: median(cpu[name]),
        against: { bare: "the bare pair", grpc: "gRPC", nats: "NATS, without its server" }[name],
        notMeasured: "the kernel's work that it counts to nobody",
      }),
    ),
  ];
}

/** Of both ends, so far. */
async function cpuSeconds(peer: Peer<typeof farWords>): Promise<number> {
  const { user, system } = process.cpuUsage();
  return (user + system + Number(await peer.request("cpu", null))) / 1e6;
}

/** Both sides read into memory of ours, though Node itself does so only where it dialled. */
async function benchDirections({ peer }: Ways): Promise<BenchRow> {
  const sizeBytes = Math.max(...sizes);
  const data = new Float32Array(sizeBytes / 4).fill(1);
  const used = { dialled: [] as number[], accepted: [] as number[] };
  for (let round = -1; round < rounds; round++) {
    const startedCpu = await cpuSeconds(peer);
    await peer.request("take", data);
    const middleCpu = await cpuSeconds(peer);
    releaseArrays(await peer.request("give", null));
    const endedCpu = await cpuSeconds(peer);
    if (round < 0) continue;
    used.accepted.push(((middleCpu - startedCpu) * 2 ** 30) / sizeBytes);
    used.dialled.push(((endedCpu - middleCpu) * 2 ** 30) / sizeBytes);
  }
  return row({
    name: `${sizeBytes / mebibyte} MiB to the side that dialled, processor time of both ends per GiB`,
    value: median(used.dialled),
    unit: "s",
    baseline: median(used.accepted),
    against: "the same to the side that accepted",
    notMeasured: "the kernel's work that it counts to nobody",
  });
}
