/**
 * Writes what an engine on PyTorch has trained, of a checkpoint, as a Hugging Face folder.
 *
 * XP1 a folder of that name is whole: it is written aside, flushed to the disk, and then renamed. One that is there is refused.
 * XP2 nothing is written unless the checkpoint is whole, and of the model that the folder says it is of.
 * XP3 a few pieces of a tensor are in memory at once, and of an adapter one matrix, however large the model is.
 */
import { randomBytes } from "node:crypto";
import { copyFile, lstat, mkdir, open, readdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { refuse } from "../checkpoint.ts";
import { type TransformerConfig, valueHeadName } from "../embedded/transformer-config.ts";
import { type ParameterShape, sizeOf } from "../parameters.ts";
import { adapterConfig, adapterFile, makeFolder, sync } from "../server/model-folder.ts";
import { bytesOf, type FloatType, writeTensors } from "../server/safetensors.ts";
import type { TorchConfig } from "../torch/torch-config.ts";
import { weightsFile } from "../torch/weight-files.ts";
import { checkBelow, isOfAdapter, type Lora, mergedSource, peftConfig, peftName } from "./adapter.ts";
import { BaseFolder, configFile, indexFile } from "./base-folder.ts";
import { CheckpointFile } from "./checkpoint-file.ts";
import { qwen3Config, qwen3Shapes } from "./drawn-qwen3.ts";
import { ShardFiles } from "./shard-files.ts";
import { piecesOfTensor, type TensorSource } from "./tensor-source.ts";
import type { TrainedWeights } from "./trained-weights.ts";

/** As transformers does by default. */
const maxShardBytes = 5e9;
/** Not beside the model's files, of which servers read each one. */
const valueHeadFolder = "value_head";
const tokenizerFiles = [
  ...["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"],
  ...["vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"],
];
const generationFile = "generation_config.json";

export type ExportOptions = {
  /** the file that an engine on PyTorch has saved, or those of its processes */
  readonly checkpoint: string | readonly string[];
  /** what the engine was made of */
  readonly model: TransformerConfig;
  readonly engine: TorchConfig;
  /** the folder to write */
  readonly to: string;
  /** of the numbers that are written; default: `engine.dtype`, in which the model has sampled */
  readonly dtype?: TorchConfig["dtype"] | undefined;
  /** the adapter alone, as PEFT lays it out, in place of whole weights with the adapter merged in */
  readonly adapter?: boolean | undefined;
  /** where the model of `engine.path` is now; default: there */
  readonly base?: string | undefined;
  /** folder with the files of a tokenizer; default: the model's own */
  readonly tokenizer?: string | undefined;
  /** most bytes of one file, but for a tensor that is larger; default: 5 GB, as transformers has it */
  readonly maxShardBytes?: number | undefined;
};

export type ExportedModel = {
  /** what the folder has, sorted; those of a value head with their folder */
  readonly files: readonly string[];
  readonly numParameters: number;
  readonly policyVersion: number;
  readonly dtype: TorchConfig["dtype"];
};

type Written = { readonly dtype: FloatType; readonly maxShardBytes: number };

/**
 * Throws `checkpoint.corrupt`, and `config.invalid` for what cannot be exported or is of another model, and for a folder that is
 * there; `disk.full` where the disk is.
 */
export async function exportModel(options: ExportOptions): Promise<ExportedModel> {
  const { engine, to, dtype = engine.dtype } = options;
  const folder = resolve(to);
  await refuseExisting(folder);
  const checkpoint = await openCheckpoint(options.checkpoint);
  let base: BaseFolder | undefined;
  try {
    const { layout, policyVersion } = checkpoint.header;
    if (layout.some(({ name }) => name === "embedding.token")) throw ofEmbedded();
    const isAdapter = layout.some(({ name }) => isOfAdapter(name));
    if (isAdapter !== (engine.lora !== undefined)) refuse("engine.lora says otherwise than the checkpoint");
    if (options.adapter && !isAdapter)
      throw new TreadleError(
        "config.invalid",
        "no adapter was trained, but the model's own weights (engine.lora is not set); export them without --adapter",
      );
    const path = options.base ?? engine.path;
    if (path !== undefined && !options.adapter)
      base = await BaseFolder.open(path, { randomWeights: engine.randomWeights && options.base === undefined });
    const written: Written = { dtype: typeOf(dtype), maxShardBytes: options.maxShardBytes ?? maxShardBytes };
    const sources = options.adapter
      ? adapterSources(checkpoint)
      : engine.lora
        ? await mergedSources(checkpoint, engine.lora, engine.randomWeights ? undefined : base, {
            trained: typeOf(engine.dtype),
            written: written.dtype,
          })
        : wholeSources(checkpoint, base, options.model);
    const heads = layout.filter(({ name }) => name === valueHeadName).map((each) => sourceOf(checkpoint, each));
    const files = await makeFolder(
      folder,
      async (aside) => {
        const made: string[] = [];
        const write = async (name: string, value: object) => {
          await writeJson(join(aside, name), value);
          made.push(name);
        };
        if (options.adapter) {
          await writeTensors(join(aside, adapterFile), inPieces(sources, written.dtype));
          made.push(adapterFile);
          await write(adapterConfig, peftConfig(engine.lora as Lora, engine.randomWeights ? undefined : engine.path));
        } else {
          made.push(...(await writeShards(aside, sources, written)));
          const names = sources.map(({ name }) => name);
          await write(configFile, withType(base ? base.configFor(names) : qwen3Config(options.model), dtype));
          made.push(...(await copyFiles(base?.path, options.tokenizer, aside)));
        }
        if (heads.length > 0) {
          await mkdir(join(aside, valueHeadFolder), { mode: 0o700 });
          await writeTensors(join(aside, valueHeadFolder, weightsFile), inPieces(heads, written.dtype));
          await sync(join(aside, valueHeadFolder));
          made.push(`${valueHeadFolder}/${weightsFile}`);
        }
        await refuseExisting(folder);
        return made.sort();
      },
      `${folder}.${randomBytes(4).toString("hex")}.partial`,
    );
    return { files, numParameters: sources.reduce((sum, each) => sum + sizeOf(each), 0), policyVersion, dtype };
  } catch (error) {
    throw onFullDisk(error, folder);
  } finally {
    await checkpoint.close();
    await base?.close();
  }
}

const typeOf = (dtype: TorchConfig["dtype"]): FloatType => (dtype === "bfloat16" ? "BF16" : "F32");

/** XP1. */
async function refuseExisting(folder: string): Promise<void> {
  const found = await lstat(folder).catch(() => undefined);
  if (found)
    throw new TreadleError(
      "config.invalid",
      `'${folder}' is there already; give a folder that is not, or move it away`,
    );
}

export function ofEmbedded(): TreadleError {
  return new TreadleError(
    "config.invalid",
    "the model is one of the embedded engine's own, which no Hugging Face architecture is, so no other tool could load it; train one that can be exported with '--set engine.kind=torch'",
  );
}

async function openCheckpoint(at: ExportOptions["checkpoint"]): Promise<TrainedWeights> {
  try {
    return await (typeof at === "string" ? CheckpointFile.open(at) : ShardFiles.open(at));
  } catch (cause) {
    if (cause instanceof TreadleError) throw cause;
    const message = `'${[at].flat().join("', '")}' cannot be read: ${(cause as Error).message}`;
    throw new TreadleError("checkpoint.missing", message, { cause });
  }
}

const sourceOf = (checkpoint: TrainedWeights, { name, shape }: ParameterShape): TensorSource => ({
  name,
  shape,
  read: (start, count) => checkpoint.read(name, start, count),
});

/** XP2. */
function wholeSources(
  checkpoint: TrainedWeights,
  base: BaseFolder | undefined,
  model: TransformerConfig,
): TensorSource[] {
  const layout = checkpoint.header.layout.filter(({ name }) => name !== valueHeadName);
  const all = layout.map((each) => sourceOf(checkpoint, each));
  if (base && !base.hasWeights) return all; // no file says which tensors the model has
  const of = base ? `'${base.path}'` : "the Qwen3 of the sizes in model";
  const known = base ? base.names.map((name) => ({ name, shape: base.infoOf(name)!.shape })) : qwen3Shapes(model);
  const expected = new Map(known.map(({ name, shape }) => [name, shape]));
  for (const { name, shape } of layout) {
    const found = expected.get(name) ?? base?.infoOf(name)?.shape;
    if (found === undefined) throw ofAnother(of, `has no '${name}', which the checkpoint has`);
    if (found.join() !== shape.join())
      throw ofAnother(of, `has '${name}' of shape '${found.join("x")}' where the checkpoint has '${shape.join("x")}'`);
  }
  const names = new Set(layout.map(({ name }) => name));
  for (const name of expected.keys())
    if (!names.has(name)) throw ofAnother(of, `has '${name}', which the checkpoint lacks`);
  return all;
}

function ofAnother(of: string, what: string): TreadleError {
  return new TreadleError(
    "config.invalid",
    `the checkpoint is of another model than ${of}, which ${what}; say with --base where the model is that was trained. Models whose files have other tensors than PyTorch's module has parameters are not exported`,
  );
}

const adapterSources = (checkpoint: TrainedWeights): TensorSource[] =>
  checkpoint.header.layout
    .filter(({ name }) => isOfAdapter(name))
    .map((each) => ({ ...sourceOf(checkpoint, each), name: peftName(each.name) }));

/** XP2, LA2, LA3. */
async function mergedSources(
  checkpoint: TrainedWeights,
  lora: Lora,
  base: BaseFolder | undefined,
  { trained, written }: { readonly trained: FloatType; readonly written: FloatType },
): Promise<TensorSource[]> {
  const { base: digest, below } = checkpoint.header;
  const remedy = "export the adapter alone with --adapter";
  if (base === undefined)
    throw new TreadleError(
      "config.invalid",
      `the weights below the adapter were drawn by PyTorch, and no file has them; ${remedy}`,
    );
  if (digest === undefined || below === undefined)
    throw new TreadleError(
      "config.invalid",
      `the checkpoint does not say which weights are below its adapter, as those of earlier versions; ${remedy}, or make another checkpoint with 'treadle resume'`,
    );
  for (const name of below)
    if (!base.infoOf(name)) throw ofAnother(`'${base.path}'`, `has no '${name}', which is below the adapter`);
  const names = new Set(below);
  for (const name of base.names)
    if (!names.has(name)) throw ofAnother(`'${base.path}'`, `has '${name}', which is not below the adapter`);
  await checkBelow(below, digest, { lora, dtype: trained, base });
  return Promise.all(below.map((name) => mergedSource(name, checkpoint, { lora, trained, written, base })));
}

const inPieces = (sources: readonly TensorSource[], dtype: FloatType) =>
  sources.map((source) => ({ name: source.name, shape: source.shape, dtype, pieces: piecesOfTensor(source) }));

/** In one file, or in several with an index, as transformers reads them; returns their names. */
async function writeShards(
  folder: string,
  sources: readonly TensorSource[],
  { dtype, maxShardBytes }: Written,
): Promise<string[]> {
  const shards = shardsOf(sources, dtype, maxShardBytes);
  if (shards.length === 1) {
    await writeTensors(join(folder, weightsFile), inPieces(sources, dtype));
    return [weightsFile];
  }
  const number = (index: number) => String(index).padStart(5, "0");
  const map: [string, string][] = [];
  const names: string[] = [];
  for (const [index, shard] of shards.entries()) {
    const name = `model-${number(index + 1)}-of-${number(shards.length)}.safetensors`;
    await writeTensors(join(folder, name), inPieces(shard, dtype));
    names.push(name);
    map.push(...shard.map((each): [string, string] => [each.name, name]));
  }
  const numbers = sources.reduce((sum, each) => sum + sizeOf(each), 0);
  const metadata = { total_parameters: numbers, total_size: numbers * bytesOf[dtype] };
  await writeJson(join(folder, indexFile), { metadata, weight_map: Object.fromEntries(map.sort()) });
  return [...names, indexFile];
}

/** One after another, each as full as it may be. */
export function shardsOf<T extends ParameterShape>(tensors: readonly T[], dtype: FloatType, mostBytes: number): T[][] {
  const shards: T[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const tensor of tensors) {
    const own = sizeOf(tensor) * bytesOf[dtype];
    if (bytes + own > mostBytes) {
      shards.push([]);
      bytes = 0;
    }
    shards.at(-1)!.push(tensor);
    bytes += own;
  }
  return shards;
}

/** Tools of other versions read the type under its earlier name. */
function withType(config: Record<string, unknown>, dtype: TorchConfig["dtype"]): object {
  return { ...config, dtype, ...("torch_dtype" in config ? { torch_dtype: dtype } : {}) };
}

/** Of the model how it generates and its tokenizer; `tokenizer` names another folder for that. */
async function copyFiles(model: string | undefined, tokenizer: string | undefined, to: string): Promise<string[]> {
  const copied: string[] = [];
  const copy = async (from: string | undefined, wanted: readonly string[]) => {
    const there = from === undefined ? [] : await readdir(from);
    for (const name of there.filter((each) => wanted.includes(each))) {
      await copyFile(join(from as string, name), join(to, name));
      await sync(join(to, name));
      copied.push(name);
    }
  };
  await copy(model, [generationFile]);
  await copy(tokenizer ?? model, tokenizerFiles);
  return copied;
}

async function writeJson(path: string, value: object): Promise<void> {
  await using file = await open(path, "wx", 0o600);
  await file.writeFile(`${JSON.stringify(value, null, 2)}\n`);
  await file.sync();
}

function onFullDisk(error: unknown, folder: string): unknown {
  const { code } = error as NodeJS.ErrnoException;
  if (code !== "ENOSPC" && code !== "EDQUOT") return error;
  return new TreadleError("disk.full", `no space left to write '${folder}'; free some, or name a folder elsewhere`, {
    cause: error,
  });
}
