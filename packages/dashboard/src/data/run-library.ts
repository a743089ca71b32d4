/** The runs below one folder. A run is asked for by an id that is in the list, so no id leads to another folder. */
import { join } from "node:path";
import { listRunIds } from "@treadle/runtime/runner";
import type { RunRow } from "../view/wire.ts";
import { RunData } from "./run-data.ts";

/** newest runs that the list shows */
const maxListed = 200;
/** runs of which what was read is kept */
const maxKept = 256;

export class RunLibrary {
  readonly root: string;
  readonly #runs = new Map<string, RunData>();

  constructor(root: string) {
    this.root = root;
  }

  /** Newest first. */
  async list(): Promise<RunRow[]> {
    const ids = (await listRunIds(this.root)).filter(isShown).slice(-maxListed);
    const runs = await Promise.all(
      ids.map(async (runId) => {
        const run = this.#open(runId);
        await run.refresh();
        return run.row;
      }),
    );
    return runs.reverse();
  }

  async get(runId: string): Promise<RunData | undefined> {
    const ids = await listRunIds(this.root);
    return ids.includes(runId) && isShown(runId) ? this.#open(runId) : undefined;
  }

  #open(runId: string): RunData {
    const run = this.#runs.get(runId) ?? new RunData(join(this.root, runId));
    this.#runs.delete(runId);
    this.#runs.set(runId, run);
    if (this.#runs.size > maxKept) this.#runs.delete(this.#runs.keys().next().value as string);
    return run;
  }
}

const isShown = (runId: string): boolean => !runId.startsWith(".");
