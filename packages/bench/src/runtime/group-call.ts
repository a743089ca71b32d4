/** The round trip of a group call to one rank, next to a ping-pong of the same bytes over a bare unix socket. */
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Encoder } from "@treadle/transport";
import { type BenchRow, medianMs, row } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { EchoWorker } from "./workers/echo-worker.ts";

const body = { component: "rollout/3", step: 1234, keys: ["a", "b"], weight: 0.75, done: false };
const frameHeadBytes = 8;
/** Until both processes run compiled code. */
const warmUpCalls = 10_000;
/**
 * Where the scheduler puts two processes, and how deep they sleep, changes a round trip threefold from one moment to the
 * next, so both are measured in turn in pairs of a few milliseconds, and the pair of the middle ratio is reported.
 */
const numPairs = 120;
const roundsInPair = 50;

export async function benchGroupCall(): Promise<BenchRow[]> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-bare-"));
  await using bench = await openBenchCluster({ cluster: { devices: 1 } });
  try {
    const group = await bench.cluster.launch(EchoWorker, {});
    await group.echo(body);
    // The envelopes of a request and of its answer, as a connection writes them once it knows their shapes.
    const requestBytes = encodedBytes([
      1,
      5000,
      "call",
      { call: "5000/0", sequence: 5000, method: "echo", args: [body] },
    ]);
    const answerBytes = encodedBytes([2, 5000, { value: body, durationMs: 0.123456, timers: {} }]);
    await group.listenByHand(join(folder, "bare"), requestBytes, answerBytes);
    const socket = net.connect(join(folder, "bare"));
    await once(socket, "connect");
    const frame = Buffer.alloc(requestBytes, 1);
    for (let call = 0; call < warmUpCalls; call++) await group.echo(body);
    const pairs: { oursMs: number; byHandMs: number }[] = [];
    for (let pair = 0; pair < numPairs; pair++) {
      const byHandMs = await medianMs(roundsInPair, () => pingPong(socket, frame, answerBytes));
      const oursMs = await medianMs(roundsInPair, () => group.echo(body));
      if (pair >= numPairs / 4) pairs.push({ oursMs, byHandMs });
    }
    socket.destroy();
    const ratio = ({ oursMs, byHandMs }: (typeof pairs)[number]) => oursMs / byHandMs;
    const middle = pairs.toSorted((a, b) => ratio(a) - ratio(b))[Math.floor(pairs.length / 2)];
    if (!middle) throw new Error("no pair was measured");
    return [
      row({
        name: "group call, round trip, one rank",
        value: middle.oursMs * 1000,
        unit: "µs",
        baseline: middle.byHandMs * 1000,
        against: `ping-pong of the same ${requestBytes} + ${answerBytes} bytes over a bare unix socket`,
        ratioAtMost: 1.5,
        notMeasured: "other hosts, many ranks at once, arguments above 64 KiB",
      }),
    ];
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function encodedBytes(envelope: unknown): number {
  const encoder = new Encoder();
  encoder.encode(envelope);
  return encoder.encode(envelope).header.length + frameHeadBytes;
}

function pingPong(socket: net.Socket, bytes: Uint8Array, answerBytes: number): Promise<void> {
  return new Promise((resolve) => {
    let remaining = answerBytes;
    const onData = (data: Buffer) => {
      remaining -= data.length;
      if (remaining > 0) return;
      socket.off("data", onData);
      resolve();
    };
    socket.on("data", onData);
    socket.write(bytes);
  });
}
