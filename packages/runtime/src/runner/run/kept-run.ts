/**
 * A run that is kept at the NATS servers, and its folder on this machine as a copy. The servers' word counts: an entry is
 * theirs before it is the folder's, and opening makes the folder what they have.
 *
 * KR1 what an entry refers to is at the servers before the entry is; it is removed there only when a later entry refers to
 *    others.
 * KR2 the folder is ahead of the servers only when they lost what they had acknowledged; then they get it back from it. When
 *    another machine has gone on meanwhile, and further, the folder is put right instead. What has gone apart and is no longer
 *    there than here is left as it is on both sides, and told.
 * KR3 no checkpoint of the folder is removed because the servers do not list it: nobody has signed their list.
 */
import { readdir, readFile } from "node:fs/promises";
import { basename, join, relative } from "node:path";
import { NatsConfig, type RunLog, type RunStore, TreadleError } from "@treadle/contracts";
import { NatsRunStore } from "@treadle/transport";
import { checkpointNote } from "./checkpoints.ts";
import { validateConfig } from "./config.ts";
import { stateFilesOf } from "./journal.ts";
import { JournalFile, readEntries } from "./journal-file.ts";
import type { RunFolder } from "./run-folder.ts";
import { acceptRun, type Resumer, signStoredRun } from "./stored-run.ts";

/** The folders of a run that are kept whole. */
type KeptFolder = "checkpoints";

/** Connects; takes nothing. Rejects with `control-plane.unreachable` or `control-plane.refused`. */
export function openRunStore(
  nats: NatsConfig,
  folder: RunFolder,
  onNotice: (text: string) => void,
): Promise<NatsRunStore> {
  const { runId, path } = folder;
  return NatsRunStore.open({ nats, name: `treadle run ${runId}`, runId, folder: path, onNotice });
}

/** Brings the configuration of a run that another machine has started; false where none is kept. */
export async function fetchRun(folder: RunFolder, resumer: Resumer): Promise<boolean> {
  const nats = validateConfig(NatsConfig, resumer.nats);
  const store = await openRunStore(nats, folder, () => {});
  try {
    const text = await store.text(basename(folder.configFile));
    if (text === undefined) return false;
    const accepted = await acceptRun(folder.runId, text, resumer);
    await folder.create();
    await folder.writeJson(folder.configFile, accepted);
    return true;
  } finally {
    await store.close();
  }
}

/** The ids of all runs that are kept at these servers, oldest first; `forgotten` is removed before. */
export async function keptRuns(nats: NatsConfig, forgotten?: string): Promise<string[]> {
  const options = { nats, name: "treadle runs" };
  if (forgotten !== undefined) {
    const store = await NatsRunStore.open({ ...options, runId: forgotten, folder: "" });
    await store.forget().finally(() => store.close());
  }
  return NatsRunStore.list(options);
}

export class KeptRun implements RunLog {
  readonly #store: RunStore;
  readonly #folder: RunFolder;
  readonly #file: JournalFile;
  /** what the newest entry with files refers to */
  #files: readonly string[] = [];

  private constructor(store: RunStore, folder: RunFolder, file: JournalFile) {
    this.#store = store;
    this.#folder = folder;
    this.#file = file;
  }

