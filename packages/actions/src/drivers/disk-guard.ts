/**
 * Ends the sandbox that has written most when the disk with all their images has no room left. The file systems in these images do not
 * know that it is full: what programs write there would be lost without a word (CG12).
 */
import { statfs } from "node:fs/promises";
import { Rounds } from "./rounds.ts";

const usualLookMs = 500;
const gibibyte = 2 ** 30;

export type Room = { readonly freeBytes: number; readonly totalBytes: number };

export async function roomIn(folder: string): Promise<Room> {
  const { bsize, bavail, blocks } = await statfs(folder);
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}

/** What is left free: more than waits to be written at any time. */
export const reserveOf = ({ totalBytes }: Room): number => Math.min(2 * gibibyte, totalBytes * 0.05);

export const lacksRoom = (room: Room): boolean => room.freeBytes < reserveOf(room);

type Guarded = { readonly writtenBytes: () => Promise<number>; readonly end: (why: string) => Promise<void> };

export class DiskGuard {
  readonly #room: () => Promise<Room>;
  readonly #guarded = new Set<Guarded>();
  readonly #rounds: Rounds;

  constructor(room: () => Promise<Room>, lookMs = usualLookMs) {
    this.#room = room;
    this.#rounds = new Rounds(
      () => this.#look(), // a folder that cannot be asked is told by who uses it
      () => lookMs,
    );
  }

  /** Until what it returns is called. */
  guard(one: Guarded): () => void {
    this.#guarded.add(one);
    this.#rounds.start();
    return () => {
      this.#guarded.delete(one);
      if (this.#guarded.size === 0) this.#rounds.stop();
    };
  }

  async #look(): Promise<void> {
    const room = await this.#room();
    if (!lacksRoom(room)) return;
    const written = await Promise.all(
      [...this.#guarded].map(async (one) => ({ one, bytes: await one.writtenBytes().catch(() => 0) })),
    );
    const largest = written.toSorted((a, b) => b.bytes - a.bytes)[0];
    if (largest === undefined || !this.#guarded.delete(largest.one)) return;
    await largest.one.end(
      `the disk of its machine is full: it has ${room.freeBytes} bytes left, and of all sandboxes this one wrote most, ${largest.bytes} bytes`,
    );
  }
}
