import { createHash } from "node:crypto";
import { copyFile, mkdir, open, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { TreadleError, type Weights } from "@treadle/contracts";
import { z } from "zod";
import { valueHeadName } from "../embedded/transformer-config.ts";
import { checkWeights } from "../parameters.ts";
import { readTensorInfos, type TensorInfo, writeTensors } from "./safetensors.ts";

const tokenizerFiles = ["tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"];
const headName = "lm_head.weight";

const ModelConfig = z.object({
  vocab_size: z.int().positive(),
  max_position_embeddings: z.int().positive().optional(),
  architectures: z.array(z.string()).default([]),
  tie_word_embeddings: z.boolean().default(false),
});

/** The local folder of a Hugging Face model: what a server serves, and the form in which it gets new weights. */
export class ModelFolder {
  readonly path: string;
  readonly vocabSize: number;
  /** most tokens that the model reads, where its configuration says so */
  readonly contextLength: number | undefined;
  readonly architectures: readonly string[];
  readonly #layout: ReadonlyMap<string, TensorInfo>;
  readonly #isTied: boolean;

  private constructor(path: string, config: z.infer<typeof ModelConfig>, layout: ReadonlyMap<string, TensorInfo>) {
    this.path = path;
    this.vocabSize = config.vocab_size;
    this.contextLength = config.max_position_embeddings;
    this.architectures = config.architectures;
    this.#isTied = config.tie_word_embeddings;
    this.#layout = layout;
  }

  /** Throws `config.invalid` for a folder without configuration, tokenizer or whole weights in safetensors. */
  static async open(path: string): Promise<ModelFolder> {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "config.invalid",
        `engine.model '${path}' ${what}; give the local folder of a Hugging Face model, with config.json, a tokenizer and weights in safetensors`,
      );
    };
    const files = await readdir(path).catch(() => refuse("cannot be read"));
    if (!files.includes("config.json")) refuse("has no config.json");
    if (!tokenizerFiles.some((name) => files.includes(name))) refuse("has no tokenizer");
    const shards = files.filter((name) => name.endsWith(".safetensors")).sort();
    if (shards.length === 0) refuse("has no weights in safetensors");
    const config = ModelConfig.safeParse(await readJson(join(path, "config.json")));
    if (!config.success) return refuse(`has a config.json that cannot be used (${z.prettifyError(config.error)})`);
    const layout = new Map<string, TensorInfo>();
    for (const shard of shards)
      for (const [name, info] of await readTensorInfos(join(path, shard))) layout.set(name, info);
    return new ModelFolder(path, config.data, layout);
  }

  /** Throws `engine.weights-mismatch` unless they are whole, and of this model. */
  check(weights: Weights): void {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "engine.weights-mismatch",
        `weights of version '${weights.policyVersion}' refused: ${what}; train the model in engine.model '${this.path}'`,
        { details: { policyVersion: weights.policyVersion } },
      );
    };
    const given = new Set(weights.parameters.map(({ name }) => name));
    for (const name of this.#layout.keys())
      if (!given.has(name) && !this.#isDerived(name)) refuse(`they lack '${name}', which the model has`);
    const expected = weights.parameters.map(({ name, shape }) => {
      const known = this.#layout.get(name);
      if (known) return { name, shape: known.shape };
      if (name === valueHeadName || this.#isDerived(name)) return { name, shape };
      return refuse(`the model has no '${name}'`);
    });
    checkWeights(expected, weights);
  }

  /**
   * Writes checked weights as a folder: aside, flushed to the disk, and then renamed, so that a folder of that name is
   * whole. Each tensor has the type that it has in the model's own folder, but F16 becomes F32. Returns a digest of what
   * was written: equal numbers have equal ones.
   */
  async write(weights: Weights, folder: string): Promise<string> {
    const aside = `${folder}.partial`;
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true, mode: 0o700 });
    await copyFile(join(this.path, "config.json"), join(aside, "config.json"));
    const hash = createHash("sha256");
    const tensors = weights.parameters
      .filter(({ name }) => this.#layout.has(name))
      .map(
        (tensor) => ({ ...tensor, dtype: this.#layout.get(tensor.name)?.dtype === "BF16" ? "BF16" : "F32" }) as const,
      );
    await writeTensors(join(aside, "model.safetensors"), tensors, (bytes) => hash.update(bytes));
    await sync(aside);
    await rename(aside, folder);
    await sync(dirname(folder));
    return hash.digest("hex");
  }

  /** Made of others: nothing that a trainer hands out. */
  #isDerived(name: string): boolean {
    return (this.#isTied && name === headName) || name.endsWith("rotary_emb.inv_freq");
  }
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return undefined;
  }
}

/** A folder's entries are on the disk when this returns. */
async function sync(folder: string): Promise<void> {
  await using handle = await open(folder);
  await handle.sync();
}
