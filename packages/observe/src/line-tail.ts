/**
 * Whole lines of a file that another process appends to.
 *
 * LT1 a line is given once, when its end is there; what a writer has half written waits for the rest.
 * LT2 a file that is replaced or cut begins again, and the reader is told.
 * LT3 memory is bounded: a line longer than `maxLineBytes` is skipped and counted, a read brings at most `maxBytes`.
 */
import { open } from "node:fs/promises";

export type TailedLine = { readonly text: string; readonly atByte: number };

export type TailedLines = {
  readonly lines: readonly TailedLine[];
  /** the file is another one since the last read: forget what it said */
  readonly restarted: boolean;
  /** there is more to read at once */
  readonly hasMore: boolean;
};

const newline = 0x0a;

export class LineTail {
  readonly path: string;
  readonly #maxLineBytes: number;
  #inode: number | undefined;
  #readBytes = 0;
  /** begins where the next line begins */
  #rest: Buffer = Buffer.alloc(0);
  #isSkipping = false;
  #numSkipped = 0;

  constructor(path: string, options: { maxLineBytes?: number } = {}) {
    this.path = path;
    this.#maxLineBytes = options.maxLineBytes ?? 32 * 2 ** 20;
  }

  /** lines that were longer than a line may be */
  get numSkipped(): number {
    return this.#numSkipped;
  }

  /** A file that is not there has no lines. */
  async read(maxBytes: number = 4 * 2 ** 20): Promise<TailedLines> {
    const file = await open(this.path, "r").catch(() => undefined);
    if (file === undefined) {
      const restarted = this.#inode !== undefined;
      this.#restart(undefined);
      return { lines: [], restarted, hasMore: false };
    }
    try {
      const { size, ino } = await file.stat();
      const restarted = this.#inode !== undefined && (ino !== this.#inode || size < this.#readBytes); // LT2
      if (restarted || this.#inode === undefined) this.#restart(ino);
      const block = Buffer.allocUnsafe(Math.max(0, Math.min(size - this.#readBytes, maxBytes)));
      if (block.length === 0) return { lines: [], restarted, hasMore: false };
      const { bytesRead } = await file.read(block, 0, block.length, this.#readBytes);
      const lines = this.#linesOf(block.subarray(0, bytesRead));
      return { lines, restarted, hasMore: bytesRead > 0 && this.#readBytes < size };
    } finally {
      await file.close();
    }
  }

  #restart(inode: number | undefined): void {
    this.#inode = inode;
    this.#readBytes = 0;
    this.#rest = Buffer.alloc(0);
    this.#isSkipping = false;
    this.#numSkipped = 0;
  }

  #linesOf(block: Buffer): TailedLine[] {
    const bytes = this.#rest.length === 0 ? block : Buffer.concat([this.#rest, block]);
    const first = this.#readBytes - this.#rest.length;
    this.#readBytes += block.length;
    const lines: TailedLine[] = [];
    let from = 0;
    for (let end = bytes.indexOf(newline); end >= 0; end = bytes.indexOf(newline, from)) {
      if (this.#isSkipping) this.#isSkipping = false;
      else if (end > from) lines.push({ text: bytes.toString("utf8", from, end), atByte: first + from });
      from = end + 1;
    }
    const rest = bytes.subarray(from);
    if (this.#isSkipping || rest.length > this.#maxLineBytes) {
      if (!this.#isSkipping) this.#numSkipped++; // LT3
      this.#isSkipping = true;
      this.#rest = Buffer.alloc(0);
    } else this.#rest = Buffer.from(rest);
    return lines;
  }
}
