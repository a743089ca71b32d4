/**
 * What code a machine would load from a project, so that two machines tell whether they run the same: every file of code
 * below the project's root, built ones too, and what is installed, by the lock files that package managers leave where they
 * install. Also the versions of Node and Treadle.
 *
 * Owner of: the hashes of files, each kept until the file's times or size change.
 *
 * CH1 one look at the files goes on at a time; whoever asks meanwhile shares the next.
 */
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { lstat, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";

const codeFile = /\.(ts|mts|cts|tsx|js|mjs|cjs|jsx|py|pyi|wasm|node|so|proto)$/;
const otherFiles = new Set(["package.json", "package-lock.json", "pnpm-lock.yaml", "yarn.lock", "uv.lock"]);
/** What is installed, as npm, pnpm and yarn write it into the folder itself. */
const installed = [".package-lock.json", ".modules.yaml", ".yarn-state.yml"].map((name) => `node_modules/${name}`);
const skippedFolders = new Set(["node_modules", "runs", "coverage", "__pycache__"]);
const maxFiles = 50_000;
const filesAtOnce = 64;

export type CodeVersions = { readonly node: string; readonly treadle: string };

export type Code = {
  /** of all files */
  readonly hash: string;
  /** path below the root, with forward slashes, to the hash of what the file holds; in the order of paths */
  readonly files: ReadonlyMap<string, string>;
};

const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  version: string;
};
export const codeVersions: CodeVersions = { node: process.version, treadle: version };

type Kept = { readonly stamp: string; readonly hash: string };

export class ProjectCode {
  readonly #root: string;
  readonly #read: (path: string) => Promise<Uint8Array>;
  #kept: ReadonlyMap<string, Kept> = new Map();
  #looking: Promise<Code> | undefined;
  #next: Promise<Code> | undefined;

  /** `read`: of a file's bytes */
  constructor(root: string, read: (path: string) => Promise<Uint8Array> = (path) => readFile(path)) {
    this.#root = root;
    this.#read = read;
  }

  /** As it is now: nothing that was written before the call is missed. Rejects with `node.unavailable` (too many files). */
  async current(): Promise<Code> {
    if (this.#looking === undefined) return this.#begin();
    // What goes on may have passed what has changed since.
    this.#next ??= this.#looking.then(
      () => this.#begin(),
      () => this.#begin(),
    );
    return this.#next; // CH1
  }

  #begin(): Promise<Code> {
    this.#next = undefined;
    const looking = this.#look().finally(() => {
      if (this.#looking === looking) this.#looking = undefined;
    });
    this.#looking = looking;
    return looking;
  }

  async #look(): Promise<Code> {
    const paths = [...(await this.#codeFiles("", [])), ...installed].sort();
    const kept = new Map<string, Kept>();
    for (let next = 0; next < paths.length; next += filesAtOnce) {
      await Promise.all(
        paths.slice(next, next + filesAtOnce).map(async (path) => {
          const found = await this.#hashOf(path).catch(() => undefined); // removed meanwhile
          if (found !== undefined) kept.set(path, found);
        }),
      );
    }
    this.#kept = kept;
    const files = new Map(paths.flatMap((path) => (kept.has(path) ? [[path, (kept.get(path) as Kept).hash]] : [])));
    const hash = createHash("sha256");
    for (const [path, each] of files) hash.update(`${path}\n${each}\n`);
    return { hash: hash.digest("hex"), files };
  }

  async #hashOf(path: string): Promise<Kept> {
    const file = join(this.#root, path);
    const { size, mtimeNs, ctimeNs, ino } = await lstat(file, { bigint: true });
    const stamp = `${ino} ${size} ${mtimeNs} ${ctimeNs}`;
    const known = this.#kept.get(path);
    if (known?.stamp === stamp) return known;
    const hash = createHash("sha256")
      .update(await this.#read(file))
      .digest("hex")
      .slice(0, 32);
    return { stamp, hash };
  }

  async #codeFiles(folder: string, found: string[]): Promise<string[]> {
    const entries = await readdir(join(this.#root, folder), { withFileTypes: true }).catch(() => []);
    for (const entry of entries) {
      const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
      if (entry.isDirectory()) {
        if (!skippedFolders.has(entry.name) && !entry.name.startsWith(".")) await this.#codeFiles(path, found);
      } else if (entry.isFile() && (codeFile.test(entry.name) || otherFiles.has(entry.name))) found.push(path);
      if (found.length <= maxFiles) continue;
      throw new TreadleError(
        "node.unavailable",
        `the project '${this.#root}' has more than ${maxFiles} files of code, too many to compare; give the folder that holds the workflows alone, with --project`,
      );
    }
    return found;
  }
}

/** In words, which files differ, the first few by name; undefined when none does. `theirs`: of the machine that is named. */
export function codeDifference(
  ours: ReadonlyMap<string, string>,
  theirs: ReadonlyMap<string, string>,
): string | undefined {
  const named = 5;
  const differences = [...new Set([...ours.keys(), ...theirs.keys()])].sort().flatMap((path) => {
    const [own, other] = [ours.get(path), theirs.get(path)];
    if (own === other) return [];
    return [
      own === undefined
        ? `'${path}' is only there`
        : other === undefined
          ? `'${path}' is missing there`
          : `'${path}' differs`,
    ];
  });
  if (differences.length === 0) return undefined;
  const rest = differences.length - named;
  return `${differences.slice(0, named).join(", ")}${rest > 0 ? ` and ${rest} more` : ""}`;
}

/** Why a node of these versions cannot run this process's work; undefined when it can. */
export function versionDifference(theirs: CodeVersions, ours: CodeVersions = codeVersions): string | undefined {
  const major = (of: CodeVersions) => of.node.split(".")[0];
  if (theirs.treadle !== ours.treadle) return `it runs Treadle '${theirs.treadle}', the runner '${ours.treadle}'`;
  if (major(theirs) !== major(ours)) return `it runs Node '${theirs.node}', the runner '${ours.node}'`;
  return undefined;
}
