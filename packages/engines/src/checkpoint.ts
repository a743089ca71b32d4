import { createHash } from "node:crypto";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { Optimiser } from "./optimiser.ts";
import type { Parameters } from "./parameters.ts";

/**
 * A checkpoint is: 4 bytes `TRDL`, 4 bytes length of the header (little-endian), the header as JSON, then parameters,
 * first and second moments as little-endian float32, then the SHA-256 of everything before it.
 */
const magic = 0x4c445254;
const digestBytes = 32;

const Header = z.strictObject({
  format: z.literal(1),
  policyVersion: z.int().nonnegative(),
  steps: z.int().nonnegative(),
  layout: z.array(z.strictObject({ name: z.string(), shape: z.array(z.int().positive()) })),
});

function describe(parameters: Parameters) {
  return parameters.layout.map(({ name, shape }) => ({ name, shape: [...shape] }));
}

export function encodeCheckpoint(parameters: Parameters, optimiser: Optimiser, policyVersion: number): Uint8Array {
  const header: z.infer<typeof Header> = {
    format: 1,
    policyVersion,
    steps: optimiser.steps,
    layout: describe(parameters),
  };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const bytes = new Uint8Array(8 + json.length + 3 * 4 * parameters.size + digestBytes);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, magic, true);
  view.setUint32(4, json.length, true);
  bytes.set(json, 8);
  let offset = 8 + json.length;
  for (const part of [parameters.values, optimiser.first, optimiser.second]) {
    bytes.set(new Uint8Array(part.buffer, part.byteOffset, part.byteLength), offset);
    offset += part.byteLength;
  }
  bytes.set(createHash("sha256").update(bytes.subarray(0, offset)).digest(), offset);
  return bytes;
}

/**
 * All or nothing: throws `checkpoint.corrupt` before anything changed, also for numbers from which no step would lead back
 * to finite weights. Returns the policy version.
 */
export function decodeCheckpoint(bytes: Uint8Array, parameters: Parameters, optimiser: Optimiser): number {
  const refuse = (what: string, cause?: unknown): never => {
    throw new TreadleError(
      "checkpoint.corrupt",
      `checkpoint refused: ${what}; use an earlier one or the configuration it was written with`,
      {
        cause,
      },
    );
  };
  const body = bytes.subarray(0, Math.max(0, bytes.length - digestBytes));
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 8 + digestBytes || view.getUint32(0, true) !== magic) refuse("it is no checkpoint of an engine");
  const digest = createHash("sha256").update(body).digest();
  if (!digest.equals(bytes.subarray(body.length))) refuse("its checksum does not match its content");
  const headerBytes = view.getUint32(4, true);
  let header: z.infer<typeof Header>;
  try {
    header = Header.parse(JSON.parse(new TextDecoder().decode(body.subarray(8, 8 + headerBytes))));
  } catch (cause) {
    return refuse("its header cannot be read", cause);
  }
  if (JSON.stringify(header.layout) !== JSON.stringify(describe(parameters))) {
    refuse("it holds parameters of another model");
  }
  if (body.length !== 8 + headerBytes + 12 * parameters.size) refuse(`it has '${bytes.length}' bytes`);
  // A copy, because what comes before need not leave float32 where it may be read.
  const numbers = new Float32Array(new Uint8Array(body.subarray(8 + headerBytes)).buffer);
  const parts = [
    { name: "weights", into: parameters.values, least: Number.NEGATIVE_INFINITY },
    { name: "first moments", into: optimiser.first, least: Number.NEGATIVE_INFINITY },
    { name: "second moments", into: optimiser.second, least: 0 },
  ].map((part, index) => ({ ...part, from: numbers.subarray(index * parameters.size, (index + 1) * parameters.size) }));
  for (const { name, from, least } of parts) {
    const at = from.findIndex((value) => !(Number.isFinite(value) && value >= least));
    if (at < 0) continue;
    const tensor = parameters.layout.findLast(({ offset }) => offset <= at)!;
    const allowed = least === 0 ? "finite numbers from 0 on" : "finite numbers";
    refuse(
      `its ${name} of '${tensor.name}' have '${from[at]}' at '${at - tensor.offset}' where ${allowed} are allowed`,
    );
  }
  for (const { from, into } of parts) into.set(from);
  optimiser.steps = header.steps;
  optimiser.zero();
  parameters.changes++;
  return header.policyVersion;
}
