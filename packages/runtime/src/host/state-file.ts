/**
 * A worker's saved state on disk: a header line with a checksum and the length, then the bytes. Written beside its place
 * and renamed, so a reader sees the whole of it or nothing.
 */
import { createHash } from "node:crypto";
import { mkdir, open, readFile, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { guardDisk } from "../run/run-folder.ts";

const magic = "treadle-state-1";

export async function writeState(path: string, state: Uint8Array): Promise<void> {
  const checksum = createHash("sha256").update(state).digest("hex");
  await guardDisk(path, async () => {
    await mkdir(dirname(path), { recursive: true });
    const beside = `${path}.${process.pid}.partial`;
    try {
      const file = await open(beside, "w");
      try {
        // Not `write`, which may take a part of the bytes and say so only in its answer.
        await file.appendFile(`${magic} ${checksum} ${state.byteLength}\n`);
        await file.appendFile(state);
        await file.datasync();
      } finally {
        await file.close();
      }
      await rename(beside, path);
    } catch (error) {
      await rm(beside, { force: true });
      throw error;
    }
  });
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
