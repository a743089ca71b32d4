import { chmod, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const script = fileURLToPath(new URL("double-server.ts", import.meta.url));
const root = fileURLToPath(new URL("../../../..", import.meta.url));

/** An interpreter in whose environment the doubles are installed, in place of the real servers. */
export async function writeDoublePython(folder: string): Promise<string> {
  const path = join(folder, "python");
  const words = [process.execPath, "--import", "tsx", "--conditions=source", script].map((word) => `'${word}'`);
  await writeFile(path, `#!/bin/sh\ncd '${root}' && exec ${words.join(" ")} "$@"\n`);
  await chmod(path, 0o755);
  return path;
}
