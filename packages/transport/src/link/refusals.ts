/**
 * Says who was refused without letting strangers fill a log: a line at once, then one a minute with how many there were.
 * Pure: `nowMs` is given.
 */

const quietMs = 60_000;
/** Strangers who are told apart; the others share a line. */
const maxSources = 32;
const others = "other addresses";

type Noted = { saidMs: number; numUnsaid: number };

export class Refusals {
  readonly #sources = new Map<string, Noted>();

  /** A line to be written now, if any. */
  note(from: string, reason: string, nowMs: number): string | undefined {
    for (const [source, { saidMs, numUnsaid }] of this.#sources) {
      if (numUnsaid === 0 && nowMs - saidMs >= quietMs) this.#sources.delete(source);
    }
    const source = this.#sources.has(from) || this.#sources.size < maxSources ? from : others;
    const noted = this.#sources.get(source);
    if (noted === undefined) {
      this.#sources.set(source, { saidMs: nowMs, numUnsaid: 0 });
      return `a connection from '${source}' was refused: ${reason}`;
    }
    noted.numUnsaid++;
    if (nowMs - noted.saidMs < quietMs) return undefined;
    const line = `'${noted.numUnsaid}' more connections from '${source}' were refused; the last: ${reason}`;
    this.#sources.set(source, { saidMs: nowMs, numUnsaid: 0 });
    return line;
  }
}
