import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type Sampling, TreadleError, type Weights } from "@treadle/contracts";
import { z } from "zod";
import { sealWeights, sizeOf } from "../parameters.ts";
import { normal, uniform } from "../random.ts";
import { type FloatType, readTensors, type Tensor, writeTensors } from "../server/safetensors.ts";

export type TinyModelOptions = {
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly width?: number | undefined;
  readonly dtype?: FloatType | undefined;
  /** what the model takes for the end of a text, whatever is asked */
  readonly endToken?: number | undefined;
};

const defaultWidth = 6;
const names = {
  embedding: "model.embed_tokens.weight",
  recurrence: "model.layers.0.mlp.up_proj.weight",
  norm: "model.norm.weight",
  head: "lm_head.weight",
} as const;
export const tinyArchitecture = "TinyForCausalLM";

/** Random weights under the names that a Hugging Face model has. */
export function tinyWeights(options: TinyModelOptions, seed: number, policyVersion = 0): Weights {
  const { vocabSize, width = defaultWidth } = options;
  const shapes = [
    { name: names.embedding, shape: [vocabSize, width] },
    { name: names.recurrence, shape: [width, width] },
    { name: names.norm, shape: [width] },
    { name: names.head, shape: [vocabSize, width] },
  ];
  const parameters = shapes.map(({ name, shape }, index) => ({
    name,
    shape,
    data: Float32Array.from({ length: sizeOf({ shape }) }, (_, at) => normal(seed, index, at)),
  }));
  return sealWeights({ policyVersion, parameters });
}

/** Makes the folder of a Hugging Face model with those weights. */
export async function writeTinyModel(path: string, options: TinyModelOptions, weights: Weights): Promise<void> {
  const { vocabSize, contextLength, dtype = "F32", endToken } = options;
  await mkdir(path, { recursive: true });
  const config = {
    architectures: [tinyArchitecture],
    vocab_size: vocabSize,
    max_position_embeddings: contextLength,
    ...(endToken !== undefined && { eos_token_id: endToken }),
  };
  await writeFile(join(path, "config.json"), JSON.stringify(config));
  await writeFile(join(path, "tokenizer.json"), "{}");
  await writeTensors(
    join(path, "model.safetensors"),
    weights.parameters.map((tensor) => ({ ...tensor, dtype })),
  );
}

/** Hidden state after tokens, by what they and whoever asks are. */
type PrefixCache = Map<string, Float64Array>;

/** A recurrent network of a few numbers: every token depends on all before it, so that a stale prefix changes what follows. */
export class TinyModel {
  readonly #tensors = new Map<string, Tensor>();

  constructor(tensors: readonly Tensor[]) {
    for (const tensor of tensors) this.#tensors.set(tensor.name, tensor);
  }

  static async read(folder: string): Promise<TinyModel> {
    return new TinyModel(await tensorsOf(folder));
  }

