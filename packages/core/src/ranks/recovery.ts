/** Where the time goes from a worker's last sign of life until its successor goes on. Pure: the fleet says when what happened. */

/**
 * In seconds: until its end was known; until it had a place; until the new process had reached the runner; until it had
 * loaded its class and its state; and, of what is redone, the calls that are replayed to it before any work, together with
 * what the calls that start over had taken already by its last sign of life.
 */
export type RecoverySeconds = {
  readonly detection: number;
  readonly placement: number;
  readonly start: number;
  readonly state: number;
  readonly redone: number;
};

export type RecoveryMark = "placed" | "reached" | "ready" | "up";

export class RecoveryClock {
  readonly #heardMs: number;
  readonly #knownMs: number;
  readonly #lostMs: number;
  readonly #marks = new Map<RecoveryMark, number>();

  /** `heardMs`: its last sign of life; `lostMs`: how long the oldest call that starts over had run by then. */
  constructor({ heardMs, knownMs, lostMs }: { heardMs: number; knownMs: number; lostMs: number }) {
    this.#heardMs = Math.min(heardMs, knownMs);
    this.#knownMs = knownMs;
    this.#lostMs = lostMs;
  }

  /** The first of each counts. */
  mark(what: RecoveryMark, nowMs: number): void {
    if (!this.#marks.has(what)) this.#marks.set(what, nowMs);
  }

  seconds(): RecoverySeconds {
    const at = (what: RecoveryMark, before: number) => Math.max(before, this.#marks.get(what) ?? before);
    const placedMs = at("placed", this.#knownMs);
    const reachedMs = at("reached", placedMs);
    const readyMs = at("ready", reachedMs);
    const upMs = at("up", readyMs);
    return {
      detection: (this.#knownMs - this.#heardMs) / 1000,
      placement: (placedMs - this.#knownMs) / 1000,
      start: (reachedMs - placedMs) / 1000,
      state: (readyMs - reachedMs) / 1000,
      redone: (upMs - readyMs + this.#lostMs) / 1000,
    };
  }
}
