/**
 * One link's traffic in shared segments, both ways.
 *
 * Owned here: which of our segments the other side has, and our mappings of its segments. The pool owns our segments;
 * the link carries the numbers.
 *
 * X1 what was lent is written again only after the other side gave it back; if the link ends first, never.
 * X2 a received area is given back only when no code of this process can reach it: its ArrayBuffer, which every view of
 *    it holds, has been collected.
 * X3 a mapping is undone only while nothing of it is reachable.
 */

import { protocolError } from "./protocol-error.ts";
import type { Segment, SegmentPool } from "./segment-pool.ts";
import type { Mapping, SharedMemory } from "./shared-memory.ts";
import { copyArea, type SegmentExchange, type SegmentReports } from "./socket-link.ts";

/** Segments of the other side that one link maps at most. */
const maxMapped = 4096;

type Borrowed = { readonly exchange: PoolExchange; readonly segment: number };
type Remote = { readonly mapping: Mapping; borrowed: boolean; retired: boolean };

const collected = new FinalizationRegistry<Borrowed>(({ exchange, segment }) => exchange.collected(segment));

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

  lend(buffers: readonly Uint8Array[], areaBytes: number): number | undefined {
    const segment = this.#pool.take(areaBytes);
    if (segment === undefined) return undefined;
    copyArea(buffers, segment.bytes, 0);
    this.#lent.set(segment.number, segment);
    this.#known.add(segment);
    segment.knownBy.add(this);
    return segment.number;
  }

  takeBack(number: number): void {
    const segment = this.#lent.get(number);
    if (segment === undefined) throw protocolError(`segment ${number} was given back and is not lent`);
    this.#lent.delete(number);
    this.#pool.give(segment);
  }

  borrow(number: number, areaBytes: number): ArrayBuffer {
    const remote = this.#remote.get(number) ?? this.#map(number);
    if (remote.borrowed) throw protocolError(`segment ${number} was lent twice`);
    if (areaBytes > remote.mapping.sizeBytes) {
      throw protocolError(`segment ${number} has ${remote.mapping.sizeBytes} bytes, and ${areaBytes} are announced`);
    }
    const area = this.#memory.view(remote.mapping, areaBytes);
    remote.borrowed = true;
    collected.register(area, { exchange: this, segment: number }); // X2
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

  collected(number: number): void {
    const remote = this.#remote.get(number);
    if (remote === undefined) return;
    remote.borrowed = false;
    if (this.#closed || remote.retired) this.#unmapIfUnused(number, remote);
    else this.#reports.released(number);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const segment of [...this.#lent.values()]) this.#pool.retire(segment); // X1: the receiver may still read it
    for (const segment of this.#known) segment.knownBy.delete(this);
    this.#known.clear();
    for (const [number, remote] of this.#remote) this.#unmapIfUnused(number, remote);
  }

  #map(number: number): Remote {
    if (this.#remote.size >= maxMapped) throw protocolError(`more than ${maxMapped} segments were lent`);
    let mapping: Mapping;
    try {
      mapping = this.#memory.open(this.#remotePrefix + number);
    } catch (error) {
      throw protocolError(`segment ${number} of the other side cannot be opened`, error);
    }
    const remote = { mapping, borrowed: false, retired: false };
    this.#remote.set(number, remote);
    return remote;
  }

  #unmapIfUnused(number: number, remote: Remote): void {
    if (remote.borrowed) return; // X3: `collected` comes back
    this.#remote.delete(number);
    this.#memory.unmap(remote.mapping);
  }
}
