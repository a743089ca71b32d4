import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/**
 * The folder of a Python package that a package of Treadle has: published within it; in a checkout, beside all packages.
 * `moduleUrl`: `import.meta.url` of a module of the package that has it.
 */
export function pythonPackageFolder(moduleUrl: string, name: string): string {
  const folder = packageFolder(moduleUrl);
  const published = join(folder, "python", name);
  return existsSync(published) ? published : join(folder, "../../python", name);
}

/** Of the package that a module belongs to, whether its sources run or what was bundled of them. `moduleUrl`: `import.meta.url`. */
export function packageFolder(moduleUrl: string): string {
  const start = dirname(fileURLToPath(moduleUrl));
  for (let folder = start; ; folder = dirname(folder)) {
    if (existsSync(join(folder, "package.json"))) return folder;
    if (dirname(folder) === folder) throw new Error(`no package.json in '${start}' or above it`);
  }
}
