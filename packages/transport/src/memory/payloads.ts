/**
 * Items that stay with their producer: written once into a segment of the run, read by whoever is told its name.
 *
 * A store owns the segments that its process wrote, until it is told that one may be written again or is not needed. A
 * reader owns its mappings. Who may read what, and when a segment is free, is decided elsewhere.
 *
 * PY1 a segment is written again only after `reuse` named it.
 * PY2 the files outlive their process: what was put before its death can be read after it. Whoever ends the run removes
 *    them by prefix.
 * PY3 what `read` returned never changes, and changing it changes nothing for another reader: it is a copy, or memory that
 *    is copied when it is written.
 * PY4 `onRead` names a segment once for each `read`, when no code of this process can reach its memory any more.
 */

import { TreadleError } from "@treadle/contracts";
import { decodeItem, type PlacedItem } from "../codec/codec.ts";
import { noteForeignMemory, takeMemory } from "../codec/received-arrays.ts";
import { protocolError } from "../protocol-error.ts";
import { copyOutBytes } from "./segment-exchange.ts";
import { type Segment, SegmentPool } from "./segment-pool.ts";
import { checkSegmentPrefix, type Mapping, type SharedMemory, sharedMemory } from "./shared-memory.ts";

const defaultMaxBytes = 2 * 1024 ** 3;
/** Idle segments kept for reuse. */
const defaultMaxIdleBytes = 1024 ** 3;

export type PayloadStoreOptions = {
  /** Most bytes of segments in use and idle, together. Default 2 GiB. */
  readonly maxBytes?: number | undefined;
  readonly maxIdleBytes?: number | undefined;
};

export class PayloadStore {
  readonly #prefix: string;
  readonly #options: PayloadStoreOptions;
  readonly #inUse = new Map<string, Segment>();
  #pool: SegmentPool | undefined;

  /** `prefix` begins the names of this process's segments; no other process uses it. */
  constructor(prefix: string, options: PayloadStoreOptions = {}) {
    checkSegmentPrefix(prefix);
    this.#prefix = prefix;
    this.#options = options;
  }

  /** Writes the item and returns its segment's name; undefined when there is no memory for it, so it must travel inline. */
  write(item: PlacedItem): string | undefined {
    const memory = sharedMemory();
    if (memory === undefined) return undefined;
    this.#pool ??= new SegmentPool(memory, this.#prefix, this.#options.maxBytes ?? defaultMaxBytes, { outlive: true }); // PY2
    const segment = this.#pool.take(item.sizeBytes);
    if (segment === undefined) return undefined;
    item.writeTo(segment.bytes);
    const name = this.#prefix + segment.number;
    this.#inUse.set(name, segment);
    return name;
  }

  /** What was written there, to be sent elsewhere; not to be touched once `reuse` has named it. */
  bytesOf(name: string, sizeBytes: number): Uint8Array | undefined {
    return this.#inUse.get(name)?.bytes.subarray(0, sizeBytes);
  }

  /** Nobody reads these segments any more (PY1). */
  reuse(names: readonly string[]): void {
    for (const name of names) {
      const segment = this.#inUse.get(name);
      if (segment === undefined) continue;
      this.#inUse.delete(name);
      this.#pool?.give(segment);
    }
    this.#pool?.trimIdle(this.#options.maxIdleBytes ?? defaultMaxIdleBytes);
  }

  /** Removes every segment, whoever may still want to read it. */
  close(): void {
    this.#pool?.close();
    this.#inUse.clear();
  }
}

type Read = { readonly reader: PayloadReader; readonly segment: string; readonly mapping: Mapping };

const collected = new FinalizationRegistry<Read>(({ reader, segment, mapping }) => reader.free(segment, mapping));

export class PayloadReader {
  readonly #prefix: string;
  readonly #onRead: (segment: string) => void;

  /** `prefix` begins the names of all segments of the run; others are refused. */
  constructor(prefix: string, onRead: (segment: string) => void) {
    checkSegmentPrefix(prefix);
    this.#prefix = prefix;
    this.#onRead = onRead;
  }

  /** Throws `link.protocol` when the segment is none of this run's, is gone, or holds no item. */
  read(segment: string, sizeBytes: number): unknown {
    const { memory, mapping } = this.#map(segment, sizeBytes);
    const area = memory.view(mapping, sizeBytes);
    if (sizeBytes <= copyOutBytes) return decodeItem(this.#copyOut(segment, mapping, area));
    collected.register(area, { reader: this, segment, mapping }, area); // PY4
    noteForeignMemory(area, () => {
      collected.unregister(area);
      this.free(segment, mapping);
    });
    return decodeItem(new Uint8Array(area));
  }

  /** The same as bytes, to be sent elsewhere: a copy. */
  readBytes(segment: string, sizeBytes: number): Uint8Array {
    const { memory, mapping } = this.#map(segment, sizeBytes);
    return this.#copyOut(segment, mapping, memory.view(mapping, sizeBytes));
  }

  #map(segment: string, sizeBytes: number): { memory: SharedMemory; mapping: Mapping } {
    const memory = sharedMemory();
    if (memory === undefined || !segment.startsWith(this.#prefix) || segment.includes("/")) {
      throw protocolError(`segment '${segment}' is none of this run's`);
    }
    const mapping = open(memory, segment);
    if (sizeBytes <= mapping.sizeBytes) return { memory, mapping };
    memory.unmap(mapping);
    throw protocolError(`segment '${segment}' has ${mapping.sizeBytes} bytes, and ${sizeBytes} are announced`);
  }

  #copyOut(segment: string, mapping: Mapping, area: ArrayBuffer): Uint8Array {
    const copy = new Uint8Array(takeMemory(area.byteLength), 0, area.byteLength);
    copy.set(new Uint8Array(area));
    this.free(segment, mapping);
    return copy;
  }

  /** The mapping cannot be reached any more. */
  free(segment: string, mapping: Mapping): void {
    sharedMemory()?.unmap(mapping);
    this.#onRead(segment);
  }
}

/** PY3: private, so that a reader's writes stay its own. */
function open(memory: SharedMemory, segment: string): Mapping {
  try {
    return memory.open(segment, "private");
  } catch (cause) {
    throw new TreadleError("link.protocol", `segment '${segment}' cannot be opened; it is gone`, { cause });
  }
}
