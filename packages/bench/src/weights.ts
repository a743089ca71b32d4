import { existsSync } from "node:fs";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { median } from "@treadle/contracts";
import { SharedTorchEngine, TorchEngine } from "@treadle/engines";
import { type BenchRow, row, timed } from "./row.ts";
import { lacksTorch } from "./torch/python-process.ts";
import { speedsOverGloo } from "./weights-over-gloo.ts";

/** 84 million parameters */
const model = { vocabSize: 8192, contextLength: 64, layers: 4, width: 1024, heads: 8, slots: 1 };
const memory = "/dev/shm";
const rounds = 5;
const gib = 2 ** 30;
const pieceBytes = 4 * 2 ** 20;
const notMeasured = "devices, several receivers, networks; memory that is scarce";

/**
 * Weights from one engine on PyTorch to another, from the trainer's parameters to the receiver's: by a ticket, checked, beside the
 * bytes alone, written, flushed and read; and as bytes through Node. In GiB a second. And in seconds, to an engine that computes with the
 * trainer's module.
 */
export async function* benchWeights(): AsyncIterable<BenchRow> {
  const reason = await lacksTorch();
  const places = [
    { name: "weights by a ticket, in memory", root: memory },
    { name: "weights by a ticket, in the temporary folder", root: tmpdir() },
  ];
  let inMemory: Speeds | undefined;
  for (const { name, root } of places.filter((place) => existsSync(place.root))) {
    const unit = "GiB/s";
    if (reason) {
      yield row({ name, value: null, unit, notMeasured: reason });
      continue;
    }
    const speeds = await speedsIn(root);
    if (root === memory) inMemory = speeds;
    const { ticket: value, bare, bytes } = speeds;
    const against = "the bytes alone, written by Node, flushed and read";
    yield row({ name, value, unit, baseline: bare, against, ratioAtLeast: 0.7, notMeasured });
    yield row({ name, value, unit, baseline: bytes, against: "bytes through Node", notMeasured });
  }
  const [name, unit] = ["weights over gloo, once they are published", "GiB/s"];
  if (reason) {
    yield row({ name, value: null, unit, notMeasured: reason });
    return;
  }
  const { sent, whole, bare: baseline } = await speedsOverGloo(model, rounds);
  const overGloo = { unit, baseline, against: "gloo alone, between two Python processes, into memory that is there" };
  yield row({ name, value: sent, ...overGloo, ratioAtLeast: 0.7, notMeasured });
  yield row({ name: "weights over gloo, with their publication", value: whole, ...overGloo, notMeasured });
  if (!inMemory) return;
  yield row({
    name: "weights of the same module",
    value: await secondsOfSharing(),
    unit: "s",
    baseline: inMemory.gib / inMemory.ticket,
    against: "published and loaded by a ticket, in memory",
    ratioAtMost: 0.1,
    notMeasured,
  });
}

type Way = "ticket" | "bare" | "bytes";
type Speeds = Readonly<Record<Way, number>> & { readonly gib: number };

/** GiB a second, the median of some rounds, and how many they are. */
async function speedsIn(root: string): Promise<Speeds> {
  const folder = await mkdtemp(join(root, "treadle-bench-"));
  const engines: TorchEngine[] = [];
  try {
    const start = async () => {
      const engine = await TorchEngine.create(model, { kind: "torch", weightsFolder: folder });
      engines.push(engine);
      return engine;
    };
    const [trainer, receiver] = [await start(), await start()];
    const whole = Buffer.alloc(trainer.numParameters * 4, 1);
    const ways: Record<Way, () => Promise<void>> = {
      ticket: async () => {
        const publication = await trainer.publish();
        if (!publication || !("ticket" in publication)) throw new Error(publication?.obstacle);
        await receiver.loadTicket(publication.ticket);
      },
      bare: () => writeAndRead(join(folder, "bare"), whole),
      bytes: async () => receiver.loadWeights(await trainer.exportWeights()),
    };
    const speeds: Record<Way, number[]> = { ticket: [], bare: [], bytes: [] };
    for (let round = 0; round <= rounds; round++) {
      for (const way of ["ticket", "bare", "bytes"] as const) {
        const seconds = (await timed(ways[way])) / 1000;
        if (round > 0) speeds[way].push(whole.length / gib / seconds); // the first makes what the others use again
      }
    }
    const medians = { ticket: median(speeds.ticket), bare: median(speeds.bare), bytes: median(speeds.bytes) };
    return { ...medians, gib: whole.length / gib };
  } finally {
    await Promise.all(engines.map((engine) => engine.close()));
    await rm(folder, { recursive: true, force: true });
  }
}

/** What an engine in its trainer's process takes to have the trainer's weights. */
async function secondsOfSharing(): Promise<number> {
  const runPrefix = `treadle-bench-${process.pid}-`;
  const hostFiles = { folder: memory, ownPrefix: `${runPrefix}1-`, leftPrefix: `${runPrefix}left-`, runPrefix };
  const torch = { kind: "torch", process: "shared" } as const;
  const rank = { rank: 0, worldSize: 1, devices: ["cpu:0"] };
  const trainer = await TorchEngine.create(model, torch, { hostFiles, offer: { component: "actor", ...rank } });
  try {
    const sampler = await SharedTorchEngine.attach(model, torch, {
      hostFiles,
      rank: { component: "rollout", ...rank },
    });
    const { shared } = trainer;
    if (!shared) throw new Error("the trainer shares its module with nobody");
    const seconds: number[] = [];
    for (let round = 0; round <= rounds; round++) seconds.push((await timed(() => sampler.takeShared(shared))) / 1000);
    await sampler.close();
    return median(seconds.slice(1));
  } finally {
    await trainer.close();
  }
}

async function writeAndRead(path: string, whole: Buffer): Promise<void> {
  const sizeBytes = whole.length;
  {
    await using file = await open(path, "w", 0o600);
    for (let at = 0; at < sizeBytes; at += pieceBytes)
      await file.write(whole, at, Math.min(pieceBytes, sizeBytes - at));
    await file.sync();
  }
  {
    await using file = await open(path);
    for (let at = 0; at < sizeBytes; at += pieceBytes)
      await file.read(whole, at, Math.min(pieceBytes, sizeBytes - at), at);
  }
  await rm(path);
}
