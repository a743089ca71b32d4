/** Where the project is, and how processes of tests load it. */
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const projectRoot: string = fileURLToPath(new URL("../..", import.meta.url));

/** the script of the command line */
export const command: string = join(projectRoot, "packages/cli/bin/treadle.js");

/** Runs a workflow, for tests to kill: takes the project's root, the folder of runs, the workflow, "new" or a run, overrides. */
export const runner: string = fileURLToPath(new URL("./runner.js", import.meta.url));

/** Treadle from its sources, or with TREADLE_COMPILED=1 as `npm run build` left it, which starts sooner. */
export const loaderFlags: readonly string[] =
  process.env.TREADLE_COMPILED === "1" ? [] : ["--conditions=source", "--import", "tsx"];
