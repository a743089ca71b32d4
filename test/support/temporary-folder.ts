import { mkdir, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/**
 * Makes the folder `tmp` below `root`, to be TMPDIR of processes whose temporary files are to be known. What tsx has
 * transpiled lies in TMPDIR, too: processes find there what all others have, since to do it again takes most of a start.
 */
export async function makeTemporary(root: string): Promise<string> {
  const folder = join(root, "tmp");
  const transpiled = `tsx-${process.geteuid?.()}`;
  await mkdir(folder);
  await mkdir(join(tmpdir(), transpiled), { recursive: true });
  await symlink(join(tmpdir(), transpiled), join(folder, transpiled));
  return folder;
}
