/** Where a run keeps its files, and who may write there: one runner at a time. */
import { chmod, mkdir, readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { type FolderLock, lockFolder } from "@treadle/transport";
import writeFileAtomic from "write-file-atomic";
import { z } from "zod";
import { guardDisk } from "../../author/guard-disk.ts";

/** What a run is of. */
const StoredConfig = z.object({ workflow: z.string(), config: z.record(z.string(), z.unknown()) });

export class RunFolder {
  readonly path: string;
  readonly runId: string;

  constructor(root: string, runId: string) {
    this.runId = runId;
    this.path = join(root, runId);
  }

  get configFile(): string {
    return join(this.path, "config.json");
  }
  get planFile(): string {
    return join(this.path, "plan.json");
  }
  /** what the plan was predicted to take, where a profile says so */
  get predictionFile(): string {
    return join(this.path, "prediction.json");
  }
  /** what flows from which component to which, where a profile has it */
  get graphFile(): string {
    return join(this.path, "graph.json");
  }
  get journalFile(): string {
    return join(this.path, "journal.jsonl");
  }
  get metricsFile(): string {
    return join(this.path, "metrics.jsonl");
  }
  /** what the run told whoever watched it */
  get eventsFile(): string {
    return join(this.path, "events.jsonl");
  }
  get summaryFile(): string {
    return join(this.path, "summary.json");
  }
  get traceFile(): string {
    return join(this.path, "trace.jsonl");
  }
  get logs(): string {
    return join(this.path, "logs");
  }
  get checkpoints(): string {
    return join(this.path, "checkpoints");
  }
  /** the newest state of each component, a folder each, replaced when the journal has committed the next */
  get state(): string {
    return join(this.path, "state");
  }

  /** items that wait for a later step and are too large for the journal, replaced when the journal has committed the next */
  get carried(): string {
    return join(this.path, "carried");
  }

  async create(): Promise<void> {
    await guardDisk(this.path, () => mkdir(this.path, { recursive: true, mode: 0o700 }));
    await chmod(this.path, 0o700); // configuration, prompts and weights are nobody else's
    for (const folder of [this.logs, this.checkpoints, this.state, this.carried]) {
      await guardDisk(folder, () => mkdir(folder, { recursive: true, mode: 0o700 }));
    }
  }

  /** A run is there; of a folder without a configuration `readConfig` says what is missing. */
  async exists(): Promise<boolean> {
    return isThere(this.configFile);
  }

  async isThere(): Promise<boolean> {
    return isThere(this.path);
  }

  /**
   * Takes the folder for this process; the lock of a dead runner goes stale by itself within seconds, and so does that of
   * one that is suspended, which is told by `onLost` when it goes on and finds that another one has taken the folder.
   */
  async acquire(onLost: (error: Error) => void): Promise<FolderLock> {
    const lost = (cause: Error) =>
      onLost(
        new TreadleError(
          "run.locked",
          `run '${this.runId}' was taken by another runner while this one was suspended; follow that one`,
          { cause },
        ),
      );
    try {
      return await lockFolder(this.path, join(this.path, "runner.lock"), lost);
    } catch (cause) {
      throw new TreadleError(
        "run.locked",
        `run '${this.runId}' is in use by another runner; stop that one first, or start a new run with 'treadle run'`,
        { cause },
      );
    }
  }

  async writeJson(path: string, value: unknown): Promise<void> {
    await guardDisk(path, () => writeFileAtomic(path, `${JSON.stringify(value, null, 2)}\n`, { mode: 0o600 }));
  }

  /** What the run is of. Rejects with `run.incomplete` where the file is missing or not whole. */
  async readConfig(): Promise<z.infer<typeof StoredConfig>> {
    try {
      return StoredConfig.parse(JSON.parse(await readFile(this.configFile, "utf8")));
    } catch (cause) {
      throw new TreadleError(
        "run.incomplete",
        `'${this.configFile}' is missing or not whole, so nothing says what run '${this.runId}' is of; start it again with 'treadle run', or take the file from a copy of the folder`,
        { cause },
      );
    }
  }
}

const isThere = (path: string): Promise<boolean> =>
  stat(path).then(
    () => true,
    () => false,
  );

/** The ids of all runs below `root`, oldest first: ids begin with their start time. */
export async function listRunIds(root: string): Promise<string[]> {
  const entries = await readdir(root, { withFileTypes: true }).catch(() => []);
  return entries
    .filter((entry) => entry.isDirectory())
    .map((entry) => entry.name)
    .sort();
}
