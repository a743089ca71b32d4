/** Large arrays between two worker processes, next to the same bytes through shared memory by hand. */
import { median } from "@treadle/contracts";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { BulkItem } from "./items.ts";
import { HandWorker } from "./workers/hand-worker.ts";
import { ConsumerWorker, ProducerWorker } from "./workers/stream-workers.ts";

const mebibyte = 1024 * 1024;
const rounds = 5;

export async function benchBulk(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  for (const sizeBytes of [16 * mebibyte, 256 * mebibyte]) rows.push(...(await benchSize(sizeBytes)));
  return rows;
}

async function benchSize(sizeBytes: number): Promise<BenchRow[]> {
  await using bench = await openBenchCluster({ cluster: { devices: 4 }, placement: { mode: "spatial" } });
  const { cluster } = bench;
  const one = { ranks: { fixed: 1 } };
  const producer = cluster.launch(ProducerWorker, {}, one);
  const consumer = cluster.launch(ConsumerWorker, {}, one);
  const writer = cluster.launch(HandWorker, {}, { ...one, name: "writer" });
  const reader = cluster.launch(HandWorker, {}, { ...one, name: "reader" });
  const items = cluster.channel("items", BulkItem, { capacity: 2 });
  const file = `treadle-bench-${process.pid}-hand`;
  await writer.make(file, sizeBytes);
  await reader.open(file, sizeBytes);
  const count = Math.max(4, Math.round((256 * mebibyte) / sizeBytes));
  const bytes = count * sizeBytes;
  const rates: Record<"sent" | "channel" | "hand", number[]> = { sent: [], channel: [], hand: [] };
  for (let round = 0; round < rounds + 1; round++) {
    const handMs = await timed(async () => {
      for (let turn = 0; turn < count; turn++) {
        await writer.write();
        await reader.read();
      }
    });
    const sentMs = await timed(() =>
      Promise.all([producer.sendBulk("consumer/0", count, sizeBytes), consumer.receiveBulk("producer/0", count)]),
    );
    const channelMs = await timed(() =>
      Promise.all([producer.produceBulk(items.sink, count, sizeBytes), consumer.consumeBulk(items.source)]),
    );
    if (round === 0) continue; // warms up
    rates.hand.push(bytes / handMs / 1e6);
    rates.sent.push(bytes / sentMs / 1e6);
    rates.channel.push(bytes / channelMs / 1e6);
  }
  const size = `${sizeBytes / mebibyte} MiB Float32Array`;
  const common = {
    unit: "GB/s",
    baseline: median(rates.hand),
    against: "a file in shared memory, written and read by hand into memory in use",
    ratioAtLeast: 0.6,
    notMeasured: "other hosts; receivers that hold on to what they got, so that fresh memory is needed each time",
  };
  return [
    row({ name: `${size}, send and recv between two workers`, value: median(rates.sent), ...common }),
    row({ name: `${size}, through a channel`, value: median(rates.channel), ...common }),
  ];
}
