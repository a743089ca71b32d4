import { lstatSync, mkdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const openToOthers = 0o022;

/**
 * tsx keeps what it has compiled in a folder of the system's temporary one, whose name everybody can tell, and runs what it finds
 * there. It is made here, this user's alone; one that is another user's, or that others may write to, is not used.
 */
export function guardCompileCache(): void {
  const user = process.geteuid?.();
  const folder = join(tmpdir(), `tsx-${user}`);
  try {
    mkdirSync(folder, { mode: 0o700 });
  } catch {
    // it is there already, or cannot be
  }
  try {
    const found = lstatSync(folder);
    if (found.isDirectory() && found.uid === user && (found.mode & openToOthers) === 0) return;
  } catch {
    // none is used then
  }
  process.env["TSX_DISABLE_CACHE"] = "1";
}
