/** The round trip of a group call to one rank, next to a ping-pong of the same bytes over a bare unix socket. */
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Encoder } from "@treadle/transport";
import { openBenchCluster } from "./bench-cluster.ts";
import { type BenchRow, median, row } from "./row.ts";
import { EchoWorker } from "./workers/echo-worker.ts";

const body = { component: "rollout/3", step: 1234, keys: ["a", "b"], weight: 0.75, done: false };
const frameHeadBytes = 8;
/** Until both processes run compiled code. */
const warmUpCalls = 10_000;

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
    const ours: number[] = [];
    const byHand: number[] = [];
    const frame = Buffer.alloc(requestBytes, 1);
    for (let call = 0; call < warmUpCalls; call++) await group.echo(body);
    for (let block = 0; block < 16; block++) {
      for (let round = 0; round < 250; round++) {
        const startedMs = performance.now();
        await pingPong(socket, frame, answerBytes);
        if (block >= 4) byHand.push(performance.now() - startedMs);
      }
      for (let round = 0; round < 250; round++) {
        const startedMs = performance.now();
        await group.echo(body);
        if (block >= 4) ours.push(performance.now() - startedMs);
      }
    }
    socket.destroy();
    return [
      row({
        name: "group call, round trip, one rank",
        value: median(ours) * 1000,
        unit: "µs",
        baseline: median(byHand) * 1000,
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
