/**
 * The folders of components' saved states in a run's folder: which of them a commit names, and which may go.
 *
 * Owner of: the `state` folder. The journal names states by their path from the run's folder; the cluster by absolute ones.
 * J1: a state is removed only when a newer one of its component is committed.
 */
import { readdir, rm } from "node:fs/promises";
import { basename, dirname, join, relative, resolve } from "node:path";
import type { StateManifest } from "@treadle/contracts";
import { namesIn, openState } from "../../author/state/saved-state.ts";
import type { States } from "./journal.ts";
import type { RunFolder } from "./run-folder.ts";

type Folders = Readonly<Record<string, string>>;

export class StateFiles {
  readonly #folder: RunFolder;
  /** in the order in which they were saved, from the run's folder */
  readonly #known = new Set<string>();
  /** what is in a folder that a commit may name, by its absolute path */
  readonly #files = new Map<string, readonly string[]>();

  constructor(folder: RunFolder) {
    this.#folder = folder;
  }

  /** A state is in its place. */
  completed(path: string, manifest: StateManifest): void {
    this.#files.set(path, namesIn(manifest));
  }

  /** It counts; it may be superseded before any step is committed with it. */
  saved(path: string): void {
    if (this.#isOwn(path)) this.#known.add(this.#relative(path));
  }

  /** Looks at states that a run goes on with. Throws `checkpoint.missing` or `checkpoint.corrupt`. */
  async restored(states: Folders): Promise<void> {
    for (const path of Object.values(states)) this.completed(path, await openState(path));
  }

  /** States as a commit names them. */
  relative(states: Folders): States {
    return Object.fromEntries(
      Object.entries(states).map(([component, path]) => [
        component,
        { folder: this.#relative(path), files: [...(this.#files.get(path) ?? [])] },
      ]),
    );
  }

  absolute(states: States): Record<string, string> {
    return Object.fromEntries(
      Object.entries(states).map(([component, { folder }]) => [component, resolve(this.#folder.path, folder)]),
    );
  }

  /** Removes what is older than the committed state of its component. Younger ones belong to steps that follow. */
  async prune(committed: States): Promise<void> {
    const kept = foldersOf(committed);
    const reached = new Set<string>();
    for (const state of [...this.#known].reverse()) {
      const name = basename(state);
      const component = name.slice(0, name.lastIndexOf("."));
      if (kept.has(state)) reached.add(component);
      else if (reached.has(component)) {
        this.#known.delete(state);
        const path = join(this.#folder.path, state);
        this.#files.delete(path);
        await rm(path, { recursive: true, force: true });
      }
    }
  }

  /** Removes what an earlier runner had saved, or begun to, and was killed before committing. */
  async forgetUncommitted(committed: States): Promise<void> {
    const kept = foldersOf(committed);
    for (const name of await readdir(this.#folder.state)) {
      const state = join(basename(this.#folder.state), name);
      if (kept.has(state)) this.#known.add(state);
      else await rm(join(this.#folder.state, name), { recursive: true, force: true });
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

const foldersOf = (states: States): Set<string> => new Set(Object.values(states).map(({ folder }) => folder));
