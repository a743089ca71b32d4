import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { headName, isDerived } from "../server/model-folder.ts";
import { TensorFile, type TensorInfo } from "../server/safetensors.ts";
import { weightsFile } from "../torch/weight-files.ts";

export const indexFile = "model.safetensors.index.json";
export const configFile = "config.json";

const Index = z.object({ weight_map: z.record(z.string(), z.string()) });
const Config = z.looseObject({ tie_word_embeddings: z.boolean().optional() });

/** The folder of the Hugging Face model that was trained. Whoever opens it closes it. */
export class BaseFolder {
  readonly path: string;
  readonly config: Readonly<Record<string, unknown>>;
  readonly #isTied: boolean;
  readonly #files: readonly TensorFile[];
  readonly #fileOf: ReadonlyMap<string, TensorFile>;

  private constructor(path: string, config: z.infer<typeof Config>, files: readonly TensorFile[]) {
    this.path = path;
    this.config = config;
    this.#isTied = config.tie_word_embeddings ?? false;
    this.#files = files;
    this.#fileOf = new Map(files.flatMap((file) => [...file.tensors.keys()].map((name) => [name, file] as const)));
  }

  /**
   * Throws `config.invalid` for a folder without a configuration and, unless only that was read of it (`randomWeights`), whole
   * weights in safetensors.
   */
  static async open(path: string, { randomWeights = false } = {}): Promise<BaseFolder> {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "config.invalid",
        `the model that was trained is in '${path}', which ${what}; say with --base where its folder is now`,
      );
    };
    const names = await readdir(path).catch(() => refuse("cannot be read"));
    const config = Config.safeParse(await readJson(join(path, configFile)));
    if (!config.success) return refuse(`has no ${configFile} that can be read`);
    if (randomWeights) return new BaseFolder(path, config.data, []);
    const shards = await shardsOf(path, names);
    if (shards.length === 0) refuse("has no weights in safetensors");
    const files: TensorFile[] = [];
    try {
      for (const shard of shards) files.push(await TensorFile.open(join(path, shard)));
    } catch (error) {
      await Promise.all(files.map((file) => file.close()));
      if (error instanceof TreadleError) throw error;
      return refuse(`cannot be read: ${(error as Error).message}`);
    }
    return new BaseFolder(path, config.data, files);
  }

  infoOf(name: string): TensorInfo | undefined {
    return this.#fileOf.get(name)?.tensors.get(name);
  }

  get hasWeights(): boolean {
    return this.#files.length > 0;
  }

  /** Its tensors that a model of it has as parameters, which others are made of. */
  get names(): string[] {
    return [...this.#fileOf.keys()].filter((name) => !isDerived(name, this.#isTied));
  }

  read(name: string, start: number, count: number): Promise<Float32Array> {
    return this.#fileOf.get(name)!.read(name, start, count);
  }

  /** Its configuration for weights of these names: with an output embedding of their own, they are not tied. */
  configFor(names: readonly string[]): Record<string, unknown> {
    return names.includes(headName) ? { ...this.config, tie_word_embeddings: false } : { ...this.config };
  }

  async close(): Promise<void> {
    await Promise.all(this.#files.map((file) => file.close()));
  }
}

/** The files that transformers reads: the one, or those that the index names. */
async function shardsOf(path: string, names: readonly string[]): Promise<string[]> {
  if (names.includes(weightsFile)) return [weightsFile];
  const index = Index.safeParse(await readJson(join(path, indexFile)));
  if (index.success) return [...new Set(Object.values(index.data.weight_map))].sort();
  return names.filter((name) => name.endsWith(".safetensors")).sort();
}

async function readJson(path: string): Promise<unknown> {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return undefined;
  }
}
