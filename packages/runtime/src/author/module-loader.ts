/** Loads worker classes and schemas by module, and finds where an object is exported, by identity. */
import { existsSync } from "node:fs";
import { realpath } from "node:fs/promises";
import { register as registerHook } from "node:module";
import { basename, dirname, join, sep } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import { z } from "zod";
import { guardCompileCache } from "./compile-cache.ts";
import { ownImports } from "./own-imports.ts";
import { type AnyWorkerClass, Worker } from "./worker.ts";

const ownFolder = packageFolder(import.meta.url);

/** Sources run in a process that has a loader already. */
const isCompiled = !import.meta.url.endsWith(".ts");
let loader: Promise<void> | undefined;

/**
 * The loader takes its time at each import that follows, so that a compiled runtime asks for it when it meets TypeScript, and
 * has loaded by then what is compiled of what that imports.
 */
async function registerTypeScript(module: string): Promise<void> {
  await loadImports(module);
  guardCompileCache();
  const { register } = await import("tsx/esm/api");
  register();
  registerHook(pathToFileURL(join(ownFolder, "dist/author/typescript-modules.js")));
}

function ensureLoader(module: string): Promise<void> {
  loader ??= registerTypeScript(module);
  return loader;
}

/** What fails to load fails again, with its place, where it is imported. */
async function loadImports(module: string): Promise<void> {
  await Promise.allSettled((await ownImports(module)).map((entry) => import(entry)));
}

/** What loading `module` needs of Treadle: none of the module's own code runs. */
export async function loadAhead(module: string): Promise<void> {
  if (needsLoader(module)) await ensureLoader(module);
  else await loadImports(module);
}

const needsLoader = (module: string): boolean => isCompiled && /\.[mc]?tsx?$/.test(module);

const loaded = new Map<string, Promise<Record<string, unknown>>>();

/** Once in a process: with a TypeScript loader even an import of what is there takes milliseconds, in another thread. */
export function loadModule(module: string): Promise<Record<string, unknown>> {
  let loading = loaded.get(module);
  if (!loading) {
    loading = importModule(module);
    loaded.set(module, loading);
    loading.catch(() => loaded.delete(module));
  }
  return loading;
}

async function importModule(module: string): Promise<Record<string, unknown>> {
  try {
    if (needsLoader(module)) await ensureLoader(module);
    return (await import(module)) as Record<string, unknown>;
  } catch (cause) {
    const remedy = loadRemedy(module, cause);
    const what = cause instanceof Error ? cause.message : `it threw '${String(cause)}', which is no Error`;
    const why = `${what}${remedy === undefined ? "" : `; ${remedy}`}`;
    throw new TreadleError("worker.load-failed", `module '${module}' cannot be loaded: ${why}`, { cause });
  }
}

/** Node says what it missed, and not what a project lacks: a package, or the kind of its modules. */
export function loadRemedy(module: string, thrown: unknown): string | undefined {
  if (!(thrown instanceof Error)) return undefined;
  const { code, message, name }: NodeJS.ErrnoException = thrown;
  const isMissing = code === "ERR_MODULE_NOT_FOUND" || code === "MODULE_NOT_FOUND";
  const missing = isMissing ? packageNamed.exec(message)?.[1] : undefined;
  // By the version of Node, and by whether something has compiled the module for it.
  const isTakenForCommonJs =
    code === "ERR_REQUIRE_CYCLE_MODULE" ||
    code === "ERR_REQUIRE_ESM" ||
    (name === "SyntaxError" && /outside a module|Unexpected token 'export'/.test(message));
  if (!module.startsWith("file:") || (missing === undefined && !isTakenForCommonJs)) return undefined;
  const path = fileURLToPath(module);
  const project = projectOf(path);
  if (project === undefined)
    return `no folder above it has a package.json: run 'npm install ${missing ?? "treadle"}' in '${dirname(path)}', or let 'treadle init <folder>' write a project`;
  if (missing !== undefined) return `run 'npm install ${missing}' in '${project}'`;
  const renamed = path.endsWith(".js") ? `, or name it '${basename(path, ".js")}.ts'` : "";
  return `set "type": "module" in '${join(project, "package.json")}'${renamed}`;
}

