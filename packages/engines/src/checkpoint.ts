import { createHash } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { Optimiser } from "./optimiser.ts";
import type { Parameters } from "./parameters.ts";
import { PieceReader, type Pieces, piecesOf } from "./pieces.ts";

/**
 * A checkpoint is: 4 bytes `TRDL`, 4 bytes length of the header (little-endian), the header as JSON, then parameters,
 * first and second moments as little-endian float32, then the SHA-256 of everything before it.
 */
const magic = 0x4c445254;
export const digestBytes = 32;
/** A header is a few names; a damaged length must not take the memory. */
const maxHeaderBytes = 64 * 2 ** 20;

export const CheckpointHeader = z.strictObject({
  format: z.literal(1),
  policyVersion: z.int().nonnegative(),
  steps: z.int().nonnegative(),
  layout: z.array(z.strictObject({ name: z.string(), shape: z.array(z.int().positive()) })),
  /** of what is below an adapter, which PyTorch's engine alone has: a digest, and the names that it is of, in its order */
  base: z.string().optional(),
  below: z.array(z.string()).optional(),
});
export type CheckpointHeader = z.infer<typeof CheckpointHeader>;

function describe(parameters: Parameters) {
  return parameters.layout.map(({ name, shape }) => ({ name, shape: [...shape] }));
}

/** The state at the time of the call, of which it is a copy. */
export function encodeCheckpoint(
  parameters: Parameters,
  optimiser: Optimiser,
  policyVersion: number,
): AsyncIterable<Uint8Array> {
  const header: CheckpointHeader = {
    format: 1,
    policyVersion,
    steps: optimiser.steps,
    layout: describe(parameters),
  };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const head = new Uint8Array(8 + json.length);
  const view = new DataView(head.buffer);
  view.setUint32(0, magic, true);
  view.setUint32(4, json.length, true);
  head.set(json, 8);
  return sealed([head, parameters.values.slice(), optimiser.first.slice(), optimiser.second.slice()]);
}

/** Summed up piece by piece: no hash takes 2 GiB at once. */
async function* sealed(parts: readonly ArrayBufferView[]): AsyncGenerator<Uint8Array> {
  const hash = createHash("sha256");
  for (const part of parts) {
    for (const piece of piecesOf(part)) {
      hash.update(piece);
      yield piece;
    }
  }
  yield hash.digest();
}

/**
 * Reads a checkpoint to its end, and resolves with what takes it over and returns its policy version. Throws
 * `checkpoint.corrupt`, also for numbers from which no step would lead back to finite weights. Until it is taken over,
 * nothing changes.
 */
export async function readCheckpoint(
  pieces: Pieces,
  parameters: Parameters,
  optimiser: Optimiser,
): Promise<() => number> {
  await using reader = new PieceReader(pieces);
  const hash = createHash("sha256");
  const fill = async (into: ArrayBufferView, otherwise: string): Promise<void> => {
    if ((await reader.fill(into)) < into.byteLength) refuse(otherwise);
    for (const piece of piecesOf(into)) hash.update(piece);
  };
  const { steps, policyVersion, layout } = await readHeader(fill);
  if (JSON.stringify(layout) !== JSON.stringify(describe(parameters))) refuse("it holds parameters of another model");
  const parts = [
    { name: "weights", into: parameters.values, least: Number.NEGATIVE_INFINITY },
    { name: "first moments", into: optimiser.first, least: Number.NEGATIVE_INFINITY },
    { name: "second moments", into: optimiser.second, least: 0 },
  ].map((part) => ({ ...part, from: new Float32Array(parameters.size) }));
  for (const { name, from } of parts) await fill(from, `it ends in its ${name}`);
  const digest = new Uint8Array(digestBytes);
  if ((await reader.fill(digest)) < digestBytes) refuse("it ends in its checksum");
  if ((await reader.fill(new Uint8Array(1))) > 0) refuse(`it has more than '${reader.numBytes - 1}' bytes`);
  if (!hash.digest().equals(digest)) refuse("its checksum does not match its content");
  for (const { name, from, least } of parts) {
    const at = from.findIndex((value) => !(Number.isFinite(value) && value >= least));
    if (at < 0) continue;
    const tensor = parameters.layout.findLast(({ offset }) => offset <= at)!;
    const allowed = least === 0 ? "finite numbers from 0 on" : "finite numbers";
    refuse(
      `its ${name} of '${tensor.name}' have '${from[at]}' at '${at - tensor.offset}' where ${allowed} are allowed`,
    );
  }
  return () => {
    for (const { from, into } of parts) into.set(from);
    optimiser.steps = steps;
    optimiser.zero();
    parameters.changes++;
    return policyVersion;
  };
}

/** What a checkpoint begins with. `fill` refuses, as it is told, where there are fewer bytes. */
export async function readHeader(
  fill: (into: ArrayBufferView, otherwise: string) => Promise<void>,
): Promise<CheckpointHeader> {
  const start = new DataView(new ArrayBuffer(8));
  const isNone = "it is no checkpoint of an engine";
  await fill(start, isNone);
  if (start.getUint32(0, true) !== magic) refuse(isNone);
  const headerBytes = start.getUint32(4, true);
  if (headerBytes > maxHeaderBytes) refuse(`its header has '${headerBytes}' bytes`);
  const text = new Uint8Array(headerBytes);
  await fill(text, "it ends in its header");
  try {
    return CheckpointHeader.parse(JSON.parse(new TextDecoder().decode(text)));
  } catch (cause) {
    return refuse("its header cannot be read", cause);
  }
}

export function refuse(what: string, cause?: unknown): never {
  throw new TreadleError(
    "checkpoint.corrupt",
    `checkpoint refused: ${what}; use an earlier one or the configuration it was written with`,
    { cause },
  );
}
