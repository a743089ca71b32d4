import { stat } from "node:fs/promises";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { TreadleError } from "@treadle/contracts";
import { checkCode, loadModule } from "../../author/module-loader.ts";
import type { Workflow } from "../../author/workflow.ts";

export type LoadedWorkflow = {
  readonly name: string;
  readonly folder: string;
  readonly workflow: Workflow;
  readonly module: { readonly url: string; readonly exports: Readonly<Record<string, unknown>> };
};

/** Loads `run.ts` (or `run.js`) of a workflow's folder. */
export async function loadWorkflow(folder: string): Promise<LoadedWorkflow> {
  const absolute = resolve(folder);
  for (const file of ["run.ts", "run.js"]) {
    const path = join(absolute, file);
    const found = await stat(path).catch(() => undefined);
    if (!found) continue;
    const url = pathToFileURL(path).href;
    const exports = await loadModule(url);
    const exported = exports["default"] as Partial<Workflow> | undefined;
    if (exported?.kind !== "treadle-workflow") {
      throw new TreadleError(
        "workflow.invalid",
        `'${path}' has no workflow as its default export; write 'export default workflow(Config, async ({ cluster, … }) => { … })'`,
      );
    }
    const name = absolute.split("/").at(-1) as string;
    return { name, folder: absolute, workflow: exported as Workflow, module: { url, exports } };
  }
  throw new TreadleError(
    "workflow.invalid",
    `'${folder}' is no workflow: it has neither 'run.ts' nor 'run.js'; give a folder such as workflows/reasoning-grpo`,
  );
}

/** What another file of a workflow's folder exports, such as `draw.ts`; undefined where there is none. */
export async function loadFile(folder: string, name: string): Promise<Readonly<Record<string, unknown>> | undefined> {
  for (const file of [`${name}.ts`, `${name}.js`]) {
    const path = join(resolve(folder), file);
    if (await stat(path).catch(() => undefined)) return loadModule(pathToFileURL(path).href);
  }
  return undefined;
}

/**
 * A module that the configuration of a workflow names, by its path from the project's root. The configuration of a run that is resumed may
 * come from elsewhere, so as in workers WH6 holds: it names the project's code, and nothing that a run has kept.
 */
export async function loadOfProject(projectRoot: string, path: string): Promise<Record<string, unknown>> {
  const module = pathToFileURL(resolve(projectRoot, path)).href;
  await checkCode(module, [projectRoot]);
  return loadModule(module);
}
