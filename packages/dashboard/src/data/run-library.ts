/** The runs below one folder. A run is asked for by an id that is in the list, so no id leads to another folder. */
import { join } from "node:path";
import { listRunIds } from "@treadle/runtime/runner";
import type { RunRow } from "../view/wire.ts";
import { RunData } from "./run-data.ts";

/** newest runs that the list shows */
const maxListed = 200;
/** runs of which what was read is kept */
const maxKept = 256;

/** Runs of other machines, of which there are copies here. */
type Others = { readonly root: string; lookAt(runId: string): void };

export class RunLibrary {
  readonly root: string;
  readonly #others: Others | undefined;
  readonly #runs = new Map<string, RunData>();

  constructor(root: string, others?: Others) {
    this.root = root;
    this.#others = others;
  }

  /** Newest first. */
  async list(): Promise<RunRow[]> {
    const folders = [...(await this.#folders())].sort(([a], [b]) => (a < b ? -1 : 1)).slice(-maxListed);
    const runs = await Promise.all(
      folders.map(async ([runId, folder]) => {
        const run = this.#open(runId, folder);
        await run.refresh();
        return run.row;
      }),
    );
    return runs.reverse();
  }

  async get(runId: string): Promise<RunData | undefined> {
    const folder = (await this.#folders()).get(runId);
    if (folder === undefined) return undefined;
    this.#others?.lookAt(runId);
    return this.#open(runId, folder);
  }

  /** By id; what this machine has itself goes before a copy. */
  async #folders(): Promise<Map<string, string>> {
    const roots = [...(this.#others ? [this.#others.root] : []), this.root];
    const lists = await Promise.all(roots.map(async (root) => ({ root, ids: await listRunIds(root) })));
    return new Map(
      lists.flatMap(({ root, ids }) => ids.filter(isShown).map((runId) => [runId, join(root, runId)] as const)),
    );
  }

  #open(runId: string, folder: string): RunData {
    const kept = this.#runs.get(runId);
    const run = kept?.folder === folder ? kept : new RunData(folder);
    this.#runs.delete(runId);
    this.#runs.set(runId, run);
    if (this.#runs.size > maxKept) this.#runs.delete(this.#runs.keys().next().value as string);
    return run;
  }
}

const isShown = (runId: string): boolean => !runId.startsWith(".");
