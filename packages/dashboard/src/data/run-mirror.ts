/**
 * Runs of other machines, as folders here: what their runners show of their files, copied part by part, so that whatever reads
 * the folder of a run reads theirs.
 *
 * RM1 a file here is a beginning of the runner's, or, of one that is replaced as a whole, all of it.
 * RM2 what one run, or its silence, costs delays no other's; servers that do not say which runs there are, are asked again.
 */
import { appendFile, mkdir, mkdtemp, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { type ReadRunFile, type RunFilePart, shownRunFiles } from "@treadle/contracts";

export type RemoteRuns = {
  /** runs under way elsewhere, and how those ended that have */
  list(): Promise<readonly { readonly runId: string; readonly state: "running" | "finished" | "stopped" | "failed" }[]>;
  /** rejects when the runner does not answer */
  read(runId: string, asked: ReadRunFile): Promise<RunFilePart>;
};

type File = ReadRunFile["file"];
type Known = { version: string; atByte: number; readonly parts: Buffer[] };

const lookMs = 1000;
const listLimitMs = 10_000;
/** a run that nobody opened for so long brings no more of its trace */
const lookedAtMs = 60_000;
const maxPartsOfLook = 16;
const maxTraceBytes = 64 * 2 ** 20;
const maxRuns = 100;

export class RunMirror {
  readonly root: string;
  readonly #remote: RemoteRuns;
  readonly #reader = crypto.randomUUID();
  readonly #isHere: (runId: string) => Promise<boolean>;
  readonly #listLimitMs: number;
  readonly #known = new Map<string, Map<File, Known>>();
  readonly #looking = new Map<string, Promise<void>>();
  readonly #lookedAt = new Map<string, number>();
  readonly #ended = new Set<string>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isClosed = false;

  private constructor(root: string, remote: RemoteRuns, isHere: (runId: string) => Promise<boolean>, limitMs: number) {
    this.#listLimitMs = limitMs;
    this.root = root;
    this.#remote = remote;
    this.#isHere = isHere;
  }

  /** `isHere`: has a folder of its own on this machine. */
  static async open(
    remote: RemoteRuns,
    isHere: (runId: string) => Promise<boolean>,
    limitMs = listLimitMs,
  ): Promise<RunMirror> {
    const mirror = new RunMirror(await mkdtemp(join(tmpdir(), "treadle-mirror-")), remote, isHere, limitMs);
    mirror.#look();
    return mirror;
  }

  /** Somebody looks at this one. */
  lookAt(runId: string): void {
    this.#lookedAt.set(runId, performance.now());
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await Promise.allSettled(this.#looking.values());
    await rm(this.root, { recursive: true, force: true });
  }

  #look(): void {
    const limit = new AbortController();
    void Promise.race([this.#copyAll(), delay(this.#listLimitMs, undefined, { signal: limit.signal })])
      .catch(() => {}) // servers that are away are asked again
      .finally(() => {
        limit.abort();
        if (!this.#isClosed) this.#timer = setTimeout(() => this.#look(), lookMs);
      });
  }

  async #copyAll(): Promise<void> {
    const runs = await this.#remote.list();
    for (const { runId, state } of runs.slice(-maxRuns)) {
      if (!/^[\w.-]+$/.test(runId) || runId.startsWith(".") || (await this.#isHere(runId))) continue;
      if (state === "running") this.#start(runId, () => this.#copy(runId));
      else if (this.#known.has(runId)) this.#start(runId, () => this.#end(runId, state));
    }
  }

  /** One at a time of a run. RM2 */
  #start(runId: string, act: () => Promise<void>): void {
    if (this.#isClosed || this.#looking.has(runId)) return;
    const looking = act()
      .catch(() => {})
      .finally(() => this.#looking.delete(runId));
    this.#looking.set(runId, looking);
  }

  async #copy(runId: string): Promise<void> {
    const folder = join(this.root, runId);
    await mkdir(folder, { recursive: true });
    // It goes on.
    if (this.#ended.delete(runId)) await rm(join(folder, "journal.jsonl"), { force: true });
    const files = this.#known.get(runId) ?? new Map<File, Known>();
    this.#known.set(runId, files);
    const isLookedAt = performance.now() - (this.#lookedAt.get(runId) ?? Number.NEGATIVE_INFINITY) < lookedAtMs;
    for (const file of shownRunFiles) {
      const known: Known = files.get(file) ?? { version: "", atByte: 0, parts: [] };
      files.set(file, known);
      if (file === "trace.jsonl" && (!isLookedAt || known.atByte > maxTraceBytes)) continue;
      await this.#copyFile(runId, file, known);
    }
    await this.#beat(folder);
  }

  async #copyFile(runId: string, file: File, known: Known): Promise<void> {
    const path = join(this.root, runId, file);
    for (let parts = 0; parts < maxPartsOfLook; parts++) {
      const { version, atByte } = known;
      const part = await this.#remote.read(runId, { file, fromByte: atByte, version, reader: this.#reader });
      const data = Buffer.from(part.data, "base64");
      const isOther = part.version !== version;
      if (isOther) {
        [known.version, known.atByte] = [part.version, 0];
        known.parts.length = 0;
      }
      if (part.fromByte !== known.atByte) return; // asked again from there
      known.atByte += data.length;
      if (file.endsWith(".jsonl")) {
        if (isOther) await rm(path, { force: true }); // a new one, so that whoever reads it begins again
        if (data.length > 0) await appendFile(path, data);
      } else {
        known.parts.push(data);
        if (data.length > 0 && known.atByte === part.sizeBytes) await replace(path, Buffer.concat(known.parts));
        if (known.atByte === part.sizeBytes) known.parts.length = 0;
      }
      if (data.length === 0 || known.atByte >= part.sizeBytes) return;
    }
  }

  /** As a runner beats that has the folder. */
  async #beat(folder: string): Promise<void> {
    const lock = join(folder, "runner.lock");
    const now = new Date();
    if (await stat(lock).catch(() => undefined)) await utimes(lock, now, now);
    else await mkdir(lock);
  }

  /** Its runner has left, with what the servers keep of it. */
  async #end(runId: string, state: "finished" | "stopped" | "failed"): Promise<void> {
    if (this.#ended.has(runId)) return;
    this.#ended.add(runId);
    const folder = join(this.root, runId);
    await rm(join(folder, "runner.lock"), { recursive: true, force: true });
    if (state === "finished") await writeFile(join(folder, "journal.jsonl"), '{"type":"finished"}\n');
  }
}

/** Whole or not at all (RM1). */
async function replace(path: string, data: Buffer): Promise<void> {
  await writeFile(`${path}.new`, data);
  await rename(`${path}.new`, path);
}
