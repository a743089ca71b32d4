import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** Of the package that a module belongs to, whether its sources run or what was bundled of them. `moduleUrl`: `import.meta.url`. */
export function packageFolder(moduleUrl: string): string {
  const start = dirname(fileURLToPath(moduleUrl));
  for (let folder = start; ; folder = dirname(folder)) {
    if (existsSync(join(folder, "package.json"))) return folder;
    if (dirname(folder) === folder) throw new Error(`no package.json in '${start}' or above it`);
  }
}
