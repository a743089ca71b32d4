import type { Pieces } from "../pieces.ts";

/** A small state as one array, for tests that damage or compare it. */
export async function wholeOf(pieces: Pieces): Promise<Uint8Array> {
  const all: Uint8Array[] = [];
  for await (const piece of pieces) all.push(Uint8Array.from(piece));
  return Uint8Array.from(Buffer.concat(all));
}
