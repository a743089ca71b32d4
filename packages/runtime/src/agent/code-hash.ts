/**
 * One number for all code below a project's root, by which two machines tell whether they run the same. Packages are
 * pinned by the lock file, so `node_modules` needs no reading; what a build or a run leaves is no code of the project.
 */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

const codeFile = /\.(ts|mts|cts|tsx|js|mjs|cjs|jsx)$/;
const otherFiles = new Set(["package.json", "package-lock.json"]);
const skippedFolders = new Set(["node_modules", "dist", "runs", "coverage"]);
const maxFiles = 50_000;

export async function codeHash(projectRoot: string): Promise<string> {
  const files = (await codeFiles(projectRoot, "")).sort();
  const hash = createHash("sha256");
  for (let next = 0; next < files.length; next += 64) {
    const some = files.slice(next, next + 64);
    const contents = await Promise.all(some.map((file) => readFile(join(projectRoot, file)).catch(() => undefined)));
    for (const [i, bytes] of contents.entries()) {
      if (bytes === undefined) continue; // removed meanwhile
      hash.update(`${some[i]}\n${bytes.byteLength}\n`).update(bytes);
    }
  }
  return hash.digest("hex");
}

async function codeFiles(root: string, folder: string): Promise<string[]> {
  const entries = await readdir(join(root, folder), { withFileTypes: true }).catch(() => []);
  const found: string[] = [];
  for (const entry of entries) {
    const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
    if (entry.isDirectory()) {
      if (!skippedFolders.has(entry.name) && !entry.name.startsWith(".")) found.push(...(await codeFiles(root, path)));
    } else if (entry.isFile() && (codeFile.test(entry.name) || otherFiles.has(entry.name))) found.push(path);
    if (found.length > maxFiles) break;
  }
  return found;
}
