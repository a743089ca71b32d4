import { chmod, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";

const script = fileURLToPath(new URL("double-server.ts", import.meta.url));
const root = fileURLToPath(new URL("../../../..", import.meta.url));

/** In one file, since tests start many: it starts in a fifth of what its sources take with the loader of TypeScript. */
let program: string | undefined;

/** An interpreter in whose environment the doubles are installed, in place of the real servers. */
export async function writeDoublePython(folder: string): Promise<string> {
  program ??= bundled();
  const server = join(folder, "double-server.mjs");
  await writeFile(server, program);
  const path = join(folder, "python");
  await writeFile(path, `#!/bin/sh\ncd '${root}' && exec '${process.execPath}' '${server}' "$@"\n`);
  await chmod(path, 0o755);
  return path;
}

function bundled(): string {
  const { outputFiles } = buildSync({
    ...{ entryPoints: [script], bundle: true, write: false, conditions: ["source"] },
    ...{ platform: "node", format: "esm", target: "node20.11" },
  });
  return outputFiles[0]!.text;
}
