import { TreadleError } from "@treadle/contracts";
import { listRunIds, RunFolder } from "@treadle/runtime/runner";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

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
