/**
 * Which files of a project a process could load: sources, what was built of them where that is loaded, JSON, and what is
 * installed, by the lock files that package managers leave where they install.
 *
 * CF1 a folder is looked at once, by its real path, so that links in a circle come to an end.
 * CF2 no link is followed out of the project, and none is passed over: a file or package behind one is refused, a folder named.
 */
import type { Dirent } from "node:fs";
import { readdir, readFile, readlink, realpath, stat } from "node:fs/promises";
import { basename, dirname, isAbsolute, join, relative, sep } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { runMarks } from "../author/module-loader.ts";
import type { TreadleForm } from "./treadle-code.ts";

const codeFile = /\.(ts|mts|cts|tsx|js|mjs|cjs|jsx|json|py|wasm|node|so|proto)$/;
/** They only say types. */
const declarations = /\.d\.[mc]?ts$/;
const lockFiles = new Set([
  ...["pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"],
  ...["uv.lock", "poetry.lock", "requirements.txt"],
]);
/** What is installed, as npm, pnpm, yarn and the yarn before it write it into `node_modules`. */
const installedLocks = [".package-lock.json", ".pnpm/lock.yaml", ".yarn-state.yml", ".yarn-integrity"];
/** Results: of runs, and of what measures tests. Elsewhere a folder of such a name may hold code. */
const besideManifest = new Set(["runs", "coverage"]);
/** A run's folder holds it, beside one of its marks, which data may be called by, too. */
const runConfig = "config.json";
/** What Python has installed on this machine. */
const pythonEnvironment = "pyvenv.cfg";
const maxFiles = 50_000;

const isCode = (name: string): boolean => (codeFile.test(name) && !declarations.test(name)) || lockFiles.has(name);

export type CodeSource =
  /** `target`: where a link leads */
  | { readonly kind: "file"; readonly file: string; readonly target?: string }
  /** what a package manager has installed; `folder`: from which its paths count */
  | { readonly kind: "installed"; readonly file: string; readonly folder: string }
  | { readonly kind: "link"; readonly target: string };

export type FoundCode = {
  /** by path below the root, with forward slashes */
  readonly sources: ReadonlyMap<string, CodeSource>;
  /** links to folders outside of the project, of which nothing else is known */
  readonly outside: readonly string[];
};

type Tree = { readonly root: string; readonly label: string };

export class CodeSearch {
  readonly #form: TreadleForm;
  readonly #project: Tree;
  readonly #sources = new Map<string, CodeSource>();
  readonly #outside: string[] = [];
  readonly #seen = new Set<string>();
  /** where Treadle's own packages lie, of which a checkout links more than a worker begins with */
  #ownFolders: ReadonlySet<string> = new Set();

  constructor(root: string, form: TreadleForm) {
    this.#project = { root, label: "" };
    this.#form = form;
  }

