import { median, readMessage, type TrainBatch } from "@treadle/contracts";
import { TorchEngine, TransformerConfig } from "@treadle/engines";
import { createRandom } from "@treadle/learning";
import { z } from "zod";
import { policyGradient as loss } from "../policy-gradient.ts";
import { type BenchRow, medianMs, row, timed } from "../row.ts";
import { modelInPython, PythonProcess } from "./python-process.ts";
import { medianRound, type Rates } from "./turns.ts";

const Answer = z.looseObject({ seconds: z.number() });

const model = TransformerConfig.parse({ vocabSize: 4096, layers: 4, width: 256, heads: 4, contextLength: 128 });
const numRows = 24;
const name = `4 layers of 256, ${numRows} rows of 32 to 128 tokens`;
const rounds = 5;
const ways = ["packed", "padded"] as const;

const step = { learningRate: 1e-6, scale: 1e-4, maxGradNorm: 1 };

/** Steps of the trainer, each a pass with its gradient and an optimiser step, beside those of plain PyTorch; and what of one is gRPC's. */
export async function* benchTorchTraining(): AsyncIterable<BenchRow> {
  const random = createRandom("torch-training");
  const lengths = Array.from({ length: numRows }, () => 32 + random.integer(97));
  const batch = batchOf(lengths);
  const tokens = lengths.reduce((sum, length) => sum + length, 0);
  await using plain = new PythonProcess("alone.py");
  plain.write(JSON.stringify({ model: modelInPython(model), lengths }));
  const engine = await TorchEngine.create(model, { kind: "torch" });
  try {
    await plain.line();
    const seconds = { served: [] as number[], packed: [] as number[], padded: [] as number[] };
    for (let round = 0; round <= rounds; round++) {
      const ms = await timed(async () => {
        await engine.forwardBackward(batch, loss);
        await engine.optimStep(step);
      });
      if (round > 0) seconds.served.push(ms / 1000);
      for (const way of ways) {
        plain.write(way);
        const answer = readMessage(Answer, JSON.parse(await plain.line()));
        if (round > 0) seconds[way].push(answer.seconds); // the first takes memory and chooses kernels
      }
    }
    const fastest = ways.reduce((best, way) => (median(seconds[way]) < median(seconds[best]) ? way : best));
    const rates = seconds.served.map(
      (served, at): Rates => ({ value: tokens / served, baseline: tokens / (seconds[fastest][at] as number) }),
    );
    yield row({
      name: `training on PyTorch, ${name}`,
      ...medianRound(rates),
      unit: "tokens/s",
      against:
        "a plain loop in Python, without gRPC: rows packed as the engine packs them, or padded, whichever is faster",
      ratioAtLeast: 0.97,
      notMeasured: "devices other than the processor, several ranks, sharded models, compiled blocks",
    });
    // Nothing has weight: what remains of the pass is its call. Of the optimiser's step two calls remain, which bring nothing.
    const empty = { ...batch, weights: new Float32Array(batch.weights.length) };
    const passMs = await medianMs(20, () => engine.forwardBackward(empty, loss));
    const callMs = await medianMs(20, () => engine.pause());
    engine.resume();
    yield row({
      name: `gRPC's share of a step of training, ${name}`,
      value: (passMs + 2 * callMs) / (10 * median(seconds.served)),
      unit: "%",
      baseline: 1,
      against: "a share of 1 %",
      ratioAtMost: 1,
      notMeasured: "steps of other lengths (it is so many ms, and so many of each MiB), engines on other hosts",
    });
  } finally {
    await engine.close();
  }
}

/** All but the first token of each row has weight. */
function batchOf(lengths: readonly number[]): TrainBatch {
  const columns = model.contextLength;
  const size = lengths.length * columns;
  const fill = (value: (at: number) => number) => Float32Array.from({ length: size }, (_, at) => value(at));
  const counts = (at: number) => at % columns > 0 && at % columns < (lengths[Math.floor(at / columns)] as number);
  return {
    rows: lengths.length,
    columns,
    tokens: Int32Array.from({ length: size }, (_, at) => Math.imul(at + 1, 0x9e37) % model.vocabSize),
    weights: fill((at) => (counts(at) ? 1 : 0)),
    advantages: fill(Math.sin),
    oldLogprobs: fill(() => -8),
  };
}
