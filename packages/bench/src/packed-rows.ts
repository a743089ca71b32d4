import type { TrainBatch } from "@treadle/contracts";
import { TransformerEngine } from "@treadle/engines";
import { arithmeticAlphabet, createChainTask, createCharacterTokenizer, firstDone } from "@treadle/learning";
import { policyGradient as loss } from "./policy-gradient.ts";
import { type BenchRow, row } from "./row.ts";

/** As workflows/tool-agent/long-tailed.yaml has them. */
const chains = { kind: "chains", operators: ["+", "-"], minOperand: 1, maxOperand: 9, maxOperations: 5, tail: 1.1 };
const model = { vocabSize: 20, layers: 2, width: 64, heads: 4, contextLength: 152 };
const numRows = 128;

/** Tokens a second of processor time on rows of long-tailed lengths, beside the same rows padded to the context. */
export async function* benchPackedRows(rounds: number): AsyncIterable<BenchRow> {
  const engine = await TransformerEngine.create(model);
  const lengths = lengthsOfEpisodes();
  const packed = batchOf(lengths);
  // An entry that counts, at the end of each row, has the engine read all of it.
  const padded = { ...packed, weights: packed.weights.map((weight, at) => (isLast(at) ? 1e-9 : weight)) };
  const work = {
    training: (batch: TrainBatch) => engine.forwardBackward(batch, loss),
    scoring: (batch: TrainBatch) => engine.logprobs(batch),
  };
  const tokens = lengths.reduce((sum, length) => sum + length, 0);
  for (const [operation, compute] of Object.entries(work)) {
    const least = { packed: Number.POSITIVE_INFINITY, padded: Number.POSITIVE_INFINITY };
    for (let round = 0; round < rounds; round++) {
      least.packed = Math.min(least.packed, await processorSeconds(() => compute(packed)));
      least.padded = Math.min(least.padded, await processorSeconds(() => compute(padded)));
    }
    yield row({
      name: `${operation}, 2 layers of 64, ${numRows} episodes of ${Math.min(...lengths)} to ${Math.max(...lengths)} tokens, packed`,
      value: tokens / least.packed,
      unit: "tokens/s",
      baseline: tokens / least.padded,
      against: `the same rows padded to the context of ${model.contextLength}`,
      ratioAtLeast: 1.5,
      notMeasured: "processor time, so no waiting",
    });
  }
  await engine.close();
}

const isLast = (at: number): boolean => at % model.contextLength === model.contextLength - 1;

async function processorSeconds(act: () => Promise<unknown>): Promise<number> {
  const before = process.cpuUsage();
  await act();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}

/** A call for each operation of a chain, `<3+5==>8===|`, then the answer and the stop token. */
function lengthsOfEpisodes(): number[] {
  const tokenizer = createCharacterTokenizer(arithmeticAlphabet);
  return createChainTask(chains)
    .problemsAt(0, numRows)
    .map(({ tokens, answer = "" }) => {
      let length = tokens.length + answer.length + 1;
      let left = firstDone(tokenizer.decode(tokens));
      for (; left !== undefined; left = firstDone(left)) length += 2 * tokens.length + 3;
      return length;
    });
}

/** Rows as wide as the context; what is behind a row's length does not count. */
function batchOf(lengths: readonly number[]): TrainBatch {
  const columns = model.contextLength;
  const fill = (value: (at: number) => number) =>
    Float32Array.from({ length: lengths.length * columns }, (_, at) => value(at));
  const counts = (at: number) => at % columns > 0 && at % columns < (lengths[Math.floor(at / columns)] as number);
  return {
    rows: lengths.length,
    columns,
    tokens: Int32Array.from(
      { length: lengths.length * columns },
      (_, at) => Math.imul(at + 1, 0x9e37) % model.vocabSize,
    ),
    weights: fill((at) => (counts(at) ? 1 : 0)),
    advantages: fill(Math.sin),
    oldLogprobs: fill((at) => Math.cos(at) / 10 - 3),
  };
}
