/**
 * What gets through of messages of which the newest under each subject says all: members' beats and entries. Pure: it is told when
 * messages arrive and when a window ends.
 *
 * - FG1 within a window so many messages and bytes of each subject pass, and of all subjects together; one of a subject passes
 *    however large it is, as long as there is room for all.
 * - FG2 of the others the newest of each subject is kept, for so many subjects, and is told at the window's end.
 */
export type FloodLimits = {
  /** of each subject in a window */
  readonly messages: number;
  readonly bytes: number;
  /** of all subjects together */
  readonly allMessages: number;
  readonly allBytes: number;
  /** that are kept until its end */
  readonly kept: number;
};

/** Many times what members say, whose beats come a few times a second, and little beside what a process reads in 100 ms. */
export const memberFlood: FloodLimits = {
  ...{ messages: 20, bytes: 65_536 },
  ...{ allMessages: 2000, allBytes: 2 ** 20, kept: 1000 },
};
export const floodWindowMs = 100;
/** Of what a member says of itself, which everybody reads: a node with a thousand workers says half of that. */
export const maxEntryBytes = 131_072;

type Passed = { messages: number; bytes: number };

export class FloodGate<T> {
  readonly #limits: FloodLimits;
  readonly #passed = new Map<string, Passed>();
  readonly #all: Passed = { messages: 0, bytes: 0 };
  readonly #kept = new Map<string, T>();

  constructor(limits: FloodLimits) {
    this.#limits = limits;
  }

  /** Whether the message passes now. */
  arrives(subject: string, bytes: number, message: T): boolean {
    const own = this.#passed.get(subject) ?? { messages: 0, bytes: 0 };
    const { messages, bytes: most, allMessages, allBytes, kept } = this.#limits;
    const hasRoom = own.messages === 0 || (own.messages < messages && own.bytes + bytes <= most);
    const hasRoomInAll = this.#all.messages < allMessages && this.#all.bytes + bytes <= allBytes;
    if (hasRoom && hasRoomInAll && !this.#kept.has(subject)) {
      for (const each of [own, this.#all]) {
        each.messages++;
        each.bytes += bytes;
      }
      this.#passed.set(subject, own);
      return true;
    }
    if (this.#kept.has(subject) || this.#kept.size < kept) this.#kept.set(subject, message);
    return false;
  }

  /** The window is over: what was kept, in the order in which subjects came to it. */
  ends(): T[] {
    const told = [...this.#kept.values()];
    this.#kept.clear();
    this.#passed.clear();
    this.#all.messages = 0;
    this.#all.bytes = 0;
    return told;
  }
}
