/**
 * The files of components' saved states in a run's folder: which of them a commit names, and which may go.
 *
 * Owner of: the `state` folder. The journal names states by their path from the run's folder; the cluster by absolute ones.
 * J1: a state is removed only when a newer one of its component is committed.
 */
import { readdir, rm } from "node:fs/promises";
import { basename, dirname, join, relative, resolve } from "node:path";
import type { RunFolder } from "./run-folder.ts";

type States = Readonly<Record<string, string>>;

export class StateFiles {
  readonly #folder: RunFolder;
  /** in the order in which they were saved */
  readonly #known = new Set<string>();

  constructor(folder: RunFolder) {
    this.#folder = folder;
  }

  /** A state has been saved; it may be superseded before any step is committed with it. */
  saved(path: string): void {
    if (this.#isOwn(path)) this.#known.add(this.#relative(path));
  }

  /** States as a commit names them. */
  relative(states: States): Record<string, string> {
    return Object.fromEntries(Object.entries(states).map(([component, path]) => [component, this.#relative(path)]));
  }

  absolute(states: States): Record<string, string> {
    return Object.fromEntries(
      Object.entries(states).map(([component, path]) => [component, resolve(this.#folder.path, path)]),
    );
  }

  /** Removes what is older than the committed state of its component. Younger ones belong to steps that follow. */
  async prune(committed: States): Promise<void> {
    const kept = new Set(Object.values(committed));
    const reached = new Set<string>();
    for (const file of [...this.#known].reverse()) {
      const component = basename(file).split(".")[0] as string;
      if (kept.has(file)) reached.add(component);
      else if (reached.has(component)) {
        this.#known.delete(file);
        await rm(join(this.#folder.path, file), { force: true });
      }
    }
  }

  /** Removes what an earlier runner had saved and was killed before committing. */
  async forgetUncommitted(committed: States): Promise<void> {
    const kept = new Set(Object.values(committed));
    for (const name of await readdir(this.#folder.state)) {
      const file = join(basename(this.#folder.state), name);
      if (kept.has(file)) this.#known.add(file);
      else await rm(join(this.#folder.state, name), { force: true });
    }
  }

  /** A state that came from a checkpoint stays where it is. */
  #isOwn(path: string): boolean {
    return dirname(path) === this.#folder.state;
  }

  #relative(path: string): string {
    return this.#isOwn(path) ? join(basename(this.#folder.state), basename(path)) : relative(this.#folder.path, path);
  }
}
