import { createHash } from "node:crypto";
import { copyFile, mkdir, open, readdir, readFile, rename, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { TreadleError, type Weights, type WeightTicket } from "@treadle/contracts";
import { z } from "zod";
import { checksumOf, inHex } from "../checksum.ts";
import { valueHeadName } from "../embedded/transformer-config.ts";
import { checkWeights, type ParameterShape } from "../parameters.ts";
import { linkFile, linkPublished, weightsFile } from "../torch/weight-files.ts";
import { checkTicket, digestOf, refusedTicket } from "../weight-ticket.ts";
import { type Checksums, readTensorInfos, type TensorInfo, verifyTensors, writeTensors } from "./safetensors.ts";

/** Equal numbers have equal ones that were made in one way; of those made in two ways nobody knows. */
export type WeightsDigest = { readonly by: "bytes" | "ticket"; readonly value: string };

/** A folder that is there. `digest`: undefined where nobody knows what the server makes of it. */
export type MadeFolder = {
  readonly digest: WeightsDigest | undefined;
  /** throws as `verifyTensors`, unless the folder is as it was made */
  readonly verify: () => Promise<void>;
  readonly isAdapter?: boolean;
};

const tokenizerFiles = ["tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json"];
export const headName = "lm_head.weight";
/** As PEFT names them. */
export const adapterFile = "adapter_model.safetensors";
export const adapterConfig = "adapter_config.json";
const adapterName = /^base_model\.model\.(.+)\.lora_([AB])\.weight$/;

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
    const shards = shardsIn(files);
    if (shards.length === 0) refuse("has no weights in safetensors");
    const config = ModelConfig.safeParse(await readJson(join(path, "config.json")));
    if (!config.success) return refuse(`has a config.json that cannot be used (${z.prettifyError(config.error)})`);
    return new ModelFolder(path, config.data, await layoutOf(path, shards));
  }

  /** of most of its weights, as servers call it; what is written for them is in it, but for `float16` */
  get dtype(): "float32" | "float16" | "bfloat16" {
    const dtypes = [...this.#layout.values()].map(({ dtype }) => dtype);
    const isMostly = (name: string) => 2 * dtypes.filter((dtype) => dtype === name).length > dtypes.length;
    return isMostly("BF16") ? "bfloat16" : isMostly("F16") ? "float16" : "float32";
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
  async write(weights: Weights, folder: string): Promise<MadeFolder> {
    const tensors = weights.parameters
      .filter(({ name }) => this.#layout.has(name))
      .map(
        (tensor) => ({ ...tensor, dtype: this.#layout.get(tensor.name)?.dtype === "BF16" ? "BF16" : "F32" }) as const,
      );
    const checksums = await this.#makeFolder(folder, (aside) => writeTensors(join(aside, weightsFile), tensors));
    const value = createHash("sha256")
      .update(JSON.stringify([...checksums]))
      .digest("hex");
    return { digest: { by: "bytes", value }, verify: () => verifyTensors(join(folder, weightsFile), checksums) };
  }

  /**
   * The same of a file that a checked ticket names, in the types that its tensors have there. Not a byte of it is sent or written by
   * this process, nor is it flushed. No digest where the server rounds: other numbers may be the same to it. Throws as `linkPublished`.
   */
  async link(ticket: WeightTicket, folder: string): Promise<MadeFolder> {
    await this.#makeFolder(folder, (aside) => linkPublished(ticket, weightsFile, ticket.tensors, aside));
    const isRounded = ticket.tensors.some(({ name, dtype }) => (this.#layout.get(name)?.dtype ?? dtype) !== dtype);
    return {
      digest: isRounded ? undefined : { by: "ticket", value: digestOf(ticket) },
      verify: () => verifyTensors(join(folder, weightsFile), checksumsOf(ticket.tensors)),
    };
  }

  /** The adapter alone, as PEFT lays it out. Throws as `linkPublished`, also for one that is of another model. */
  async linkAdapter(ticket: WeightTicket, folder: string): Promise<MadeFolder> {
    const { adapter } = ticket;
    if (adapter === undefined) throw refusedTicket(ticket, "no adapter was published with them");
    this.#checkAdapter(ticket, adapter);
    await makeFolder(folder, async (aside) => {
      await linkFile(ticket, adapterConfig, join(aside, adapterConfig));
      await linkPublished(ticket, adapterFile, adapter.tensors, aside);
    });
    const verify = async () => {
      const path = join(folder, adapterConfig);
      const found = checksumOf(await readFile(path));
      if (found !== adapter.configCrc32)
        throw refusedTicket(
          ticket,
          `'${path}' has checksum '${inHex(found)}' where '${inHex(adapter.configCrc32)}' was written`,
        );
      await verifyTensors(join(folder, adapterFile), checksumsOf(adapter.tensors));
    };
    return { digest: undefined, verify, isAdapter: true };
  }

  #checkAdapter(ticket: WeightTicket, { rank, tensors }: NonNullable<WeightTicket["adapter"]>): void {
    for (const { name, shape } of tensors) {
      const [, layer, kind] = adapterName.exec(name) ?? [];
      const [rows = 0, columns = 0] = this.#layout.get(`${layer}.weight`)?.shape ?? [];
      const expected = kind === "A" ? [rank, columns] : [rows, rank];
      if (layer === undefined || shape.join() !== expected.join())
        throw refusedTicket(
          ticket,
          `'${name}' of the adapter has shape '${shape.join("x")}' where engine.model '${this.path}' takes ${columns === 0 ? "no such tensor" : `'${expected.join("x")}'`}`,
        );
    }
  }

  /** Throws `config.invalid` where a file of its own is not whole any more, or has other tensors than it had. */
  async verify(): Promise<void> {
    const now = await layoutOf(this.path, await shardsOf(this.path));
    if (JSON.stringify([...now]) === JSON.stringify([...this.#layout])) return;
    throw new TreadleError(
      "config.invalid",
      `the tensors in engine.model '${this.path}' are others than they were when it was opened; leave it as it is while it is served`,
    );
  }

  #makeFolder<T>(folder: string, fill: (aside: string) => Promise<T>): Promise<T> {
    return makeFolder(folder, async (aside) => {
      await copyFile(join(this.path, "config.json"), join(aside, "config.json"));
      return fill(aside);
    });
  }

  /** Made of others: nothing that a trainer hands out. */
  #isDerived(name: string): boolean {
    return isDerived(name, this.#isTied);
  }
}

export const isDerived = (name: string, isTied: boolean): boolean =>
  (isTied && name === headName) || name.endsWith("rotary_emb.inv_freq");

/** Filled aside, flushed to the disk, and then renamed, so that a folder of that name is whole. Who else makes it has another `aside`. */
export async function makeFolder<T>(
  folder: string,
  fill: (aside: string) => Promise<T>,
  aside = `${folder}.partial`,
): Promise<T> {
  await rm(aside, { recursive: true, force: true });
  try {
    await mkdir(aside, { recursive: true, mode: 0o700 });
    const made = await fill(aside);
    await sync(aside);
    await rename(aside, folder);
    await sync(dirname(folder));
    return made;
  } catch (error) {
    await rm(aside, { recursive: true, force: true });
    throw error;
  }
}

const checksumsOf = (tensors: WeightTicket["tensors"]): Checksums =>
  new Map(tensors.map(({ name, crc32 }) => [name, crc32]));

const shardsIn = (files: readonly string[]): string[] => files.filter((name) => name.endsWith(".safetensors")).sort();
const shardsOf = async (path: string): Promise<string[]> => shardsIn(await readdir(path));

async function layoutOf(path: string, shards: readonly string[]): Promise<Map<string, TensorInfo>> {
  const layout = new Map<string, TensorInfo>();
  for (const shard of shards)
    for (const [name, info] of await readTensorInfos(join(path, shard))) layout.set(name, info);
  return layout;
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return undefined;
  }
}

/** A folder's entries, or what a file has, are on the disk when this returns. */
export async function sync(folder: string): Promise<void> {
  await using handle = await open(folder);
  await handle.sync();
}
