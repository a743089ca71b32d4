import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { median } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { type BenchRow, row, timed } from "./row.ts";

/** 84 million parameters */
const model = { vocabSize: 8192, contextLength: 64, layers: 4, width: 1024, heads: 8, slots: 1 };
const rounds = 5;
const gib = 2 ** 30;
const pieceBytes = 4 * 2 ** 20;
const notMeasured = "devices, several receivers, networks; memory that is scarce";

/**
 * Weights from one engine on PyTorch to another, from the trainer's parameters to the receiver's: by a ticket, checked, beside the
 * bytes alone, written, flushed and read; and as bytes through Node. In GiB a second.
 */
export async function* benchWeights(): AsyncIterable<BenchRow> {
  const python = process.env["TREADLE_PYTHON"] ?? "python3";
  const hasTorch = await promisify(execFile)(python, ["-c", "import torch, transformers, grpc"]).then(
    () => true,
    () => false,
  );
  const places = [
    { name: "weights by a ticket, in memory", root: "/dev/shm" },
    { name: "weights by a ticket, in the temporary folder", root: tmpdir() },
  ];
  for (const { name, root } of places.filter((place) => existsSync(place.root))) {
    const unit = "GiB/s";
    if (!hasTorch) {
      yield row({ name, value: null, unit, notMeasured: `PyTorch, which '${python}' does not import` });
      continue;
    }
    const { ticket: value, bare, bytes } = await speedsIn(root);
    const against = "the bytes alone, written by Node, flushed and read";
    yield row({ name, value, unit, baseline: bare, against, ratioAtLeast: 0.7, notMeasured });
    yield row({ name, value, unit, baseline: bytes, against: "bytes through Node", notMeasured });
  }
}

type Way = "ticket" | "bare" | "bytes";

/** GiB a second, the median of some rounds. */
async function speedsIn(root: string): Promise<Record<Way, number>> {
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
    return { ticket: median(speeds.ticket), bare: median(speeds.bare), bytes: median(speeds.bytes) };
  } finally {
    await Promise.all(engines.map((engine) => engine.close()));
    await rm(folder, { recursive: true, force: true });
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
