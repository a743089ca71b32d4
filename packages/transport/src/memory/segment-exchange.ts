/**
 * One link's traffic in shared segments, both ways.
 *
 * Owned here: which of our segments the other side has, and our mappings of its segments. The pool owns our segments;
 * the link carries the numbers.
 *
 * SX1 what was lent is written again only after the other side gave it back; if the link ends first, never.
 * SX2 a received area is given back only when no code of this process can reach it: it was copied out at once, or its
 *    ArrayBuffer, which every view of it holds, has been detached or collected.
 * SX3 a mapping is undone only while nothing of it is reachable.
 * SX4 what a receiver writes into an area that others were lent as well, they do not see: its mapping is private. One that was
 *    written no longer shows the segment, and is undone before that goes back; to map one costs as much as to copy it.
 */

import { copyArea } from "../codec/message-head.ts";
import { noteForeignMemory, takeMemory } from "../codec/received-arrays.ts";
import { protocolError } from "../protocol-error.ts";
import type { Segment, SegmentPool } from "./segment-pool.ts";
import type { Mapping, SharedMemory } from "./shared-memory.ts";

/** What an exchange tells the other side. */
export type SegmentReports = {
  /** The other side's segment is free again. */
  released(segment: number): void;
  /** Our segment is gone; the other side may unmap it. */
  retired(segment: number): void;
};

/** Carries areas through memory that both processes share. */
export interface SegmentExchange {
  /**
   * Copies the area into a segment and lends it, or lends the one that holds it for messages that are sent `together`;
   * undefined when none can be had, and the area must stream.
   */
  lend(buffers: readonly Uint8Array[], areaBytes: number, together?: object): number | undefined;
  /** The other side needs these segments no more. Throws `link.protocol` when they were not lent. */
  takeBack(segment: number): void;
  /** The memory of an area that the other side lent, to others as well where `isTogether`. Throws `link.protocol`. */
  borrow(segment: number, areaBytes: number, isTogether: boolean): ArrayBuffer;
  /** The other side has removed this segment of its own. */
  forget(segment: number): void;
  /** The link has ended. */
  close(): void;
}

/**
 * Areas up to this size are copied into memory of the receiver's own, and their segment goes back at once: one warm
 * segment then serves any number of messages. Larger ones would be copied into fresh pages unless somebody releases
 * arrays (glibc reuses freed blocks up to 32 MiB), which costs several times the copy, and are viewed in place instead.
 */
export const copyOutBytes = 24 * 1024 * 1024;
/** Segments of the other side that one link maps at most. */
const maxMapped = 4096;

type Borrowed = { readonly exchange: PoolExchange; readonly segment: number };
type Remote = {
  readonly kind: "shared" | "private";
  readonly mapping: Mapping;
  readonly bytes: Uint8Array;
  borrowed: boolean;
  retired: boolean;
};

const collected = new FinalizationRegistry<Borrowed>(({ exchange, segment }) => exchange.free(segment));

export class PoolExchange implements SegmentExchange {
  readonly #memory: SharedMemory;
  readonly #pool: SegmentPool;
  readonly #remotePrefix: string;
  readonly #reports: SegmentReports;
  readonly #known = new Set<Segment>();
  readonly #lent = new Map<number, Segment>();
  readonly #remote = new Map<number, Remote>();
  #closed = false;

  constructor(memory: SharedMemory, pool: SegmentPool, remotePrefix: string, reports: SegmentReports) {
    this.#memory = memory;
    this.#pool = pool;
    this.#remotePrefix = remotePrefix;
    this.#reports = reports;
  }

  lend(buffers: readonly Uint8Array[], areaBytes: number, together?: object): number | undefined {
    const segment = this.#again(areaBytes, together) ?? this.#write(buffers, areaBytes, together);
    if (segment === undefined) return undefined;
    this.#lent.set(segment.number, segment);
    this.#known.add(segment);
    segment.knownBy.add(this);
    return segment.number;
  }

