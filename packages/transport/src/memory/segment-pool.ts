/**
 * The segments that this process lends.
 *
 * Owned here: the files, this process's mappings of them, and which segments are idle. Exchanges (one a link) lend them
 * and give them back.
 *
 * SP1 a segment is idle, lent, or gone; a number is never used twice. It is lent to one exchange, or, for messages that are sent
 *    together, to several, and is idle again once each of them has given it back.
 * SP2 the pool's segments never exceed `maxBytes` together; what does not fit is refused, not waited for.
 * SP3 no file outlives the pool, nor an orderly exit of the process, unless `outlive` says so.
 *
 * Fresh memory costs a page fault a page, several times the copy itself, so idle segments are kept and reused.
 */

import { type Mapping, type SharedMemory, unlinkSegment } from "./shared-memory.ts";

export type Segment = {
  readonly number: number;
  readonly mapping: Mapping;
  readonly bytes: Uint8Array;
  /** Told when the segment goes, because they may have it mapped. */
  readonly knownBy: Set<SegmentUser>;
  /** SP1 */
  numHolders: number;
  /** one of them is gone and may still read it: never written again */
  isAbandoned: boolean;
  /** what it was lent for last: for messages that are sent together, or for one */
  wasTogether: boolean;
  /** what it holds, for as long as it is lent */
  together?: { readonly token: object; readonly areaBytes: number } | undefined;
};

export interface SegmentUser {
  retired(segment: number): void;
}

/** Steps of segment sizes between two powers of two, so that at most an eighth is wasted. */
const stepsAnOctave = 8;
/** A segment is reused for areas down to this part of it. */
const minUse = 0.5;
const minSegmentBytes = 64 * 1024;

const openPools = new Set<SegmentPool>();
process.on("exit", () => {
  for (const pool of openPools) pool.unlinkAll(); // SP3
});

export class SegmentPool {
  readonly prefix: string;
  readonly #memory: SharedMemory;
  readonly #maxBytes: number;
  readonly #all = new Set<Segment>();
  /** Least recently used first. */
  readonly #idle = new Set<Segment>();
  readonly #together = new WeakMap<object, Segment>();
  #totalBytes = 0;
  #idleBytes = 0;
  #lastNumber = 0;

  constructor(memory: SharedMemory, prefix: string, maxBytes: number, options: { readonly outlive?: boolean } = {}) {
    this.#memory = memory;
    this.prefix = prefix;
    this.#maxBytes = maxBytes;
    if (!options.outlive) openPools.add(this);
  }

  /**
   * A segment of at least this size, rather one that was used alike, which receivers have mapped as they need it; undefined when
   * the pool is exhausted or the host has no memory left.
   */
  take(sizeBytes: number, isTogether = false): Segment | undefined {
    let best: Segment | undefined;
    for (const segment of this.#idle) {
      const size = segment.mapping.sizeBytes;
      if (size < sizeBytes || size * minUse > sizeBytes) continue;
      if (best === undefined || isAtLeastAsGood(segment, best, isTogether)) best = segment; // the most recent: warmest
    }
    if (best === undefined) best = this.#create(segmentBytesFor(sizeBytes));
    else {
      this.#idle.delete(best);
      this.#idleBytes -= best.mapping.sizeBytes;
      best.numHolders = 1;
    }
    if (best !== undefined) best.wasTogether = isTogether;
    return best;
  }

  /** A lent segment that holds this area for messages that are sent together: lent once more, unless `isExcluded`. */
  takeAgain(token: object, areaBytes: number, isExcluded: (segment: Segment) => boolean): Segment | undefined {
    const segment = this.#together.get(token);
    if (segment?.together?.token !== token || segment.together.areaBytes !== areaBytes) return undefined;
    if (isExcluded(segment) || !this.#all.has(segment)) return undefined;
    segment.numHolders++;
    return segment;
  }

  /** Notes what a segment that was just written holds. */
  noteTogether(segment: Segment, token: object, areaBytes: number): void {
    segment.together = { token, areaBytes };
    this.#together.set(token, segment);
  }

  /** One that it was lent to needs it no more. */
  give(segment: Segment): void {
    if (--segment.numHolders > 0) return; // SP1
    segment.together = undefined;
    if (segment.isAbandoned) {
      this.retire(segment);
      return;
    }
    this.#idle.add(segment);
    this.#idleBytes += segment.mapping.sizeBytes;
  }

  /** One that it was lent to is gone, and may still read it: it is retired once nobody else has it. */
  abandon(segment: Segment): void {
    segment.isAbandoned = true;
    this.give(segment);
  }

  /** Retires idle segments, the least recently used first, until the others hold at most so many bytes. */
  trimIdle(maxBytes: number): void {
    for (const segment of this.#idle) {
      if (this.#idleBytes <= maxBytes) return;
      this.retire(segment);
    }
  }

  /** Forgets a segment that may still be in use elsewhere: its memory lives on there and is never written again. */
  retire(segment: Segment): void {
    if (this.#idle.delete(segment)) this.#idleBytes -= segment.mapping.sizeBytes;
    if (!this.#all.delete(segment)) return;
    this.#totalBytes -= segment.mapping.sizeBytes;
    unlinkSegment(this.prefix + segment.number);
    this.#memory.unmap(segment.mapping);
    for (const user of segment.knownBy) user.retired(segment.number);
  }

  close(): void {
    for (const segment of [...this.#all]) this.retire(segment);
    openPools.delete(this);
  }

  unlinkAll(): void {
    for (const segment of this.#all) unlinkSegment(this.prefix + segment.number);
  }

  #create(sizeBytes: number): Segment | undefined {
    for (const idle of this.#idle) {
      if (this.#totalBytes + sizeBytes <= this.#maxBytes) break;
      this.retire(idle);
    }
    if (this.#totalBytes + sizeBytes > this.#maxBytes) return undefined; // SP2
    const number = ++this.#lastNumber;
    const mapping = this.#memory.create(this.prefix + number, sizeBytes);
    if (mapping === undefined) return undefined;
    const bytes = new Uint8Array(this.#memory.view(mapping, sizeBytes));
    const segment: Segment = {
      number,
      mapping,
      bytes,
      knownBy: new Set(),
      numHolders: 1,
      isAbandoned: false,
      wasTogether: false,
    };
    this.#all.add(segment);
    this.#totalBytes += sizeBytes;
    return segment;
  }
}

function isAtLeastAsGood(segment: Segment, other: Segment, isTogether: boolean): boolean {
  if (segment.wasTogether !== other.wasTogether) return segment.wasTogether === isTogether;
  return segment.mapping.sizeBytes <= other.mapping.sizeBytes;
}

export function segmentBytesFor(sizeBytes: number): number {
  const octave = 2 ** Math.floor(Math.log2(Math.max(minSegmentBytes, sizeBytes)));
  const step = octave / stepsAnOctave;
  return Math.ceil(Math.max(minSegmentBytes, sizeBytes) / step) * step;
}
