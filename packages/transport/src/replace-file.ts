import { type FileHandle, mkdir, open, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";

/**
 * Writes a file of its owner's alone beside its place, syncs it and renames it, so that a reader sees the whole of it or what was there before.
 * `write` appends piece by piece: not with `FileHandle.write`, which may take a part of the bytes and say so only in its
 * answer.
 */
export async function replaceFile(path: string, write: (file: FileHandle) => Promise<void>): Promise<void> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  // Processes of two containers may have the same number.
  const beside = `${path}.${crypto.randomUUID()}.partial`;
  try {
    const file = await open(beside, "w", 0o600);
    try {
      await write(file);
      await file.datasync();
    } finally {
      await file.close();
    }
    await rename(beside, path);
  } catch (error) {
    await rm(beside, { force: true });
    throw error;
  }
}
