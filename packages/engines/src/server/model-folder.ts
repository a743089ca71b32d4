import { createHash } from "node:crypto";
import { copyFile, mkdir, open, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { TreadleError, type Weights, type WeightTicket } from "@treadle/contracts";
import { z } from "zod";
import { valueHeadName } from "../embedded/transformer-config.ts";
import { checkWeights, type ParameterShape } from "../parameters.ts";
import { linkPublished } from "../torch/weight-files.ts";
import { checkTicket, digestOf } from "../weight-ticket.ts";
import { readTensorInfos, type TensorInfo, writeTensors } from "./safetensors.ts";

/** Equal numbers have equal ones that were made in one way; of those made in two ways nobody knows. */
export type WeightsDigest = { readonly by: "bytes" | "ticket"; readonly value: string };

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
    checkWeights(this.#layoutOf(weights.policyVersion, weights.parameters), weights);
  }

  /** The same of weights that a ticket names. */
  checkTicket(ticket: WeightTicket): void {
    checkTicket(this.#layoutOf(ticket.policyVersion, ticket.tensors), ticket);
  }

  /** Whether a server could load a file of these tensors. A value head is not of its model. */
  hasAll(tensors: readonly { readonly name: string }[]): boolean {
    return tensors.every(({ name }) => this.#layout.has(name) || this.#isDerived(name));
  }

  #layoutOf(policyVersion: number, parameters: readonly ParameterShape[]): ParameterShape[] {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "engine.weights-mismatch",
        `weights of version '${policyVersion}' refused: ${what}; train the model in engine.model '${this.path}'`,
        { details: { policyVersion } },
      );
    };
    const given = new Set(parameters.map(({ name }) => name));
    for (const name of this.#layout.keys())
      if (!given.has(name) && !this.#isDerived(name)) refuse(`they lack '${name}', which the model has`);
    return parameters.map(({ name, shape }) => {
      const known = this.#layout.get(name);
      if (known) return { name, shape: known.shape };
      if (name === valueHeadName || this.#isDerived(name)) return { name, shape };
      return refuse(`the model has no '${name}'`);
    });
  }

  /**
   * Writes checked weights as a folder: aside, flushed to the disk, and then renamed, so that a folder of that name is
   * whole. Each tensor has the type that it has in the model's own folder, but F16 becomes F32.
   */
  async write(weights: Weights, folder: string): Promise<WeightsDigest> {
    const hash = createHash("sha256");
    const tensors = weights.parameters
      .filter(({ name }) => this.#layout.has(name))
      .map(
        (tensor) => ({ ...tensor, dtype: this.#layout.get(tensor.name)?.dtype === "BF16" ? "BF16" : "F32" }) as const,
      );
    await this.#makeFolder(folder, (path) => writeTensors(path, tensors, (bytes) => hash.update(bytes)));
    return { by: "bytes", value: hash.digest("hex") };
  }

  /**
   * The same of a file that a checked ticket names, in the types that its tensors have there. Not a byte of it comes through this
   * process, nor is it flushed. No digest where the server rounds: other numbers may be the same to it. Throws as `linkPublished`.
   */
  async link(ticket: WeightTicket, folder: string): Promise<WeightsDigest | undefined> {
    await this.#makeFolder(folder, (path) => linkPublished(ticket, path));
    const isRounded = ticket.tensors.some(({ name, dtype }) => (this.#layout.get(name)?.dtype ?? dtype) !== dtype);
    return isRounded ? undefined : { by: "ticket", value: digestOf(ticket) };
  }

  async #makeFolder(folder: string, writeModel: (path: string) => Promise<void>): Promise<void> {
    const aside = `${folder}.partial`;
    await rm(aside, { recursive: true, force: true });
    await mkdir(aside, { recursive: true, mode: 0o700 });
    await copyFile(join(this.path, "config.json"), join(aside, "config.json"));
    await writeModel(join(aside, "model.safetensors"));
    await sync(aside);
    await rename(aside, folder);
    await sync(dirname(folder));
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
