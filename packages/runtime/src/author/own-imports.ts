/** Which of Treadle's packages a module in TypeScript imports, itself or through files beside it. */
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

/** Those that only name types load nothing. */
const imported = /(?:^|[\n;}])\s*(?:import|export)\b(?!\s+type\b)[^"';]*?["']([^"'\n]+)["']/g;
/** `treadle/workers`, as users import them, or `@treadle/workers` itself. */
const ownPackage = /^(@treadle\/[a-z-]+|treadle)(\/[a-z-]+)?$/;
const typeScript = /\.[mc]?tsx?$/;
const maxModules = 50;

/** Their entries as file URLs, as this module's imports would find them; what cannot be read or found is left to the import. */
export async function ownImports(module: string): Promise<string[]> {
  const modules = new Set([module]);
  const entries = new Set<string>();
  for (const each of modules) {
    if (!each.startsWith("file:") || modules.size > maxModules) break;
    const text = await readFile(fileURLToPath(each), "utf8").catch(() => "");
    for (const [, specifier = ""] of text.matchAll(imported)) {
      if (ownPackage.test(specifier)) {
        const entry = entryOf(specifier, each);
        if (entry !== undefined) entries.add(entry);
      } else if (/^\.\.?\//.test(specifier) && typeScript.test(specifier)) modules.add(new URL(specifier, each).href);
    }
  }
  return [...entries];
}

/** Treadle's packages have one entry for whoever asks, so the way of `require` finds the same. */
function entryOf(specifier: string, from: string): string | undefined {
  try {
    return pathToFileURL(createRequire(from).resolve(specifier)).href;
  } catch {
    return undefined;
  }
}
