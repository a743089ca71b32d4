/**
 * Items that wait for a later step, whole, in files beside the journal, which has of each what is small.
 *
 * Owner of: the `carried` folder, in which a folder has all that waits so after a committed step, and what that is. What waits after a
 * step is on the disk before the journal names it, and what was named before is removed after that (CI3).
 */
import { readdir, rm } from "node:fs/promises";
import { basename, join, relative } from "node:path";
import { type StateReference, TreadleError } from "@treadle/contracts";
import { decodeItem, encodeItem } from "@treadle/transport";
import { folderSink, PartWriter } from "../../author/state/part-writer.ts";
import { completeState, namesIn, openState, partBeside } from "../../author/state/saved-state.ts";
import { folderSource, viewState } from "../../author/state/state-view.ts";
import { carriedId } from "./carried-items.ts";
import type { RunFolder } from "./run-folder.ts";

/** A step that is about to be committed: ids of what it was given, and what it carries on that is saved, by id. */
type CarryingStep = {
  readonly index: number;
  readonly items: readonly string[];
  readonly whole: ReadonlyMap<string, unknown>;
};

const component = "carried";
const fileName = "items";
const lengthBytes = 4;

export class CarriedFiles {
  readonly #folder: RunFolder;
  #waiting = new Map<string, unknown>();

  constructor(folder: RunFolder) {
    this.#folder = folder;
  }

  /** What waits after the committed steps, and those that are being committed, by id. */
  get waiting(): ReadonlyMap<string, unknown> {
    return this.#waiting;
  }

  /** What waits after these steps, which follow those before; undefined when nothing does. Rejects with `disk.full`. */
  async save(steps: readonly CarryingStep[]): Promise<StateReference | undefined> {
    for (const { items, whole } of steps) {
      for (const id of items) this.#waiting.delete(id);
      for (const [id, item] of whole) this.#waiting.set(id, item);
    }
    const last = steps.at(-1);
    if (this.#waiting.size === 0 || last === undefined) return undefined;
    const path = join(this.#folder.carried, `step-${String(last.index).padStart(6, "0")}`);
    const writer = new PartWriter(folderSink(partBeside(path, 0)));
    await writer.write(fileName, framed(this.#waiting.values()));
    const manifest = { format: 1 as const, component, ranks: [await writer.finish()] };
    await completeState(path, manifest);
    return { folder: relative(this.#folder.path, path), files: namesIn(manifest) };
  }

  /** Rejects with `checkpoint.missing` or `checkpoint.corrupt`. */
  async restore(waiting: StateReference): Promise<void> {
    const path = join(this.#folder.path, waiting.folder);
    const source = folderSource(path, await openState(path));
    const bytes = await viewState(source, { worker: "the runner", rank: 0, numRanks: 1 }).bytes(fileName);
    this.#waiting = new Map(itemsIn(bytes, path).map((item) => [carriedId(item), item]));
  }

  /** Removes what no resume goes on with. */
  async keepOnly(waiting: StateReference | undefined): Promise<void> {
    const kept = waiting && basename(waiting.folder);
    for (const name of await readdir(this.#folder.carried))
      if (name !== kept) await rm(join(this.#folder.carried, name), { recursive: true, force: true });
  }
}

function* framed(items: Iterable<unknown>): Generator<Uint8Array> {
  for (const item of items) {
    const encoded = encodeItem(item);
    const length = Buffer.alloc(lengthBytes);
    length.writeUInt32LE(encoded.length);
    yield length;
    yield encoded;
  }
}

function itemsIn(bytes: Uint8Array, path: string): unknown[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const items: unknown[] = [];
  try {
    for (let at = 0; at < bytes.length; ) {
      const from = at + lengthBytes;
      at = from + view.getUint32(at, true);
      items.push(decodeItem(bytes.subarray(from, at)));
    }
  } catch (cause) {
    throw new TreadleError(
      "checkpoint.corrupt",
      `'${path}' has no items that this version of Treadle reads; resume the run with the version that wrote it, or with 'treadle resume --checkpoint', which begins them again`,
      { cause, details: { path } },
    );
  }
  return items;
}
