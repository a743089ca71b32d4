/** What workers have learned to predict, kept for later runs of their workflow: one file a rank, as text that is theirs. */
import { mkdir, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type KeptPredictor, TreadleError } from "@treadle/contracts";
import writeFileAtomic from "write-file-atomic";
import { guardDisk } from "../../author/guard-disk.ts";

const maxFileBytes = 8 * 2 ** 20;

export class PredictorFolder {
  readonly #path: string | undefined;

  /** Without a path nothing is kept. */
  constructor(path?: string) {
    this.#path = path;
  }

  /** Of `worker`, or where its rank has none, of the first rank; null where there is none either. */
  async read(worker: string): Promise<KeptPredictor | null> {
    const component = worker.slice(0, worker.lastIndexOf("/"));
    for (const name of [worker, `${component}/0`]) {
      const path = this.#fileOf(name);
      if (path === undefined) return null;
      try {
        return { path, text: await readFile(path, "utf8") };
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
      }
    }
    return null;
  }

  /** Whole or not at all. Throws `artifact.refused` for more than 8 MiB, or `disk.full`. */
  async write(worker: string, text: string): Promise<void> {
    const path = this.#fileOf(worker);
    if (path === undefined) return;
    const bytes = Buffer.byteLength(text);
    if (bytes > maxFileBytes) {
      const message = `the predictor of '${worker}' has '${bytes}' bytes; ${maxFileBytes} are allowed: keep less of it`;
      throw new TreadleError("artifact.refused", message, { origin: { worker } });
    }
    await guardDisk(path, async () => {
      await mkdir(dirname(path), { recursive: true, mode: 0o700 });
      await writeFileAtomic(path, text, { mode: 0o600 });
    });
  }

  /** Names of components and ranks have no other characters than file names may. */
  #fileOf(worker: string): string | undefined {
    return this.#path && join(this.#path, `${worker.replace("/", "-")}.json`);
  }
}
