/** One array to many worker processes, next to the same bytes through shared memory by hand, and the sum of one over all. */
import { median } from "@treadle/contracts";
import type { WorkerGroup } from "@treadle/runtime";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { CollectiveWorker, RootWorker } from "./workers/collective-workers.ts";

const mebibyte = 1024 * 1024;
const sizeBytes = 64 * mebibyte;
const summedBytes = 16 * mebibyte;
const numSumming = 4;
const rounds = 7;
const notMeasured =
  "other hosts; receivers that hold on to what they got, so that fresh memory is needed each time; machines with a core for each receiver";

export async function* benchBroadcast(): AsyncGenerator<BenchRow> {
  for (const numReceivers of [1, 4, 8]) yield* await benchReceivers(numReceivers);
}

async function benchReceivers(numReceivers: number): Promise<BenchRow[]> {
  await using bench = await openBenchCluster({ cluster: { devices: 1 } });
  const { cluster } = bench;
  const root = cluster.launch(RootWorker, {}, { name: "root", ranks: { fixed: 1 } });
  const receivers = cluster.launch(CollectiveWorker, {}, { name: "receivers", ranks: { fixed: numReceivers } });
  const file = `treadle-bench-${process.pid}-${numReceivers}-hand`;
  await root.make(file, sizeBytes);
  await receivers.open(file, sizeBytes);
  const times: Record<"hand" | "broadcast" | "each", number[]> = { hand: [], broadcast: [], each: [] };
  for (let round = 0; round < rounds + 2; round++) {
    const handMs = await timed(async () => {
      await root.write();
      await receivers.read();
    });
    const broadcastMs = await timed(() =>
      Promise.all([root.broadcast(receivers, "broadcast"), receivers.receive("root/0", "broadcast")]),
    );
    const eachMs = await timed(() =>
      Promise.all([root.sendToEach(receivers, "each"), receivers.receive("root/0", "each")]),
    );
    if (round < 2) continue; // warms up
    times.hand.push(handMs);
    times.broadcast.push(broadcastMs);
    times.each.push(eachMs);
  }
  const name = `${sizeBytes / mebibyte} MiB Float32Array to ${numReceivers} worker${numReceivers === 1 ? "" : "s"}`;
  const against = "a file in shared memory, written once and read by each receiver by hand into memory in use";
  const common = { unit: "ms", baseline: median(times.hand), against, notMeasured };
  const rows = [
    row({ name: `${name}, broadcast`, value: median(times.broadcast), ratioAtMost: 1.5, ...common }),
    row({ name: `${name}, sent to each of them`, value: median(times.each), ...common }),
  ];
  if (numReceivers === numSumming) rows.push(await benchSum(receivers));
  return rows;
}

async function benchSum(ranks: WorkerGroup<CollectiveWorker>): Promise<BenchRow> {
  await ranks.fill(summedBytes);
  const times: Record<"shards" | "first", number[]> = { shards: [], first: [] };
  for (let round = 0; round < rounds + 2; round++) {
    const shardsMs = await timed(() => ranks.allReduce());
    const firstMs = await timed(() => ranks.throughFirst());
    if (round < 2) continue; // warms up
    times.shards.push(shardsMs);
    times.first.push(firstMs);
  }
  return row({
    name: `${summedBytes / mebibyte} MiB Float32Array summed over ${numSumming} ranks`,
    value: median(times.shards),
    unit: "ms",
    baseline: median(times.first),
    against: "gathered and added up by the first rank, and broadcast",
    notMeasured,
  });
}
