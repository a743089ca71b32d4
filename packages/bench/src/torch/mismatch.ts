import { mean } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { createRandom } from "@treadle/learning";
import { type BenchRow, row } from "../row.ts";

const model = { vocabSize: 4096, layers: 4, width: 256, heads: 4, contextLength: 96, slots: 32 };
const [numPrompts, promptTokens, maxTokens] = [64, 16, 48];

/** How far the sampler's log-probabilities are from those that the trainer computes of the same tokens. */
export async function benchTorchMismatch(): Promise<BenchRow> {
  const [sampler, trainer] = await Promise.all([start(), start()]);
  try {
    const random = createRandom("torch-mismatch");
    const token = () => random.integer(model.vocabSize);
    const prompts = Array.from({ length: numPrompts }, () => Int32Array.from({ length: promptTokens }, token));
    const completions = await sampler.generate(prompts, { maxTokens, temperature: 1, stopTokens: [], seed: 1 });
    const columns = promptTokens + maxTokens;
    const tokens = new Int32Array(numPrompts * columns);
    for (const [index, completion] of completions.entries())
      tokens.set([...(prompts[index] as Int32Array), ...completion.tokens], index * columns);
    const scored = await trainer.logprobs({ rows: numPrompts, columns, tokens });
    const k3 = completions.flatMap(({ logprobs }, index) =>
      Array.from(logprobs, (sampled, at) => {
        const logRatio = (scored[index * columns + promptTokens + at] as number) - sampled;
        return Math.expm1(logRatio) - logRatio;
      }),
    );
    return row({
      name: "sampler against trainer on PyTorch, 4 layers of 256 in float32, k3 of a token",
      value: mean(k3),
      unit: "nats",
      baseline: 1e-6,
      against: "a difference of 1e-6",
      ratioAtMost: 1,
      notMeasured: "devices other than the processor, bfloat16, weights that are trained",
    });
  } finally {
    await Promise.all([sampler.close(), trainer.close()]);
  }
}

const start = (): Promise<TorchEngine> => TorchEngine.create(model, { kind: "torch" });
