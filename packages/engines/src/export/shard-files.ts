/** A checkpoint in files of several processes, as `treadle_torch/shard_files.py` writes them (SHC2, SHC4): its weights are read here and there. */
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { CheckpointHeader, refuse } from "../checkpoint.ts";
import { type ParameterShape, sizeOf } from "../parameters.ts";
import { TensorFile, verifyTensors } from "../server/safetensors.ts";
import { refuseInfinite, type TrainedWeights } from "./trained-weights.ts";

const kinds = ["weights", "first_moments", "second_moments"];
const inJson = <T extends z.ZodType>(type: T) =>
  z
    .string()
    .transform((text, context) => {
      try {
        return JSON.parse(text) as unknown;
      } catch {
        context.addIssue({ code: "custom", message: "is not JSON" });
        return z.NEVER;
      }
    })
    .pipe(type);

const { shape } = CheckpointHeader;
const Metadata = z.strictObject({
  format: z.literal("treadle-shard-1"),
  save: inJson(z.string()),
  policy_version: inJson(shape.policyVersion),
  steps: inJson(shape.steps),
  ranks: inJson(z.int().positive()),
  layout: inJson(shape.layout),
  base: inJson(z.string().nullable()),
  below: inJson(z.array(z.string()).nullable()),
  rank: inJson(z.int().nonnegative()),
  crc32: inJson(z.array(z.string())),
});
type Metadata = z.infer<typeof Metadata>;
type Shard = { readonly path: string; readonly file: TensorFile; readonly facts: Metadata };

export class ShardFiles implements TrainedWeights {
  readonly header: CheckpointHeader;
  readonly #shards: readonly Shard[];
  readonly #shapes: ReadonlyMap<string, readonly number[]>;

  private constructor(shards: readonly Shard[]) {
    const [{ facts }] = shards as readonly [Shard];
    const { policy_version: policyVersion, steps, layout, base, below } = facts;
    const adapted = base !== null && below !== null && { base, below };
    this.header = { format: 1, policyVersion, steps, layout, ...adapted };
    this.#shards = shards;
    this.#shapes = new Map(layout.map(({ name, shape: own }) => [name, own]));
  }

  /** Reads each to its end. Throws `checkpoint.corrupt` unless they are all of one checkpoint, and as they were written. */
  static async open(paths: readonly string[]): Promise<ShardFiles> {
    const shards: Shard[] = [];
    try {
      for (const path of paths) shards.push(await openShard(path));
      shards.sort((a, b) => a.facts.rank - b.facts.rank);
      const [first] = shards;
      if (!first) refuse("it has no files");
      for (const { path, facts } of shards)
        if (alike(facts) !== alike(first!.facts)) refuse(`'${path}' is of another checkpoint than '${first!.path}'`);
      const ranks = shards.map(({ facts }) => facts.rank);
      if (ranks.length !== first!.facts.ranks || ranks.some((rank, at) => rank !== at))
        refuse(`it was saved by '${first!.facts.ranks}' processes, and the files are those of '${ranks.join(", ")}'`);
      return new ShardFiles(shards);
    } catch (error) {
      await Promise.all(shards.map(({ file }) => file.close()));
      throw error;
    }
  }

  shapeOf(name: string): readonly number[] | undefined {
    return this.#shapes.get(name);
  }

  async read(name: string, at: number, count: number): Promise<Float32Array> {
    const own = this.#shapes.get(name)!;
    const numbers = new Float32Array(count);
    for (const { file, facts } of this.#shards) {
      const part = numbersOf(facts, own);
      const [from, to] = [Math.max(at, part.start), Math.min(at + count, part.end)];
      if (from < to)
        numbers.set(await file.read(`${kinds[0]}/${name}`, from - part.start, to - from).catch(refuseFile), from - at);
    }
    refuseInfinite(name, at, numbers);
    return numbers;
  }

  whole({ name, shape: own }: ParameterShape): Promise<Float32Array> {
    return this.read(name, 0, sizeOf({ shape: own }));
  }

  async close(): Promise<void> {
    await Promise.all(this.#shards.map(({ file }) => file.close()));
  }
}

async function openShard(path: string): Promise<Shard> {
  const file = await TensorFile.open(path).catch(refuseFile);
  try {
    const { data: facts, error } = Metadata.safeParse(file.metadata);
    if (!facts) return refuse(`'${path}' does not say what it is of: ${z.prettifyError(error)}`);
    const names = kinds.flatMap((kind) => facts.layout.map(({ name }) => `${kind}/${name}`));
    const shapes = facts.layout.map((each) => [rowsOf(facts, each.shape[0]!).length, ...each.shape.slice(1)].join());
    const found = names.map((name) => file.tensors.get(name));
    const bad = found.findIndex(
      (each, at) => each?.dtype !== "F32" || each.shape.join() !== shapes[at % shapes.length],
    );
    if (bad >= 0 || facts.crc32.length !== names.length)
      refuse(
        `'${path}' has '${names[Math.max(0, bad)]}' of another shape than its header says or not in 'F32', or lacks it`,
      );
    const checksums = new Map(names.map((name, at) => [name, Number.parseInt(facts.crc32[at]!, 16)]));
    await verifyTensors(path, checksums).catch(refuseFile);
    return { path, file, facts };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** A file that cannot be opened is its caller's to tell. */
function refuseFile(error: unknown): never {
  if (error instanceof TreadleError) refuse(error.message, error);
  throw error;
}

const alike = ({ rank: _, crc32: __, ...facts }: Metadata): string => JSON.stringify(facts);

function rowsOf({ rank, ranks }: Metadata, count: number): { readonly start: number; readonly length: number } {
  const each = Math.ceil(count / ranks);
  const start = Math.min(rank * each, count);
  return { start, length: Math.min(start + each, count) - start };
}

/** Of a parameter, all of whose numbers are counted, those that the file has. */
function numbersOf(facts: Metadata, own: readonly number[]): { readonly start: number; readonly end: number } {
  const { start, length } = rowsOf(facts, own[0]!);
  const row = sizeOf({ shape: own.slice(1) });
  return { start: start * row, end: (start + length) * row };
}
