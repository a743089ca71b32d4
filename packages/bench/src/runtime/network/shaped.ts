/** The same two processes over a longer and narrower way: what delay costs, and what of it is hidden. */
import { once } from "node:events";
import net from "node:net";
import { median, type Peer } from "@treadle/contracts";
import { createPeer, type Endpoint } from "@treadle/transport";
import { z } from "zod";
import { type BenchRow, medianMs, row, timed } from "../../row.ts";
import { startChild } from "./child.ts";
import { exchange } from "./exchange.ts";
import { farWords } from "./far-words.ts";
import type { Limits, Namespace } from "./namespace.ts";

const mebibyte = 1024 * 1024;
const limits: Limits = { delayMs: 20, mbits: 320 };
const Ports = z.tuple([z.int(), z.int()]);

/** What there is without limits. */
export type Near = {
  readonly peer: Peer<typeof farWords>;
  readonly bare: net.Socket;
  readonly endpoint: Endpoint;
  /** where the other side listens */
  readonly far: { readonly barePort: number; readonly linkPort: number };
};

type Shaped = AsyncDisposable & {
  readonly peer: Peer<typeof farWords>;
  readonly bare: net.Socket;
  readonly how: string;
};

export async function benchShaped(cable: Namespace, near: Near): Promise<BenchRow[]> {
  await using shaped = await openShaped(cable, near);
  return [await benchRoundTrip(shaped), await benchBulk(shaped), await benchOverlap(shaped)];
}

async function openShaped(cable: Namespace, near: Near): Promise<Shaped> {
  const { peer, bare } = near;
  try {
    await cable.shape(limits);
    const end = () => cable.shape();
    return { peer, bare, how: "delay and bandwidth are netem's", [Symbol.asyncDispose]: end };
  } catch (error) {
    const why = (error as Error).message.trim().split("\n").at(-1);
    return openRelayed(cable, near, `tc cannot delay here (${why}), so a process in between holds the bytes`);
  }
}

async function openRelayed({ here, there }: Namespace, { endpoint, far }: Near, how: string): Promise<Shaped> {
  const to = { host: there, ports: [far.barePort, far.linkPort] };
  const relay = await startChild("./network/delay-relay", { listenOn: here, to, ...limits });
  const ends: (() => unknown)[] = [() => relay[Symbol.asyncDispose]()];
  const close = async () => {
    for (const end of ends.splice(0).reverse()) await end();
  };
  try {
    const [barePort, linkPort] = Ports.parse(relay.ready);
    const link = await endpoint.connect(`tcp:${here}:${linkPort}`);
    ends.push(() => link.close());
    const bare = net.connect({ host: here, port: barePort, noDelay: true });
    ends.push(() => void bare.destroy());
    await once(bare, "connect");
    return { peer: createPeer(link, farWords), bare, how, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}

const way = `over a link of ${limits.mbits} Mbit/s and ${limits.delayMs} ms each way`;
const notMeasuredBy = (how: string) => `${how}; loss and jitter; links that others use`;

async function benchRoundTrip({ peer, bare, how }: Shaped): Promise<BenchRow> {
  const ask = Buffer.alloc(8);
  const times = { link: [] as number[], bare: [] as number[] };
  for (let round = 0; round < 5; round++) {
    times.bare.push(await medianMs(5, () => exchange(bare, [ask])));
    times.link.push(await medianMs(5, () => peer.request("echo", "word")));
  }
  return row({
    name: `request, round trip, ${way}`,
    value: median(times.link),
    unit: "ms",
    baseline: median(times.bare),
    against: "8 bytes and 1 byte back over a bare TCP socket",
    ratioAtMost: 1.25, // one way there and one back; a second would make it 2
    notMeasured: notMeasuredBy(how),
  });
}

/** A sender that waited for the receiver between chunks would pay the delay for each. */
async function benchBulk({ peer, bare, how }: Shaped): Promise<BenchRow> {
  const sizeBytes = 16 * mebibyte;
  const data = new Float32Array(sizeBytes / 4).fill(1);
  const bytes = Buffer.from(data.buffer);
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(sizeBytes));
  const rates = { link: [] as number[], bare: [] as number[] };
  for (let round = -1; round < 5; round++) {
    const bareMs = await timed(() => exchange(bare, [head, bytes]));
    const linkMs = await timed(() => peer.request("take", data));
    if (round < 0) continue;
    rates.bare.push((sizeBytes * 8) / bareMs / 1000);
    rates.link.push((sizeBytes * 8) / linkMs / 1000);
  }
  return row({
    name: `16 MiB Float32Array ${way}`,
    value: median(rates.link),
    unit: "Mbit/s",
    baseline: median(rates.bare),
    against: "a bare TCP socket pair",
    ratioAtLeast: 0.85,
    notMeasured: notMeasuredBy(how),
  });
}

/** Chunks that take as long to make as to send: with a call for each, both add up, and the delay; sent as they are made, they overlap. */
async function benchOverlap({ peer, how }: Shaped): Promise<BenchRow> {
  const chunk = new Float32Array(mebibyte / 4).fill(1);
  const [count, workMs] = [30, 25];
  const work = () => new Promise((resolve) => setTimeout(resolve, workMs));
  const [oneByOne, overlapped]: [number[], number[]] = [[], []];
  for (let round = 0; round < 4; round++) {
    const serialMs = await timed(async () => {
      for (let index = 0; index < count; index++) {
        await work();
        await peer.request("take", chunk);
      }
    });
    const streamedMs = await timed(async () => {
      const sent: Promise<unknown>[] = [];
      for (let index = 0; index < count; index++) {
        await work();
        await peer.link.drained();
        sent.push(peer.request("take", chunk));
      }
      await Promise.all(sent);
    });
    if (round === 0) continue;
    oneByOne.push(serialMs);
    overlapped.push(streamedMs);
  }
  return row({
    name: `${count} chunks of 1 MiB, ${workMs} ms of work each, ${way}, sent while the next is made`,
    value: median(overlapped),
    unit: "ms",
    baseline: median(oneByOne),
    against: "the same, each sent before the next is made",
    ratioAtMost: 0.5,
    notMeasured: notMeasuredBy(how),
  });
}