  #again(areaBytes: number, together: object | undefined): Segment | undefined {
    return together && this.#pool.takeAgain(together, areaBytes, ({ number }) => this.#lent.has(number));
  }

  #write(buffers: readonly Uint8Array[], areaBytes: number, together: object | undefined): Segment | undefined {
    const segment = this.#pool.take(areaBytes, together !== undefined);
    if (segment === undefined) return undefined;
    copyArea(buffers, segment.bytes, 0);
    if (together !== undefined) this.#pool.noteTogether(segment, together, areaBytes);
    return segment;
  }

  takeBack(number: number): void {
    const segment = this.#lent.get(number);
    if (segment === undefined) throw protocolError(`segment ${number} was given back and is not lent`);
    this.#lent.delete(number);
    this.#pool.give(segment);
  }

  borrow(number: number, areaBytes: number, isTogether: boolean): ArrayBuffer {
    const remote = this.#mapped(number, isTogether && areaBytes > copyOutBytes ? "private" : "shared"); // SX4
    if (areaBytes > remote.mapping.sizeBytes) {
      throw protocolError(`segment ${number} has ${remote.mapping.sizeBytes} bytes, and ${areaBytes} are announced`);
    }
    if (areaBytes <= copyOutBytes) {
      const copy = takeMemory(areaBytes);
      new Uint8Array(copy).set(remote.bytes.subarray(0, areaBytes));
      this.#reports.released(number);
      return copy;
    }
    const area = this.#memory.view(remote.mapping, areaBytes);
    remote.borrowed = true;
    collected.register(area, { exchange: this, segment: number }, area); // SX2
    noteForeignMemory(area, () => {
      collected.unregister(area);
      this.free(number);
    });
    return area;
  }

  forget(number: number): void {
    const remote = this.#remote.get(number);
    if (remote === undefined) return;
    remote.retired = true;
    this.#unmapIfUnused(number, remote);
  }

  /** Our segment is gone, because the pool closed or needed its memory. */
  retired(number: number): void {
    this.#lent.delete(number);
    if (!this.#closed) this.#reports.retired(number);
  }

  /** Nothing of this process can reach the segment's area any more. */
  free(number: number): void {
    const remote = this.#remote.get(number);
    if (remote === undefined) return;
    remote.borrowed = false;
    const isGone = this.#closed || remote.retired;
    const isWritten = remote.kind === "private" && !this.#memory.isUnwritten(remote.mapping);
    if (isGone || isWritten) this.#unmapIfUnused(number, remote); // SX4
    if (!isGone) this.#reports.released(number);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const segment of [...this.#lent.values()]) this.#pool.abandon(segment); // SX1: the receiver may still read it
    for (const segment of this.#known) segment.knownBy.delete(this);
    this.#known.clear();
    for (const [number, remote] of this.#remote) this.#unmapIfUnused(number, remote);
  }

  #mapped(number: number, kind: Remote["kind"]): Remote {
    const known = this.#remote.get(number);
    if (known?.borrowed) throw protocolError(`segment ${number} was lent twice`);
    if (known?.kind === kind) return known;
    if (known !== undefined) this.#unmapIfUnused(number, known);
    return this.#map(number, kind);
  }

  #map(number: number, kind: Remote["kind"]): Remote {
    if (this.#remote.size >= maxMapped) throw protocolError(`more than ${maxMapped} segments were lent`);
    let mapping: Mapping;
    try {
      mapping = this.#memory.open(this.#remotePrefix + number, kind);
    } catch (error) {
      throw protocolError(`segment ${number} of the other side cannot be opened`, error);
    }
    const bytes = new Uint8Array(this.#memory.view(mapping, mapping.sizeBytes));
    const remote = { kind, mapping, bytes, borrowed: false, retired: false };
    this.#remote.set(number, remote);
    return remote;
  }

  #unmapIfUnused(number: number, remote: Remote): void {
    if (remote.borrowed) return; // SX3: `free` comes back
    this.#remote.delete(number);
    this.#memory.unmap(remote.mapping);
  }
}
