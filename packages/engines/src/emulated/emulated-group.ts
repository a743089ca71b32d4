import { type Clock, TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import { FileLog, MemoryLog, type SharedLog } from "./shared-log.ts";

type Arrival = { readonly meeting: string; readonly rank: number; readonly round: number; readonly left?: true };

/** How often ranks of other processes are looked for. */
const lookMs = 5;

/**
 * The ranks that compute together: in a collective all of them meet, or each hangs until its deadline, as over NCCL. With
 * `shared` the ranks are processes that open the same file, each its own group object; without, they share this one.
 *
 * - EG1 a round ends for all of its ranks, or for none of them: one that gave up is missed by those that come later.
 * - EG2 ranks meet those of their own meeting alone: what an earlier start of the group has left in the file is nobody's presence.
 */
export class EmulatedGroup {
  readonly #ranks: readonly number[];
  readonly #log: SharedLog<Arrival>;
  readonly #meeting: string;
  readonly #clock: Clock;
  readonly #deadlineMs: number;
  /** by round: the ranks that are there, and those that gave up; a round that all have come to stays as it is */
  readonly #rounds = new Map<number, { readonly present: Set<number>; readonly left: Set<number> }>();
  readonly #nextRound = new Map<number, number>();

  constructor(options: {
    readonly size: number;
    /** its ranks follow one another from this one on; default 0 */
    readonly firstRank?: number | undefined;
    readonly deadlineMs: number;
    /** `meeting` tells this start of the ranks from every other on the same file; all of them have the same */
    readonly shared?: { readonly path: string; readonly meeting: string } | undefined;
    readonly clock?: Clock | undefined;
  }) {
    const { size, firstRank = 0 } = options;
    this.#ranks = Array.from({ length: size }, (_, at) => firstRank + at);
    this.#deadlineMs = options.deadlineMs;
    this.#clock = options.clock ?? systemClock;
    this.#log = options.shared === undefined ? new MemoryLog() : new FileLog(options.shared.path);
    this.#meeting = options.shared?.meeting ?? "";
  }

  /** Resolves when all ranks are in the same round of theirs. Throws `engine.collective-timeout` that names the missing ones. */
  async meet(rank: number, what: string): Promise<void> {
    const round = this.#nextRound.get(rank) ?? 0;
    this.#nextRound.set(rank, round + 1);
    this.#arrive({ rank, round });
    const endMs = this.#clock.now() + this.#deadlineMs;
    for (let missing = this.#missing(round); missing.length > 0; missing = this.#missing(round)) {
      const leftMs = endMs - this.#clock.now();
      if (leftMs <= 0) {
        this.#arrive({ rank, round, left: true }); // EG1
        if (this.#missing(round).length === 0) return;
        throw this.#tooLate(round, rank, what, missing);
      }
      await new Promise<void>((resolve) => this.#clock.after(Math.min(lookMs, leftMs), resolve));
    }
  }

  #arrive(arrival: Omit<Arrival, "meeting">): void {
    this.#log.append({ meeting: this.#meeting, ...arrival });
  }

  #missing(round: number): number[] {
    for (const arrival of this.#log.read()) {
      if (arrival.meeting !== this.#meeting) continue; // EG2
      const { present, left } = this.#round(arrival.round);
      if (!arrival.left) present.add(arrival.rank);
      else if (present.size < this.#ranks.length && present.delete(arrival.rank)) left.add(arrival.rank);
    }
    const { present } = this.#round(round);
    return this.#ranks.filter((rank) => !present.has(rank));
  }

  #round(round: number) {
    const known = this.#rounds.get(round) ?? { present: new Set<number>(), left: new Set<number>() };
    this.#rounds.set(round, known);
    return known;
  }

  /** Names those that never came, where there are such. */
  #tooLate(round: number, rank: number, what: string, absent: readonly number[]): TreadleError {
    const never = absent.filter((each) => !this.#round(round).left.has(each));
    const missing = never.length > 0 ? never : absent;
    return new TreadleError(
      "engine.collective-timeout",
      `rank '${rank}' waited ${this.#deadlineMs} ms in '${what}' for ranks ${missing.join(", ")} of ${this.#ranks.join(", ")}; every rank must make the same calls in the same order`,
      { details: { rank, missing, round } },
    );
  }
}
