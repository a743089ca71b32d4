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
  const places = [["memory", "/dev/shm"] as const, ["temporary folder", tmpdir()] as const];
  for (const [name, root] of places.filter(([, path]) => existsSync(path))) {
    const folder = await mkdtemp(join(root, "treadle-bench-"));
    try {
      const named = `weights by a ticket, in ${name === "memory" ? "memory" : `the ${name}`}`;
      if (!hasTorch) {
        yield row({
          name: named,
          value: null,
          unit: "GiB/s",
          notMeasured: `PyTorch, which '${python}' does not import`,
        });
        continue;
      }
      const engine = { kind: "torch", weightsFolder: folder } as const;
      const [trainer, receiver] = await Promise.all([
        TorchEngine.create(model, engine),
        TorchEngine.create(model, engine),
      ]);
      const sizeBytes = trainer.numParameters * 4;
      const speeds = { ticket: [] as number[], bare: [] as number[], bytes: [] as number[] };
      const byTicket = async () => {
        const publication = await trainer.publish();
        if (!publication || !("ticket" in publication)) throw new Error(publication?.obstacle);
        await receiver.loadTicket(publication.ticket);
      };
      const asBytes = async () => receiver.loadWeights(await trainer.exportWeights());
      const ways = { ticket: byTicket, bare: () => writeAndRead(join(folder, "bare"), sizeBytes), bytes: asBytes };
      for (let round = 0; round <= rounds; round++) {
        for (const way of ["ticket", "bare", "bytes"] as const) {
          const seconds = (await timed(ways[way])) / 1000;
          if (round > 0) speeds[way].push(sizeBytes / gib / seconds); // the first makes what the others use again
        }
      }
      await Promise.all([trainer.close(), receiver.close()]);
      const unit = "GiB/s";
      const value = median(speeds.ticket);
      const bare = "the bytes alone, written by Node, flushed and read";
      yield row({
        name: named,
        value,
        unit,
        baseline: median(speeds.bare),
        against: bare,
        ratioAtLeast: 0.7,
        notMeasured,
      });
      yield row({
        name: named,
        value,
        unit,
        baseline: median(speeds.bytes),
        against: "bytes through Node",
        notMeasured,
      });
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  }
}

async function writeAndRead(path: string, sizeBytes: number): Promise<void> {
  const piece = Buffer.alloc(pieceBytes, 1);
  const whole = Buffer.allocUnsafeSlow(sizeBytes);
  {
    await using file = await open(path, "w", 0o600);
    for (let at = 0; at < sizeBytes; at += pieceBytes) await file.write(piece, 0, Math.min(pieceBytes, sizeBytes - at));
    await file.sync();
  }
  {
    await using file = await open(path);
    for (let at = 0; at < sizeBytes; at += pieceBytes)
      await file.read(whole, at, Math.min(pieceBytes, sizeBytes - at), at);
  }
  await rm(path);
}
