/**
 * What code a machine would load from a project, so that two machines tell whether they run the same: the files that
 * `code-files.ts` finds, and the versions of Node and Treadle.
 *
 * Owner of: the hashes of files, each kept until the file's times or size change.
 *
 * CH1 one look at the files goes on at a time; whoever asks meanwhile shares the next.
 * CH2 a hash is kept only of what was read a while after the file's times were first seen: until then another write can leave
 *    the same ones.
 */
import { createHash } from "node:crypto";
import { type BigIntStats, createReadStream } from "node:fs";
import { lstat, readFile, realpath } from "node:fs/promises";
import { CodeSearch, type CodeSource } from "./code-files.ts";
import { installedPackages } from "./installed-packages.ts";
import { type CodeVersions, codeVersions, type TreadleForm, treadlePackages } from "./treadle-code.ts";

const filesAtOnce = 64;
/** Larger files are read in pieces. */
const wholeBytes = 2 ** 20;
/** Longer than the steps in which any file system counts time. */
const settledMs = 2500;

export type Code = {
  /** of all files */
  readonly hash: string;
  /** path below the root, with forward slashes, to the hash of what the file holds; in the order of paths */
  readonly files: ReadonlyMap<string, string>;
  /** links to folders outside of the project, where nothing is compared */
  readonly outside: readonly string[];
};

export type CodeOptions = {
  readonly form?: TreadleForm;
  /** Treadle's own, by name: hashed where they are outside of the project */
  readonly packages?: ReadonlyMap<string, string>;
  /** a file's bytes */
  readonly read?: (path: string, sizeBytes: number) => AsyncIterable<Uint8Array>;
  readonly stat?: (path: string) => Promise<FileTimes>;
  readonly nowMs?: () => number;
};

type FileTimes = Pick<BigIntStats, "ino" | "size" | "mtimeNs" | "ctimeNs">;

type FileSource = Exclude<CodeSource, { kind: "link" }>;

type Kept = {
  readonly stamp: string;
  readonly firstSeenMs: number;
  readonly readMs: number;
  readonly hashes: readonly (readonly [path: string, hash: string])[];
};

export class ProjectCode {
  readonly #root: string;
  readonly #options: Required<CodeOptions>;
  #kept: ReadonlyMap<string, Kept> = new Map();
  #looking: Promise<Code> | undefined;
  #next: Promise<Code> | undefined;

  constructor(root: string, options: CodeOptions = {}) {
    const { form = codeVersions.form, packages = treadlePackages() } = options;
    const { read = bytesOf, stat = timesOf, nowMs = monotonicMs } = options;
    this.#root = root;
    this.#options = { form, packages, read, stat, nowMs };
  }

  /**
   * As it is now: nothing that was written before the call is missed. Rejects with `node.unavailable` (too many files, or a
   * link that leads out of the project).
   */
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
    const { form, packages } = this.#options;
    const found = await new CodeSearch(await realpath(this.#root), form).find(packages);
    const sources = [...found.sources];
    const kept = new Map<string, Kept>();
    const hashes: (readonly [string, string])[] = [];
    for (let next = 0; next < sources.length; next += filesAtOnce) {
      await Promise.all(
        sources.slice(next, next + filesAtOnce).map(async ([path, source]) => {
          if (source.kind === "link") {
            hashes.push([path, digest(`link to ${source.target}`)]);
            return;
          }
          const file = await this.#hashesOf(path, source);
          if (file === undefined) return; // removed meanwhile
          kept.set(path, file);
          hashes.push(...file.hashes);
        }),
      );
    }
    this.#kept = kept;
    hashes.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
    const hash = createHash("sha256");
    for (const [path, each] of hashes) hash.update(`${path}\n${each}\n`);
    return { hash: hash.digest("hex"), files: new Map(hashes), outside: found.outside };
  }

  async #hashesOf(path: string, source: FileSource): Promise<Kept | undefined> {
    const { stat, nowMs } = this.#options;
    const readMs = nowMs();
    try {
      const { size, mtimeNs, ctimeNs, ino } = await stat(source.file);
      const seenMs = nowMs();
      const target = source.kind === "file" ? source.target : undefined;
      const stamp = `${ino} ${size} ${mtimeNs} ${ctimeNs} ${target}`;
      const known = this.#kept.get(path);
      const isKnown = known?.stamp === stamp;
      if (isKnown && known.readMs - known.firstSeenMs >= settledMs) return known; // CH2
      const hashes = await this.#read(path, source, Number(size));
      return { stamp, firstSeenMs: isKnown ? known.firstSeenMs : seenMs, readMs, hashes };
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code;
      if (code === undefined) throw error;
      if (code === "ENOENT") return undefined;
      return { stamp: "", firstSeenMs: readMs, readMs, hashes: [[path, `unreadable: ${code}`]] };
    }
  }

  async #read(path: string, source: FileSource, sizeBytes: number): Promise<Kept["hashes"]> {
    const bytes = this.#options.read(source.file, sizeBytes);
    if (source.kind === "installed") {
      const chunks: Uint8Array[] = [];
      for await (const chunk of bytes) chunks.push(chunk);
      const lock = Buffer.concat(chunks).toString();
      return installedPackages(path, source.folder, lock).map(([name, what]) => [name, digest(what)]);
    }
    const hash = createHash("sha256");
    for await (const chunk of bytes) hash.update(chunk);
    if (source.target !== undefined) hash.update(`\nlink to ${source.target}`);
    return [[path, short(hash.digest("hex"))]];
  }
}

const short = (hex: string): string => hex.slice(0, 32);
const digest = (text: string): string => short(createHash("sha256").update(text).digest("hex"));
const timesOf = (path: string): Promise<FileTimes> => lstat(path, { bigint: true });
const monotonicMs = (): number => performance.now();

async function* bytesOf(path: string, sizeBytes: number): AsyncIterable<Uint8Array> {
  if (sizeBytes <= wholeBytes) yield await readFile(path);
  else yield* createReadStream(path) as AsyncIterable<Uint8Array>;
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

export type VersionDifference = {
  readonly what: string;
  /** whether a node of these versions can run this process's work all the same */
  readonly isBearable: boolean;
};

/**
 * All of Node's version is compared. Another major version computes and loads otherwise; within one, V8 and the interface of
 * native modules stay, so a node is used, and its version said: machines get a security release one after the other.
 */
export function versionDifference(
  theirs: CodeVersions,
  ours: CodeVersions = codeVersions,
): VersionDifference | undefined {
  const major = (of: CodeVersions) => of.node.split(".")[0];
  const differs = (what: string, isBearable = false): VersionDifference => ({ what, isBearable });
  if (theirs.treadle !== ours.treadle)
    return differs(`it runs Treadle '${theirs.treadle}', the runner '${ours.treadle}'`);
  if (theirs.form !== ours.form)
    return differs(`it runs Treadle from '${theirs.form}', the runner from '${ours.form}'`);
  if (theirs.node === ours.node) return undefined;
  return differs(`it runs Node '${theirs.node}', the runner '${ours.node}'`, major(theirs) === major(ours));
}
