/** Small items from worker to worker through a channel's home, next to JetStream, moleculer and the bare link. */
import { median } from "@treadle/contracts";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { SmallItem } from "./items.ts";
import { type Broker, openJetStream, openMoleculer } from "./message-brokers.ts";
import { LinkWorker } from "./workers/link-worker.ts";
import { ConsumerWorker, ProducerWorker } from "./workers/stream-workers.ts";

const rounds = 7;
/** Until all processes run compiled code. */
const warmUpRounds = 3;
const batch = 256;
/** Messages that a broker has under way at once. */
const inFlight = 256;
const brokerMessages = 4000;

export async function benchSmallItems(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  for (const sizeBytes of [100, 1024]) rows.push(...(await benchSize(sizeBytes)));
  return rows;
}

/** One way of moving items: what it is, and how many a second it moved in each round. */
type Way = { readonly move: () => Promise<number>; readonly rates: number[] };

/** The ways take turns, so that a busy machine disturbs all alike. */
async function benchSize(sizeBytes: number): Promise<BenchRow[]> {
  await using bench = await openBenchCluster({ cluster: { devices: 4 }, placement: { mode: "spatial" } });
  const ways = await openWays(bench, sizeBytes);
  await using jetStream = await openBroker("JetStream", () => openJetStream(sizeBytes));
  await using moleculer = await openBroker("moleculer", () => openMoleculer(sizeBytes));
  const all = [ways.channel, ways.link, jetStream.way, moleculer.way];
  for (let round = -warmUpRounds; round < rounds; round++) {
    for (const way of all) {
      const rate = await way?.move();
      if (rate !== undefined && round >= 0) way?.rates.push(rate);
    }
  }
  const against = (way: Way | undefined, against: string, target: { ratioAtLeast?: number }, notMeasured: string) =>
    row({
      name: `channel, worker to worker, ${sizeBytes} B items in batches of ${batch}`,
      value: median(ways.channel.rates),
      unit: "items/s",
      against,
      ...(way ? { baseline: median(way.rates), ...target } : {}),
      notMeasured,
    });
  return [
    against(
      jetStream.way,
      `JetStream publish with acknowledgement, ${inFlight} in flight, no consumer`,
      { ratioAtLeast: 10 },
      `${jetStream.missing}other hosts, several consumers, a home that is busy with other channels`,
    ),
    against(
      moleculer.way,
      `moleculer call over TCP, ${inFlight} in flight`,
      { ratioAtLeast: 3 },
      `${moleculer.missing}moleculer over NATS; its calls carry an answer back, a put only credit`,
    ),
    against(
      ways.link,
      "notifications one way over the bare link, one hop, neither checked nor stored",
      {},
      "the link's requests and replies",
    ),
  ];
}

/** Through the channel, and over the bare link between processes of the same kind. */
async function openWays(
  { cluster }: Awaited<ReturnType<typeof openBenchCluster>>,
  sizeBytes: number,
): Promise<{ channel: Way; link: Way }> {
  const one = { ranks: { fixed: 1 } };
  const producer = cluster.launch(ProducerWorker, {}, one);
  const consumer = cluster.launch(ConsumerWorker, {}, one);
  const near = cluster.launch(LinkWorker, {}, { ...one, name: "near" });
  const far = cluster.launch(LinkWorker, {}, { ...one, name: "far" });
  const items = cluster.channel("items", SmallItem, { capacity: 16_384 });
  await near.connect(await far.listen().first());
  const count = sizeBytes <= 256 ? 60_000 : 30_000;
  const rateOf = async (move: () => PromiseLike<unknown>) => (count / (await timed(move))) * 1000;
  const channel = () =>
    rateOf(async () => {
      const produced = producer.produce(items.sink, count, sizeBytes, batch);
      const consumed = consumer.consume(items.source, batch);
      await produced;
      const taken = await consumed.first();
      if (taken !== count) throw new Error(`${taken} items of ${count} arrived`);
    });
  return {
    channel: { move: channel, rates: [] },
    link: { move: () => rateOf(() => near.flood(count, sizeBytes)), rates: [] },
  };
}

type OpenBroker = AsyncDisposable & { readonly way: Way | undefined; readonly missing: string };

/** A broker that does not start leaves its row without a baseline. */
async function openBroker(name: string, open: () => Promise<Broker>): Promise<OpenBroker> {
  try {
    const broker = await open();
    const move = async () => (brokerMessages / (await timed(() => sendAll(broker)))) * 1000;
    return {
      way: { move, rates: [] },
      missing: "",
      [Symbol.asyncDispose]: () => Promise.resolve(broker[Symbol.asyncDispose]()),
    };
  } catch (error) {
    const missing = `${name} could not be measured: ${(error as Error).message}; `;
    return { way: undefined, missing, async [Symbol.asyncDispose]() {} };
  }
}

async function sendAll(broker: Broker): Promise<void> {
  let next = 0;
  const lane = async () => {
    while (next++ < brokerMessages) await broker.send();
  };
  await Promise.all(Array.from({ length: inFlight }, lane));
}
