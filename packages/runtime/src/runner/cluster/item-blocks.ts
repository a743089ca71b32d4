/** Blocks of items taken apart at a channel's home, and the items of a batch put together again. Pure; bytes stay opaque. */
import { type ItemBlock, type KeptItem, type PackedItems, TreadleError } from "@treadle/contracts";
import type { ItemList, ItemView, PutItem } from "@treadle/core";

/** Where an item's bytes are: in the block that it came with, or kept by its producer. */
export class StoredItem implements PutItem {
  readonly block: PackedItems;
  readonly index: number;
  /** its place in the block's data, and its size there */
  readonly at: number;
  readonly length: number;
  /** the segment that holds it, when its producer keeps it */
  readonly kept: KeptItem | undefined;

  constructor(block: PackedItems, index: number, at: number, length: number, kept: KeptItem | undefined) {
    this.block = block;
    this.index = index;
    this.at = at;
    this.length = length;
    this.kept = kept;
  }

  get payload(): this {
    return this;
  }
  get sizeBytes(): number {
    return this.kept?.sizeBytes ?? this.length;
  }
  get segment(): string | undefined {
    return this.kept?.segment;
  }
  get key(): string | undefined {
    return this.block.keys?.[this.index];
  }
  get weight(): number | undefined {
    return this.block.weights?.[this.index];
  }
  get priority(): number | undefined {
    return this.block.priorities?.[this.index];
  }
}

/** The items of a block, each made when it is asked for: most wait in thousands, and need no object meanwhile. */
export class BlockItems implements ItemList {
  readonly length: number;
  readonly #block: PackedItems;
  readonly #starts: Float64Array;
  readonly #kept: ReadonlyMap<number, KeptItem> | undefined;

  /** Throws `link.protocol` when the sizes of the block do not add up. */
  constructor(block: PackedItems) {
    const { lengths, data, kept } = block;
    this.length = lengths.length;
    this.#block = block;
    this.#starts = new Float64Array(lengths.length);
    this.#kept = kept && new Map(kept.map((each) => [each.index, each]));
    let at = 0;
    for (let index = 0; index < lengths.length; index++) {
      this.#starts[index] = at;
      at += lengths[index] as number;
    }
    if (at === data.byteLength) return;
    throw new TreadleError("link.protocol", `a put announced '${at}' bytes of items and carried '${data.byteLength}'`);
  }

  at(index: number): StoredItem {
    const at = this.#starts[index] as number;
    return new StoredItem(this.#block, index, at, this.#block.lengths[index] as number, this.#kept?.get(index));
  }
}

/** Items that lie one after the other in one block. */
type Run = { readonly block: PackedItems; readonly from: number; to: number; readonly at: number; end: number };

/** Runs shorter than this on average are copied together where their shapes agree. */
const shortRun = 16;

/** The items in their order. What lies together in one block goes out as it came in, uncopied. */
export function joinItems(deliveries: readonly ItemView[]): { blocks: ItemBlock[] } {
  const runs: Run[] = [];
  let last: Run | undefined;
  for (const delivery of deliveries) {
    const { block, index, at, length } = delivery.payload as StoredItem;
    if (last !== undefined && last.block === block && last.to === index) {
      last.to = index + 1;
      last.end = at + length;
    } else {
      last = { block, from: index, to: index + 1, at, end: at + length };
      runs.push(last);
    }
  }
  if (runs.length === 1 || runs.length * shortRun <= deliveries.length) return { blocks: runs.map(blockOf) };
  const blocks: ItemBlock[] = [];
  for (let from = 0; from < runs.length; ) {
    let to = from + 1;
    while (to < runs.length && isJoinable(runs[from] as Run, runs[to] as Run)) to++;
    blocks.push(to - from === 1 ? blockOf(runs[from] as Run) : copyTogether(runs.slice(from, to)));
    from = to;
  }
  return { blocks };
}

function blockOf({ block, from, to, at, end }: Run): ItemBlock {
  const { data, lengths, shapes } = block;
  const isWhole = from === 0 && to === lengths.length;
  const kept = block.kept?.flatMap((each) =>
    each.index >= from && each.index < to ? { ...each, index: each.index - from } : [],
  );
  return {
    data: isWhole ? data : data.subarray(at, end),
    lengths: isWhole ? lengths : lengths.subarray(from, to),
    ...(shapes ? { shapes } : {}),
    ...(kept && kept.length > 0 ? { kept } : {}),
  };
}

function isJoinable(a: Run, b: Run): boolean {
  if (a.block.kept || b.block.kept) return false;
  const [left, right] = [a.block.shapes, b.block.shapes];
  if (left === right) return true;
  if (left === undefined || right === undefined || left.length !== right.length) return false;
  return left.every((keys, i) => keys.length === right[i]?.length && keys.every((key, k) => key === right[i]?.[k]));
}

function copyTogether(runs: readonly Run[]): ItemBlock {
  const data = new Uint8Array(runs.reduce((sum, run) => sum + run.end - run.at, 0));
  const lengths = new Uint32Array(runs.reduce((sum, run) => sum + run.to - run.from, 0));
  let [at, index] = [0, 0];
  for (const run of runs) {
    data.set(run.block.data.subarray(run.at, run.end), at);
    lengths.set(run.block.lengths.subarray(run.from, run.to), index);
    at += run.end - run.at;
    index += run.to - run.from;
  }
  const { shapes } = (runs[0] as Run).block;
  return { data, lengths, ...(shapes ? { shapes } : {}) };
}
