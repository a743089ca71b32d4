/** Low-rank adapters outside of PyTorch: names, configuration and digest as `treadle_torch/adapters.py` has them (LA2 to LA4). */
import { TreadleError } from "@treadle/contracts";
import { checksumOf, inHex } from "../checksum.ts";
import type { ParameterShape } from "../parameters.ts";
import { type FloatType, inType, roundedTo } from "../server/safetensors.ts";
import type { TorchConfig } from "../torch/torch-config.ts";
import type { BaseFolder } from "./base-folder.ts";
import { piecesOfTensor, type TensorSource } from "./tensor-source.ts";
import type { TrainedWeights } from "./trained-weights.ts";

export type Lora = NonNullable<TorchConfig["lora"]>;

const ofAdapter = /^(.+)\.lora_([ab])$/;

export const isOfAdapter = (name: string): boolean => ofAdapter.test(name);

export const alphaOf = ({ rank, alpha = 2 * rank }: Lora): number => alpha;

/** As PEFT names it. */
export function peftName(name: string): string {
  const [, layer, kind] = ofAdapter.exec(name)!;
  return `base_model.model.${layer}.lora_${kind!.toUpperCase()}.weight`;
}

/** As PEFT reads it. `path`: of the model below. */
export const peftConfig = (lora: Lora, path: string | undefined) => ({
  peft_type: "LORA",
  task_type: "CAUSAL_LM",
  base_model_name_or_path: path ?? "",
  r: lora.rank,
  lora_alpha: alphaOf(lora),
  target_modules: [...lora.targets].sort(),
  lora_dropout: 0,
  bias: "none",
  fan_in_fan_out: false,
  use_rslora: false,
  use_dora: false,
  modules_to_save: null,
  inference_mode: true,
});

/** LA3. Throws `checkpoint.corrupt` unless what is in the folder, in the type that it was trained below, is what the checkpoint names. */
export async function checkBelow(
  below: readonly string[],
  expected: string,
  { lora, dtype, base }: { readonly lora: Lora; readonly dtype: FloatType; readonly base: BaseFolder },
): Promise<void> {
  const checksums: number[] = [];
  for (const name of below) {
    let checksum = 0;
    for await (const numbers of piecesOfTensor(sourceIn(base, name))) {
      const bits = inType(dtype, numbers);
      checksum = checksumOf(new Uint8Array(bits.buffer, bits.byteOffset, bits.byteLength), checksum);
    }
    checksums.push(checksum);
  }
  const text = `([${checksums.join(", ")}], ${inPython(alphaOf(lora) / lora.rank)})`;
  const found = inHex(checksumOf(new TextEncoder().encode(text)));
  if (found !== expected)
    throw new TreadleError(
      "checkpoint.corrupt",
      `the weights in '${base.path}', engine.dtype or engine.lora.alpha are not those below the adapter: their digest is '${found}' where the checkpoint has '${expected}'; say with --base where the model is that was trained, or export the adapter alone with --adapter`,
    );
}

export const sourceIn = (base: BaseFolder, name: string): TensorSource => ({
  name,
  shape: base.infoOf(name)!.shape,
  read: (start, count) => base.read(name, start, count),
});

/** LA2. What the folder has, in the type that it was trained below, with the adapter's change of it in the type that is written. */
export async function mergedSource(
  name: string,
  checkpoint: TrainedWeights,
  { lora, trained, written, base }: { lora: Lora; trained: FloatType; written: FloatType; base: BaseFolder },
): Promise<TensorSource> {
  const own = sourceIn(base, name);
  const read = async (start: number, count: number) => roundedTo(trained, await own.read(start, count));
  const layer = name.slice(0, -".weight".length);
  const [first, second] = [`${layer}.lora_a`, `${layer}.lora_b`];
  const [shapeA, shapeB] = [checkpoint.shapeOf(first), checkpoint.shapeOf(second)];
  if (!shapeA || !shapeB) return { ...own, read };
  const [, columns = 0] = own.shape;
  const partOf = async (part: ParameterShape) => roundedTo(written, await checkpoint.whole(part));
  const scale = alphaOf(lora) / lora.rank;
  let pair: Promise<[Float32Array, Float32Array]> | undefined;
  return {
    ...own,
    // Of one matrix after the other: only those of the one that is read are in memory.
    release: () => {
      pair = undefined;
    },
    read: async (start, count) => {
      const numbers = await read(start, count);
      pair ??= Promise.all([partOf({ name: first, shape: shapeA }), partOf({ name: second, shape: shapeB })]);
      const [a, b] = await pair;
      addProduct(numbers, start, { a, b, columns, rank: lora.rank, scale });
      return numbers;
    },
  };
}

type Product = {
  /** `[rank, columns]` */
  readonly a: Float32Array;
  /** `[rows, rank]` */
  readonly b: Float32Array;
  readonly columns: number;
  readonly rank: number;
  readonly scale: number;
};

/** Adds scale · B A, of which `into` has the part from `start` on. */
function addProduct(into: Float32Array, start: number, { a, b, columns, rank, scale }: Product): void {
  const sums = new Float64Array(columns);
  for (let at = 0; at < into.length; ) {
    const row = Math.floor((start + at) / columns);
    const from = (start + at) % columns;
    const to = Math.min(columns, from + into.length - at);
    sums.fill(0, from, to);
    for (let k = 0; k < rank; k++) {
      const factor = b[row * rank + k]!;
      const offset = k * columns;
      for (let column = from; column < to; column++) sums[column]! += factor * a[offset + column]!;
    }
    for (let column = from; column < to; column++) into[at + column - from]! += scale * sums[column]!;
    at += to - from;
  }
}

/** A float as Python prints it. */
export function inPython(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) {
    const [digits, exponent = ""] = value.toExponential().split("e");
    return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  }
  return Number.isInteger(value) ? `${value}.0` : String(value);
}