  /** `packages`: Treadle's own, by name. Rejects with `node.unavailable`: too many files, or a link that leads out. */
  async find(packages: ReadonlyMap<string, string>): Promise<FoundCode> {
    const { root } = this.#project;
    this.#ownFolders = new Set([...packages.values()].map((folder) => dirname(folder)));
    await this.#folder(this.#project, root);
    await this.#installedAbove(root);
    for (const [name, folder] of packages) await this.#treadlePackage(name, folder);
    return { sources: this.#sources, outside: [...new Set(this.#outside)].sort() };
  }

  /** Resolves with whether this is a folder whose code counts. */
  async #folder(tree: Tree, folder: string): Promise<boolean> {
    if (this.#seen.has(folder)) return true; // CF1
    const isRoot = folder === tree.root;
    const entries = await readdir(folder, { withFileTypes: true }).catch((): Dirent[] => []);
    const names = new Set(entries.map(({ name }) => name));
    const isOfRun = names.has(runConfig) && runMarks.some((name) => names.has(name));
    if (!isRoot && (isOfRun || names.has(pythonEnvironment))) return false;
    this.#seen.add(folder);
    const isPackage = names.has("package.json");
    const isBuiltFor = isPackage && this.#form === "sources" && (await offersSources(join(folder, "package.json")));
    for (const entry of entries) {
      const { name } = entry;
      const path = join(folder, name);
      if (name === "node_modules") await this.#installed(tree, path);
      else if (entry.isSymbolicLink()) {
        if (!isSkipped(name, isPackage || isRoot)) await this.#link(tree, path);
      } else if (entry.isDirectory()) {
        if (isSkipped(name, isPackage || isRoot) || (isBuiltFor && name === "dist")) continue;
        await this.#folder(tree, path);
      } else if (entry.isFile() && isCode(name)) this.#add(pathIn(tree, path), { kind: "file", file: path });
    }
    return true;
  }

  /** CF2. */
  async #link(tree: Tree, path: string): Promise<void> {
    const real = await realpath(path).catch(() => undefined);
    if (real === undefined) return; // it leads nowhere
    const status = await stat(real).catch(() => undefined);
    const isInside = isBelow(tree.root, real);
    const label = pathIn(tree, path);
    if (status?.isFile() === true && (isCode(basename(path)) || isCode(basename(real)))) {
      if (!isInside) throw leadsOut(label, real);
      this.#add(label, { kind: "file", file: real, target: pathIn(tree, real) });
    }
    if (status?.isDirectory() !== true) return;
    if (!isInside) this.#outside.push(label);
    else if (!isInstalled(real) && !(await this.#folder(tree, real))) return;
    this.#add(label, { kind: "link", target: isInside ? pathIn(tree, real) : await readlink(path) });
  }

  /** What a package manager has put into this `node_modules`, and the packages that lie elsewhere. */
  async #installed(tree: Tree, folder: string): Promise<void> {
    const locks = await filesAmong(installedLocks.map((lock) => join(folder, lock)));
    const manifests = async () =>
      filesAmong((await packagesIn(folder)).map((name) => join(folder, name, "package.json")));
    for (const file of locks.length > 0 ? locks : await manifests())
      this.#add(pathIn(tree, file), { kind: "installed", file, folder: pathIn(tree, dirname(folder)) });
    for (const name of await linkedPackages(folder)) {
      const real = await realpath(join(folder, name)).catch(() => undefined);
      if (real === undefined || isInstalled(real)) continue;
      if (isBelow(this.#project.root, real)) await this.#folder(this.#project, real);
      else if (/^(@treadle\/|treadle$)/.test(name) || this.#ownFolders.has(dirname(real)))
        await this.#treadlePackage(name, real);
      else throw leadsOut(pathIn(tree, join(folder, name)), real);
    }
  }

  /** Of a project that lies below what was installed for it. */
  async #installedAbove(root: string): Promise<void> {
    for (let folder = root; ; folder = dirname(folder)) {
      const path = join(folder, "node_modules");
      if ((await stat(path).catch(() => undefined))?.isDirectory() === true) {
        if (folder !== root) await this.#installed({ root: folder, label: "" }, path);
        return;
      }
      if (dirname(folder) === folder) return;
    }
  }

  /** One that lies outside of the project and was not installed there by its version: what is loaded of it. */
  async #treadlePackage(name: string, folder: string): Promise<void> {
    if (isInstalled(folder)) return;
    if (isBelow(this.#project.root, folder)) await this.#folder(this.#project, folder);
    else await this.#folder({ root: folder, label: name }, join(folder, this.#form === "sources" ? "src" : "dist"));
  }

  #add(path: string, source: CodeSource): void {
    this.#sources.set(path, source);
    if (this.#sources.size <= maxFiles) return;
    throw new TreadleError(
      "node.unavailable",
      `the project '${this.#project.root}' has more than ${maxFiles} files that workers could load, too many to compare; give the folder that holds the workflows alone, with --project`,
    );
  }
}

/** Hidden folders hold settings and caches of tools. */
function isSkipped(name: string, isBesideManifest: boolean): boolean {
  const isHiddenFolder = name.startsWith(".") && !isCode(name);
  return isHiddenFolder || name === "__pycache__" || (isBesideManifest && besideManifest.has(name));
}

const isInstalled = (path: string): boolean => path.split(sep).includes("node_modules");

function isBelow(root: string, path: string): boolean {
  const way = relative(root, path);
  return way === "" || (way.split(sep)[0] !== ".." && !isAbsolute(way));
}

const pathIn = ({ root, label }: Tree, path: string): string =>
  [label, relative(root, path)]
    .filter((part) => part !== "")
    .join("/")
    .replaceAll(sep, "/");

async function filesAmong(paths: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const path of paths) if ((await stat(path).catch(() => undefined))?.isFile() === true) found.push(path);
  return found;
}

const linkedPackages = (folder: string): Promise<string[]> => packagesBy(folder, (entry) => entry.isSymbolicLink());

const packagesIn = (folder: string): Promise<string[]> =>
  packagesBy(folder, (entry) => entry.isDirectory() && !/^[.@]/.test(entry.name));

async function packagesBy(folder: string, isWanted: (entry: Dirent) => boolean): Promise<string[]> {
  const look = async (at: string): Promise<string[]> => {
    const entries = await readdir(join(folder, at), { withFileTypes: true }).catch((): Dirent[] => []);
    const found = await Promise.all(
      entries.map(async (entry) => {
        const path = join(at, entry.name);
        if (isWanted(entry)) return [path];
        return at === "" && entry.isDirectory() && entry.name.startsWith("@") ? look(path) : [];
      }),
    );
    return found.flat();
  };
  return look("");
}

/** Whether a package's sources are loaded where Treadle runs from its own, by the condition `source` of its exports. */
async function offersSources(manifest: string): Promise<boolean> {
  const offers = (exports: unknown): boolean =>
    typeof exports === "object" &&
    exports !== null &&
    Object.entries(exports).some(([key, value]) => key === "source" || offers(value));
  try {
    return offers((JSON.parse(await readFile(manifest, "utf8")) as { readonly exports?: unknown }).exports);
  } catch {
    return false;
  }
}

const leadsOut = (path: string, real: string): TreadleError =>
  new TreadleError(
    "node.unavailable",
    `'${path}' leads to '${real}', outside of the project, where code is not compared; put a copy into the project, or give the folder that holds both, with --project`,
  );
