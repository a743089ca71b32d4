/**
 * A worker's saved state on disk: a header line with a checksum and the length, then the bytes. Written beside its place
 * and renamed, so a reader sees the whole of it or nothing.
 */
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import { replaceFile } from "@treadle/transport";
import { guardDisk } from "./guard-disk.ts";

const magic = "treadle-state-1";

export async function writeState(path: string, state: Uint8Array): Promise<void> {
  const checksum = createHash("sha256").update(state).digest("hex");
  await guardDisk(path, () =>
    replaceFile(path, async (file) => {
      await file.appendFile(`${magic} ${checksum} ${state.byteLength}\n`);
      await file.appendFile(state);
    }),
  );
}

/** Throws `checkpoint.missing` or `checkpoint.corrupt`. */
export async function readState(path: string): Promise<Uint8Array> {
  const bytes = await readFile(path).catch((cause) => {
    throw new TreadleError("checkpoint.missing", `checkpoint '${path}' cannot be read; give one that exists`, {
      cause,
    });
  });
  const headerEnd = bytes.subarray(0, 256).indexOf(10);
  const [word, checksum, length] = bytes.subarray(0, Math.max(0, headerEnd)).toString("latin1").split(" ");
  const state = bytes.subarray(headerEnd + 1);
  const sound =
    word === magic &&
    Number(length) === state.byteLength &&
    checksum === createHash("sha256").update(state).digest("hex");
  if (!sound) {
    throw new TreadleError(
      "checkpoint.corrupt",
      `checkpoint '${path}' is damaged: its contents do not match its checksum; use an older one from the run's checkpoints folder with 'treadle resume --checkpoint'`,
      { details: { path } },
    );
  }
  return state;
}
