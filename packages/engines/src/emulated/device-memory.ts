import type { MemoryTag } from "@treadle/contracts";

/**
 * The memory of one device: which component holds how much of it, and for what. A pure state machine over records; all
 * processes that use the device read them in one order.
 *
 * - EM1 what is held never exceeds the capacity: a record that would is refused whole, and changes nothing.
 * - EM2 a process that has ended holds nothing.
 * - EM3 equal records in equal order have equal answers, so processes that share a log agree without asking each other.
 */
export type MemoryRecord =
  /** a component's bytes under a tag become these */
  | {
      readonly type: "set";
      readonly process: number;
      readonly component: string;
      readonly tag: MemoryTag;
      readonly bytes: number;
    }
  | { readonly type: "ended"; readonly process: number };

export type Held = { readonly process: number; readonly component: string; readonly tag: MemoryTag; bytes: number };

export class DeviceMemory {
  readonly capacityBytes: number;
  readonly #held = new Map<string, Held>();

  constructor(capacityBytes: number) {
    this.capacityBytes = capacityBytes;
  }

  get held(): readonly Held[] {
    return [...this.#held.values()];
  }

  get usedBytes(): number {
    return this.held.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** How many bytes were missing; 0 when it is done. */
  apply(record: MemoryRecord): number {
    if (record.type === "ended") {
      for (const [key, { process }] of this.#held) if (process === record.process) this.#held.delete(key); // EM2
      return 0;
    }
    const { process, component, tag, bytes } = record;
    const key = `${process} ${component} ${tag}`;
    const before = this.#held.get(key)?.bytes ?? 0;
    const missingBytes = this.usedBytes - before + bytes - this.capacityBytes;
    if (bytes > before && missingBytes > 0) return missingBytes; // EM1
    if (bytes === 0) this.#held.delete(key);
    else this.#held.set(key, { process, component, tag, bytes });
    return 0;
  }
}
