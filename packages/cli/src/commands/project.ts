/** Where the project is and keeps its runs. */
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";

/** Of npm, pnpm, Yarn and Bun, and of a repository. */
const rootFiles = ["package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb", ".git"];

/** The nearest folder upwards with a lock file or a repository, else the nearest with a package.json, else `from`. */
export function findProjectRoot(from = process.cwd()): string {
  let nearest: string | undefined;
  for (let folder = resolve(from); ; folder = dirname(folder)) {
    if (rootFiles.some((name) => existsSync(join(folder, name)))) return folder;
    if (existsSync(join(folder, "package.json"))) nearest ??= folder;
    if (dirname(folder) === folder) return nearest ?? resolve(from);
  }
}

export const defaultRunsRoot = (projectRoot: string): string => join(projectRoot, "runs");