  /** `filesOf`: what an entry refers to. The store has been taken, and is closed with this. */
  static async open(
    store: RunStore,
    folder: RunFolder,
    filesOf: (entry: string) => readonly string[],
  ): Promise<KeptRun> {
    const own = await JournalFile.open(folder.journalFile);
    const numSame = store.entries.findIndex((entry, index) => own.entries[index] !== entry);
    if (numSame < 0) {
      const kept = new KeptRun(store, folder, own);
      kept.#files = newestFiles(store.entries, filesOf);
      await store.keep(kept.#name(folder.configFile));
      for (const entry of own.entries.slice(store.entries.length)) await kept.#give(entry, filesOf(entry));
      await kept.syncFolder("checkpoints");
      return kept;
    }
    await own.close();
    if (own.entries.length > numSame && own.entries.length >= store.entries.length) {
      throw apart(folder, own.entries.length, store.entries.length, numSame);
    }
    for (const name of (await store.names()).filter((each) => isOfRun(each))) await store.fetch(name);
    const kept = new KeptRun(store, folder, await JournalFile.replace(folder.journalFile, store.entries));
    kept.#files = newestFiles(store.entries, filesOf);
    return kept;
  }

  get entries(): readonly string[] {
    return this.#store.entries;
  }

  async append(entry: string, files: readonly string[] = []): Promise<void> {
    await this.#store.append(entry, files); // KR1
    await this.#file.append(entry);
    if (files.length === 0) return;
    const superseded = this.#files.filter((name) => !files.includes(name) && !name.startsWith("checkpoints/"));
    this.#files = files;
    for (const name of superseded) await this.#store.remove(name);
  }

  /** Keeps a file of the run's folder as it is now. */
  keep(path: string): Promise<void> {
    return this.#store.keep(this.#name(path));
  }

  /** Keeps what is new in a folder of the run, and no more what has left it. `written`: a folder below it that may be another. */
  async syncFolder(folder: KeptFolder, written?: string): Promise<void> {
    const here = await filesBelow(this.#folder[folder], this.#folder.path);
    const there = (await this.#store.names()).filter((name) => name.startsWith(`${folder}/`));
    // A checkpoint is one by its note, which comes last and goes first.
    const isNote = (name: string) => Number(basename(name) === checkpointNote);
    const isNew = (name: string) => written !== undefined && name.startsWith(`${this.#name(written)}/`);
    const added = here.filter((name) => isNew(name) || !there.includes(name)).sort((a, b) => isNote(a) - isNote(b));
    const gone = there.filter((name) => !here.includes(name)).sort((a, b) => isNote(b) - isNote(a));
    for (const name of added) await this.#store.keep(name);
    for (const name of gone) await this.#store.remove(name);
  }

  async close(): Promise<void> {
    await this.#file.close();
    await this.#store.close();
  }

  /** States that a later entry has replaced are in the folder no more. */
  async #give(entry: string, files: readonly string[]): Promise<void> {
    const { state, carried, path } = this.#folder;
    const here = [...(await filesBelow(state, path)), ...(await filesBelow(carried, path))];
    await this.#store.append(
      entry,
      files.filter((name) => here.includes(name)),
    );
    if (files.length > 0) this.#files = files;
  }

  #name(path: string): string {
    return relative(this.#folder.path, path);
  }
}

/** KR2. */
function apart({ runId, path }: RunFolder, numOwn: number, numKept: number, numSame: number): TreadleError {
  return new TreadleError(
    "journal.corrupt",
    `run '${runId}' has '${numOwn}' journal entries in '${path}' and '${numKept}' at the NATS servers, and they differ from number ${numSame + 1} on, so one of the two would be lost; to go on from this folder, remove the others with 'treadle runs --forget ${runId}'; to go on from theirs, resume it with another folder (--runs)`,
  );
}

/** Of what is kept the folder takes what runs write, never what says how to run: others may have written there. */
const isOfRun = (name: string): boolean =>
  name === "plan.json" || (/^(state|carried|checkpoints)\//.test(name) && !name.split("/").includes(".."));

/** A state is read from where the journal says it is. */
function checkOfRun(name: string, runId: string): void {
  if (isOfRun(name)) return;
  throw new TreadleError(
    "journal.corrupt",
    `run '${runId}', as the NATS servers have it, has its state in '${name}', outside of its folder; forget it with 'treadle runs --forget ${runId}'`,
  );
}

function newestFiles(entries: readonly string[], filesOf: (entry: string) => readonly string[]): readonly string[] {
  return entries.map(filesOf).findLast((files) => files.length > 0) ?? [];
}

async function filesBelow(folder: string, root: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true }).catch(() => []);
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => relative(root, join(entry.parentPath ?? entry.path, entry.name)))
    .sort();
}

/** Takes a run that is kept for any machine, and makes its folder here what is kept. */
export async function openKeptRun(
  nats: NatsConfig,
  folder: RunFolder,
  onNotice: (text: string) => void,
): Promise<KeptRun> {
  const store = await openRunStore(nats, folder, onNotice);
  try {
    await rememberKept(nats, folder);
    await store.take(await ownEntries(folder));
    for (const name of store.entries.flatMap(stateFilesOf)) checkOfRun(name, folder.runId);
    return await KeptRun.open(store, folder, stateFilesOf);
  } catch (error) {
    await store.close();
    throw error;
  }
}

/** As far as this machine has been told of them. */
async function ownEntries({ journalFile }: RunFolder): Promise<readonly string[]> {
  const text = await readFile(journalFile, "utf8").catch(() => "");
  return readEntries(text, journalFile).entries;
}

/** A run that is kept only since it was resumed says so to whoever resumes it next, who sees that a runner says it. */
async function rememberKept(nats: NatsConfig, folder: RunFolder): Promise<void> {
  const { workflow, config } = (await folder.readConfig()) as {
    workflow: string;
    config: { cluster: { nats?: NatsConfig } };
  };
  const cluster = config.cluster.nats?.durableRuns ? config.cluster : { ...config.cluster, nats };
  await signStoredRun(nats, folder, { workflow, config: { ...config, cluster } });
}
