/** Where the project is and keeps its runs. */
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { listRunIds, RunFolder } from "@treadle/runtime/runner";

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

/** The folder of a run, or of the newest one. */
export async function chooseRun(runId: string | undefined, runs: string | undefined): Promise<RunFolder> {
  const root = runs ?? defaultRunsRoot(findProjectRoot());
  const known = await listRunIds(root);
  const chosen = runId ?? known.at(-1);
  if (chosen !== undefined && known.includes(chosen)) return new RunFolder(root, chosen);
  throw new TreadleError(
    "run.not-found",
    chosen === undefined
      ? `there is no run in '${root}'; start one with 'treadle run'`
      : `no run '${chosen}' in '${root}'; 'treadle runs' lists them`,
  );
}