/** With its scope, and without what of the package is imported. */
const packageNamed = /Cannot find (?:package|module) '((?:@[^'/]+\/)?[^'./:][^'/:]*)(?:\/[^']*)?'/;

function projectOf(path: string): string | undefined {
  for (let folder = dirname(path); ; folder = dirname(folder)) {
    if (existsSync(join(folder, "package.json"))) return folder;
    if (folder === dirname(folder)) return undefined;
  }
}

/** Where Treadle's own packages are. */
export const packagesRoot = join(ownFolder, "..");

/**
 * What comes from another machine names code, and never is code: a file below one of these folders, symbolic links
 * resolved, and none of what runs keep, which others have written. The first folder is the project's.
 */
export async function checkCode(module: string, [root, ...others]: readonly [string, ...string[]]): Promise<void> {
  // Of a package, as '@treadle/contracts', where this process would load it from.
  const find = async (): Promise<string> =>
    realpath(fileURLToPath(URL.canParse(module) ? module : import.meta.resolve(module)));
  const path = await find().catch((cause) => {
    throw new TreadleError("worker.load-failed", `module '${module}' is no file here; give the path of a module`, {
      cause,
    });
  });
  const project = await realpath(root);
  const isCode = path.startsWith(project + sep) && !isOfRun(project, path);
  for (const folder of others) if (path.startsWith((await realpath(folder)) + sep)) return;
  if (isCode) return;
  throw new TreadleError(
    "worker.load-failed",
    `module '${path}' is outside of the project root '${project}', or in a folder of runs; only the project's code runs: move it below that`,
  );
}

/** A run's own folder holds one of these. */
export const runMarks = ["journal.jsonl", "events.jsonl"];

/** In `runs` of the project, or in a run's folder elsewhere below it. */
function isOfRun(project: string, path: string): boolean {
  if (path.startsWith(join(project, "runs") + sep)) return true;
  for (let folder = dirname(path); folder !== project; folder = dirname(folder))
    if (runMarks.some((name) => existsSync(join(folder, name)))) return true;
  return false;
}

async function findExport(module: string, exportName: string): Promise<unknown> {
  return (await loadModule(module))[exportName];
}

export async function loadWorkerClass(module: string, exportName: string): Promise<AnyWorkerClass> {
  const exported = await findExport(module, exportName);
  if (typeof exported === "function" && exported.prototype instanceof Worker) {
    return exported as unknown as AnyWorkerClass;
  }
  if (isOfAnotherCopy(exported)) throw anotherCopy(exportName);
  throw new TreadleError(
    "worker.load-failed",
    `module '${module}' does not export a worker class '${exportName}'; export a class that extends another module's from the workflow's module, or add 'static override readonly module = import.meta.url' to it`,
  );
}

/** A class of a `Worker` that is not this process's: a project with two copies of Treadle has two. */
export function isOfAnotherCopy(exported: unknown): boolean {
  if (typeof exported !== "function" || exported.prototype instanceof Worker) return false;
  for (let parent = Object.getPrototypeOf(exported); parent; parent = Object.getPrototypeOf(parent))
    if (parent.name === Worker.name && parent.prototype?.constructor === parent) return true;
  return false;
}

export function anotherCopy(className: string): TreadleError {
  return new TreadleError(
    "workflow.invalid",
    `worker class '${className}' extends the Worker of another copy of Treadle than the one that runs, which is in '${packagesRoot}'; keep one of them: 'npm ls treadle @treadle/runtime' shows where each comes from`,
  );
}

export async function loadSchema(module: string, exportName: string): Promise<z.ZodType> {
  const exported = await findExport(module, exportName);
  if (exported instanceof z.ZodType) return exported;
  throw new TreadleError(
    "worker.load-failed",
    `module '${module}' does not export a schema '${exportName}'; export the channel's schema from there`,
  );
}

/** The first module, and the name there, that exports exactly this object. */
export function locateExport(
  value: unknown,
  modules: readonly { readonly url: string; readonly exports: Readonly<Record<string, unknown>> }[],
): { module: string; exportName: string } | undefined {
  for (const { url, exports } of modules) {
    for (const [exportName, exported] of Object.entries(exports)) {
      if (exported === value) return { module: url, exportName };
    }
  }
  return undefined;
}
