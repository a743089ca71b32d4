/**
 * What a worker computes while it has its devices, said at each end of a turn, and whenever the runs that compute beside it change,
 * so that each piece is about one neighbour. It counts nothing before somebody wants to know.
 */
import type { WorkDone } from "@treadle/contracts";
import { queuedMs } from "./call/run-queue.ts";

type Since = { readonly ms: number; readonly cpuMs: number; readonly queuedMs: number };
/** What an engine has computed; `isEmulated`: its milliseconds are of a profile, whoever has the processors. */
type Sums = Pick<WorkDone, "passes" | "tokens" | "ms"> & { readonly isEmulated?: true };

export type WorkTurnsPorts = {
  /** what the engine has computed since this was asked last; undefined where it does not count */
  readonly takeWork: () => Sums | undefined;
  readonly tell: (done: WorkDone) => void;
  readonly now?: () => number;
  readonly cpuMs?: () => number;
  readonly queuedMs?: () => number | undefined;
};

export class WorkTurns {
  readonly #ports: WorkTurnsPorts;
  readonly #now: () => number;
  readonly #cpuMs: () => number;
  readonly #queuedMs: () => number | undefined;
  #beside: readonly string[] | undefined;
  #onBeside: (works: readonly string[]) => void = () => {};
  #numHolding = 0;
  /** since it was said last, or since the turn began */
  #since: Since | undefined;
  /** one pass for the whole turn can be told: nothing of it was said before, and it had the devices throughout */
  #isWhole = true;

  constructor(ports: WorkTurnsPorts) {
    this.#ports = ports;
    this.#now = ports.now ?? (() => performance.now());
    this.#cpuMs = ports.cpuMs ?? cpuMs;
    this.#queuedMs = ports.queuedMs ?? queuedMs;
  }

  /** Told at once, and whenever it changes, what computes on the devices in other runs. */
  onBeside(listener: (works: readonly string[]) => void): void {
    this.#onBeside = listener;
    if (this.#beside) listener(this.#beside);
  }

  /** From the first time on, what is computed is told. */
  beside(works: readonly string[]): void {
    if (this.#since) this.#say(this.#since, false);
    this.#beside = works;
    this.#onBeside(works);
  }

  /** A call has the devices. */
  granted(): void {
    if (this.#numHolding++ > 0 || this.#beside === undefined) return;
    this.#ports.takeWork();
    this.#isWhole = true;
    this.#begin();
  }

  /** A call lends them: what others then compute there is not this worker's. */
  lent(): void {
    this.#isWhole = false;
  }

  /** A call is about to give them back. */
  released(): void {
    this.#numHolding = Math.max(0, this.#numHolding - 1);
    if (this.#numHolding > 0 || this.#since === undefined) return;
    this.#say(this.#since, true);
    this.#since = undefined;
  }

  #begin(): void {
    this.#since = { ms: this.#now(), cpuMs: this.#cpuMs(), queuedMs: this.#queuedMs() ?? 0 };
  }

  #say(since: Since, ends: boolean): void {
    const forMs = this.#now() - since.ms;
    const counted = this.#ports.takeWork();
    const ofTurn = ends && this.#isWhole ? { passes: 1, tokens: 0, ms: forMs } : { passes: 0, tokens: 0, ms: 0 };
    const { isEmulated, ...sums } = counted ?? { ...ofTurn, isEmulated: undefined };
    const processors = {
      cpuMs: this.#cpuMs() - since.cpuMs,
      queuedMs: isEmulated ? 0 : Math.max(0, (this.#queuedMs() ?? 0) - since.queuedMs),
    };
    if (sums.ms > 0 || ends)
      this.#ports.tell({ beside: [...(this.#beside ?? [])], ...sums, ...processors, forMs, ends });
    this.#isWhole = false;
    this.#begin();
  }
}

/** Of the process, so far. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
