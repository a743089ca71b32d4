/** Small items from worker to worker through a channel's home, next to JetStream, moleculer and the bare link. */
import { openBenchCluster } from "./bench-cluster.ts";
import { SmallItem } from "./items.ts";
import { measureJetStream, measureMoleculer } from "./message-brokers.ts";
import { type BenchRow, median, row, timed } from "./row.ts";
import { LinkWorker } from "./workers/link-worker.ts";
import { ConsumerWorker, ProducerWorker } from "./workers/stream-workers.ts";

const rounds = 5;
const batch = 256;

export async function benchSmallItems(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  for (const sizeBytes of [100, 1024]) rows.push(...(await benchSize(sizeBytes)));
  return rows;
}

async function benchSize(sizeBytes: number): Promise<BenchRow[]> {
  const name = `channel, worker to worker, ${sizeBytes} B items in batches of ${batch}`;
  const channel = await measureChannel(sizeBytes);
  const jetStream = await measureJetStream(sizeBytes);
  const moleculer = await measureMoleculer(sizeBytes);
  const against = (
    other: { rate: number } | { missing: string },
    what: string,
    target: { ratioAtLeast: number } | object,
    notMeasured: string,
  ) =>
    row({
      name,
      value: channel.rate,
      unit: "items/s",
      against: what,
      ...("rate" in other ? { baseline: other.rate, ...target } : {}),
      notMeasured: "missing" in other ? `${other.missing}; ${notMeasured}` : notMeasured,
    });
  return [
    against(
      jetStream,
      "JetStream publish with acknowledgement, 256 in flight, no consumer",
      { ratioAtLeast: 10 },
      "other hosts, several consumers, a home that is busy with other channels",
    ),
    against(
      moleculer,
      "moleculer call over TCP, 256 in flight",
      { ratioAtLeast: 3 },
      "moleculer over NATS; its calls carry an answer back, a put only credit",
    ),
    against(
      { rate: channel.link },
      "notifications one way over the bare link, one hop, neither checked nor stored",
      {},
      "the link's requests and replies",
    ),
  ];
}

/** Items a second through the channel and over the bare link between the same processes; medians of alternating rounds. */
async function measureChannel(sizeBytes: number): Promise<{ rate: number; link: number }> {
  await using bench = await openBenchCluster({ cluster: { devices: 4 }, placement: { mode: "spatial" } });
  const { cluster } = bench;
  const one = { ranks: { fixed: 1 } };
  const producer = await cluster.launch(ProducerWorker, {}, one);
  const consumer = await cluster.launch(ConsumerWorker, {}, one);
  const near = await cluster.launch(LinkWorker, {}, { ...one, name: "near" });
  const far = await cluster.launch(LinkWorker, {}, { ...one, name: "far" });
  const items = cluster.channel("items", SmallItem, { capacity: 16_384 });
  const address = await far.listen().first();
  await near.connect(address);
  const count = sizeBytes <= 256 ? 60_000 : 30_000;
  const [rates, links]: [number[], number[]] = [[], []];
  for (let round = 0; round < rounds + 1; round++) {
    const channelMs = await timed(async () => {
      const produced = producer.produce(items.sink, count, sizeBytes, batch);
      const consumed = consumer.consume(items.source, batch);
      await produced;
      const taken = await consumed.first();
      if (taken !== count) throw new Error(`${taken} items of ${count} arrived`);
    });
    const linkMs = await timed(() => near.flood(count, sizeBytes));
    if (round === 0) continue; // warms up
    rates.push((count / channelMs) * 1000);
    links.push((count / linkMs) * 1000);
  }
  return { rate: median(rates), link: median(links) };
}
