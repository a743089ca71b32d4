/** Which commands were heard already. Pure. Each sender numbers its own, which may overtake one another by a little. */

const window = 1024;

export class SeenCommands {
  readonly #senders = new Map<string, { highest: number; readonly seen: Set<number> }>();

  readonly #maxSenders: number;

  /** Of more than so many the oldest is forgotten. */
  constructor(maxSenders: number) {
    this.#maxSenders = maxSenders;
  }

  /** Whether this one was not heard before; from now on it was. One that is later than the window was. */
  isNew(sender: string, sequence: number): boolean {
    const known = this.#senders.get(sender) ?? { highest: sequence, seen: new Set<number>() };
    this.#senders.delete(sender);
    this.#senders.set(sender, known); // the one that was heard last is forgotten last
    if (sequence <= known.highest - window || known.seen.has(sequence)) return false;
    known.seen.add(sequence);
    known.highest = Math.max(known.highest, sequence);
    if (known.seen.size > window) {
      for (const each of known.seen) if (each <= known.highest - window) known.seen.delete(each);
    }
    if (this.#senders.size > this.#maxSenders) this.#senders.delete(this.#senders.keys().next().value as string);
    return true;
  }
}
