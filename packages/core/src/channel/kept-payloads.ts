/**
 * Which segments hold items of channels, who reads them, and when each is free. Pure: it says what to do, a shell does it.
 *
 * KP1 a segment is freed once: when its item is finished and nobody reads it any more.
 * KP2 a freed segment goes back to the process that made it, or is removed when that process is gone.
 * KP3 a dead process reads nothing.
 * KP4 a copy on another node is freed with its item, by that node; whoever names it when it was read means the item.
 */
import type { KeptCopy, KeptItem } from "@treadle/contracts";

export type PayloadEffect =
  | { readonly type: "reuse"; readonly producer: string; readonly segment: string }
  /** absent `node`: on this one */
  | { readonly type: "remove"; readonly segment: string; readonly node?: string | undefined };

type Kept = {
  /** absent where all processes share memory */
  readonly node: string | undefined;
  readonly copy: KeptCopy | undefined;
  /** undefined once that process is gone */
  producer: string | undefined;
  /** reads under way, by worker */
  readonly readers: Map<string, number>;
  isFinished: boolean;
};

export class KeptPayloads {
  readonly #kept = new Map<string, Kept>();
  /** copy to item */
  readonly #copies = new Map<string, string>();

  get size(): number {
    return this.#kept.size;
  }

  entered({ segment, node, copy }: Pick<KeptItem, "segment" | "node" | "copy">, producer: string): void {
    this.#kept.set(segment, { node, copy, producer, readers: new Map(), isFinished: false });
    if (copy) this.#copies.set(copy.segment, segment);
  }

  delivered(segment: string, reader: string): void {
    const readers = this.#kept.get(segment)?.readers;
    readers?.set(reader, (readers.get(reader) ?? 0) + 1);
  }

  /** A reader has let go of it. */
  read(named: string, reader: string): PayloadEffect[] {
    const segment = this.#copies.get(named) ?? named; // KP4
    const kept = this.#kept.get(segment);
    const count = kept?.readers.get(reader);
    if (kept === undefined || count === undefined) return [];
    if (count > 1) kept.readers.set(reader, count - 1);
    else kept.readers.delete(reader);
    return this.#freeIfDone(segment, kept);
  }

  /** Its item was acknowledged, or forgotten. */
  finished(segment: string): PayloadEffect[] {
    const kept = this.#kept.get(segment);
    if (kept === undefined) return [];
    kept.isFinished = true;
    return this.#freeIfDone(segment, kept);
  }

  workerDied(worker: string): PayloadEffect[] {
    const effects: PayloadEffect[] = [];
    for (const [segment, kept] of this.#kept) {
      if (kept.producer === worker) kept.producer = undefined; // KP2
      if (kept.readers.delete(worker)) effects.push(...this.#freeIfDone(segment, kept)); // KP3
    }
    return effects;
  }

  #freeIfDone(segment: string, kept: Kept): PayloadEffect[] {
    if (!kept.isFinished || kept.readers.size > 0) return [];
    this.#kept.delete(segment); // KP1
    const { producer, node, copy } = kept;
    const effects: PayloadEffect[] =
      producer === undefined ? [{ type: "remove", segment, node }] : [{ type: "reuse", producer, segment }];
    if (copy) {
      this.#copies.delete(copy.segment);
      effects.push({ type: "remove", ...copy }); // KP4
    }
    return effects;
  }
}