  get tensors(): readonly Tensor[] {
    return [...this.#tensors.values()];
  }

  get vocabSize(): number {
    return this.#of(names.embedding).shape[0]!;
  }

  /** One tensor after another: what is refused leaves those before it changed, as in a real server. */
  async load(folder: string): Promise<void> {
    const tensors = await tensorsOf(folder);
    for (const tensor of tensors) {
      const known = this.#tensors.get(tensor.name);
      if (known?.shape.join() !== tensor.shape.join())
        throw new TreadleError(
          "engine.weights-mismatch",
          `size mismatch for ${tensor.name}: [${tensor.shape}] where the model has [${known?.shape ?? "none"}]`,
        );
      this.#tensors.set(tensor.name, tensor);
    }
    const given = new Set(tensors.map(({ name }) => name));
    for (const name of this.#tensors.keys())
      if (!given.has(name)) throw new TreadleError("engine.weights-mismatch", `the checkpoint lacks ${name}`);
  }

  /** Throws where the adapter is of another model. */
  adapted({ tensors, rank, scale }: TinyAdapter): TinyModel {
    const changed = new Map(this.#tensors);
    for (const { name, shape, data: second } of tensors) {
      if (!name.endsWith(".lora_B.weight")) continue;
      const layer = name.replace(/^base_model\.model\./, "").replace(/\.lora_B\.weight$/, "");
      const below = changed.get(`${layer}.weight`);
      const first = tensors.find((each) => each.name === name.replace("lora_B", "lora_A"));
      const [rows = 0, columns = 0] = below?.shape ?? [];
      if (!below || first?.shape.join() !== `${rank},${columns}` || shape.join() !== `${rows},${rank}`)
        throw new TreadleError("engine.weights-mismatch", `adapter '${name}' does not fit the model`);
      const data = below.data.map((weight, at) => {
        let change = 0;
        for (let k = 0; k < rank; k++)
          change += second[Math.floor(at / columns) * rank + k]! * first.data[k * columns + (at % columns)]!;
        return weight + scale * change;
      });
      changed.set(below.name, { ...below, data });
    }
    return new TinyModel([...changed.values()]);
  }

  /** Log-probabilities of what follows the tokens, at a temperature. */
  next(tokens: readonly number[], temperature: number, cache: PrefixCache = new Map(), salt = ""): Float64Array {
    const hidden = this.#hidden(tokens, cache, salt);
    const [norm, head] = [this.#of(names.norm).data, this.#of(names.head)];
    const [vocabSize, width] = head.shape as [number, number];
    const logits = new Float64Array(vocabSize);
    for (let token = 0; token < vocabSize; token++) {
      let logit = 0;
      for (let i = 0; i < width; i++) logit += head.data[token * width + i]! * norm[i]! * hidden[i]!;
      logits[token] = logit / temperature;
    }
    const highest = Math.max(...logits);
    const total = logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
    return logits.map((logit) => logit - highest - Math.log(total));
  }

  /** Of each token given those before it; entry 0 is 0. */
  score(tokens: readonly number[], temperature: number): Float32Array {
    return Float32Array.from(tokens, (token, at) =>
      at === 0 ? 0 : this.next(tokens.slice(0, at), temperature)[token]!,
    );
  }

  #hidden(tokens: readonly number[], cache: PrefixCache, salt: string): Float64Array {
    const key = `${salt}|${tokens.join()}`;
    const known = cache.get(key);
    if (known) return known;
    const { shape, data: embedding } = this.#of(names.embedding);
    const recurrence = this.#of(names.recurrence).data;
    const width = shape[1]!;
    const before = tokens.length > 1 ? this.#hidden(tokens.slice(0, -1), cache, salt) : new Float64Array(width);
    const last = tokens.at(-1)!;
    const hidden = before.map((_, i) => {
      let sum = embedding[last * width + i]!;
      for (let j = 0; j < width; j++) sum += 0.5 * recurrence[i * width + j]! * before[j]!;
      return Math.tanh(sum);
    });
    cache.set(key, hidden);
    return hidden;
  }

  #of(name: string): Tensor {
    return this.#tensors.get(name)!;
  }
}

/** The fields that loaders of PEFT's folders read; another kind of adapter would be computed otherwise. */
const AdapterConfig = z.looseObject({
  peft_type: z.literal("LORA"),
  r: z.int().positive(),
  lora_alpha: z.number().positive(),
  target_modules: z.array(z.string()).min(1),
  bias: z.literal("none"),
  use_rslora: z.literal(false),
  use_dora: z.literal(false),
  modules_to_save: z.null(),
});

/** Of an adapter's folder, as PEFT lays it out. */
export class TinyAdapter {
  readonly tensors: readonly Tensor[];
  readonly rank: number;
  readonly scale: number;

  private constructor(tensors: readonly Tensor[], rank: number, scale: number) {
    this.tensors = tensors;
    this.rank = rank;
    this.scale = scale;
  }

  static async read(folder: string): Promise<TinyAdapter> {
    const { r, lora_alpha } = AdapterConfig.parse(
      JSON.parse(await readFile(join(folder, "adapter_config.json"), "utf8")),
    );
    return new TinyAdapter(await readTensors(join(folder, "adapter_model.safetensors")), r, lora_alpha / r);
  }
}

/** A token of a distribution, by a seed and the number of the token. */
export function draw(logprobs: Float64Array, temperature: Sampling["temperature"], seed: number, at: number): number {
  const best = logprobs.indexOf(Math.max(...logprobs));
  if (temperature === 0) return best;
  let left = uniform(seed, at);
  for (let token = 0; token < logprobs.length; token++) {
    left -= Math.exp(logprobs[token]!);
    if (left < 0) return token;
  }
  return best;
}

async function tensorsOf(folder: string): Promise<Tensor[]> {
  const files = (await readdir(folder)).filter((name) => name.endsWith(".safetensors"));
  return (await Promise.all(files.map((name) => readTensors(join(folder, name))))).flat();
}
