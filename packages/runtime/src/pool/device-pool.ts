/**
 * The pool of devices that several runs share, in the process that started them, or in one of its own. `DevicePoolState`
 * decides; here are the clock, and the ways to the runs.
 *
 * - PS1 while this process itself is suspended no time passes for the state: it has heard of nobody, which says nothing of them.
 * - PS8 what was measured of runs beside each other outlives the pool: it is kept in a while, and at the end.
 * - PS2 a run counts as gone, and its devices as free, only when none of its processes is left.
 */
import type { MeasuredSlowdown, PoolMember, PoolMemberView, PoolReply, PoolRequest } from "@treadle/contracts";
import { DevicePoolState, type PoolEffect, type PoolInput, type PoolLimits } from "@treadle/core";
import { CoRunner, type LiveMethod } from "@treadle/multiplexer";
import type { PoolHistoryFile } from "./pool-history-file.ts";
import { readSlowdowns, writeSlowdowns } from "./slowdown-file.ts";

export type { PoolLimits } from "@treadle/core";

export type PooledRun = {
  readonly reply: (message: PoolReply) => void;
  /** Ends every process of the run at once; `gone` follows when none is left. */
  readonly end: (why: string) => void;
};

/** How is decided which runs compute beside each other, of those that say `share: always`. */
export type SharingOptions = {
  readonly method: LiveMethod;
  /** decisions that `lookahead` follows */
  readonly window: number;
  /** a file with what was measured before, and is measured now */
  readonly slowdowns: string;
};

/** Of one run, up to now. */
export type PoolTally = Pick<PoolMemberView, "leasedMs" | "waitedMs" | "lostMs" | "queuedMs" | "leases" | "slowdown">;

const none: PoolTally = { leasedMs: 0, waitedMs: 0, lostMs: 0, queuedMs: 0, leases: 0, slowdown: undefined };
const tickMs = 100;
const keepMs = 10_000;
/** Waits that last so long are told, when their reasons change, and so often in any case. */
const [longWaitMs, tellAgainMs] = [1000, 10_000];
/** More than this between two looks at the clock was no time of this process. */
const mostElapsedMs = 2000;

export type DevicePoolOptions = {
  readonly now?: () => number;
  /** at least as large as those of processes that had the pool before */
  readonly oldToken?: number;
  /** without it, runs take turns on each device */
  readonly sharing?: SharingOptions | undefined;
  /** what of the kept slowdowns is left out */
  readonly onNotice?: ((text: string) => void) | undefined;
  /** what happens is written there; closed with the pool */
  readonly history?: PoolHistoryFile | undefined;
};

export class DevicePool {
  readonly #state: DevicePoolState;
  readonly #now: () => number;
  readonly #runs = new Map<string, PooledRun>();
  /** what runs know of their waits: for whom, and since when they know */
  readonly #told = new Map<string, { readonly why: string; readonly atMs: number }>();
  readonly #ticker: NodeJS.Timeout;
  readonly #coRunner: CoRunner | undefined;
  readonly #slowdowns: string | undefined;
  readonly #history: PoolHistoryFile | undefined;
  /** what is in the file, and since when */
  #kept = { version: 0, atMs: 0 };
  #keeping: Promise<void> = Promise.resolve();
  #lookedMs: number;
  #poolMs = 0;

  /** Throws `profile.invalid` for kept slowdowns that are none. */
  constructor(limits: PoolLimits, options: DevicePoolOptions = {}) {
    const { now = () => performance.now(), oldToken = 0, sharing, onNotice = () => {}, history } = options;
    if (sharing) {
      const { method, window, slowdowns } = sharing;
      this.#coRunner = new CoRunner({
        method,
        window,
        known: readSlowdowns(slowdowns, onNotice),
        nowMs: () => performance.now(),
      });
      this.#slowdowns = slowdowns;
    }
    this.#state = new DevicePoolState(limits, oldToken, this.#coRunner);
    this.#now = now;
    this.#history = history;
    this.#lookedMs = now();
    this.#ticker = setInterval(() => {
      this.#feed({ type: "tick" });
      this.#tellWaits();
      void this.#history?.flush();
      if (this.#poolMs - this.#kept.atMs >= keepMs) this.#keep();
    }, tickMs);
  }

  add(run: string, pooled: PooledRun): void {
    this.#runs.set(run, pooled);
  }

  /** A run that another process admitted, which had the pool before: it joins again (PD9). */
  restore(run: string, pooled: PooledRun, member: PoolMember, memoryMiB: Readonly<Record<string, number>>): void {
    this.add(run, pooled);
    this.#feed({ type: "restore", run, member, memoryMiB });
  }

  /** What the process of a run says. */
  received(run: string, request: PoolRequest): void {
    if (this.#runs.has(run)) this.#feed({ ...request, run });
  }

  /** Has it ended, with its devices kept until it is gone. */
  end(run: string, why: string): void {
    this.#feed({ type: "end", run, why });
  }

  /** PS2. Says what it was until now; nothing of one that never joined. */
  gone(run: string): PoolTally {
    const tally = this.view().find((each) => each.run === run) ?? none;
    this.#feed({ type: "gone", run });
    this.#runs.delete(run);
    this.#told.delete(run);
    return tally;
  }

  /** Who has which devices, and who waits for whom, now. */
  view(): readonly PoolMemberView[] {
    return this.#state.view(this.#time());
  }

  /** What was measured of works beside each other, in this pool and before, of those that have computed in it. */
  slowdowns(): MeasuredSlowdown[] {
    return this.#coRunner?.measured() ?? [];
  }

  async close(): Promise<void> {
    clearInterval(this.#ticker);
    this.#keep();
    await Promise.all([this.#keeping, this.#history?.close()]);
  }

  /** PS8. A disk that is full costs what was measured, and no run. */
  #keep(): void {
    const model = this.#coRunner?.model;
    if (model === undefined || model.version === this.#kept.version) return;
    this.#kept = { version: model.version, atMs: this.#poolMs };
    const [path, known] = [this.#slowdowns as string, model.known()];
    this.#keeping = this.#keeping.then(() => writeSlowdowns(path, known)).catch(() => {});
  }

  #tellWaits(): void {
    for (const { run, waits } of this.view()) {
      const told = this.#told.get(run);
      if (waits !== undefined && waits.forMs >= longWaitMs) {
        const why = `${waits.on.type} ${waits.on.runs}`;
        if (told?.why === why && this.#poolMs - told.atMs < tellAgainMs) continue;
        this.#told.set(run, { why, atMs: this.#poolMs });
        this.#runs.get(run)?.reply({ type: "waits", ...waits });
      } else if (told) {
        this.#told.delete(run);
        this.#runs.get(run)?.reply({ type: "waits", on: null, forMs: 0 });
      }
    }
  }

  /** PS1. */
  #time(): number {
    const nowMs = this.#now();
    this.#poolMs += Math.min(nowMs - this.#lookedMs, mostElapsedMs);
    this.#lookedMs = nowMs;
    return this.#poolMs;
  }

  #feed(input: PoolInput): void {
    const nowMs = this.#time();
    const effects = this.#state.handle(input, nowMs);
    if (effects.length > 0 || !isReport(input)) this.#history?.look(this.#state, nowMs);
    for (const effect of effects) this.#act(effect);
  }

  #act(effect: PoolEffect): void {
    const pooled = this.#runs.get(effect.run);
    if (!pooled) return;
    if (effect.type === "end") {
      pooled.end(effect.why);
      return;
    }
    const { run: _, ...reply } = effect;
    pooled.reply(reply);
  }
}

/** Of it nothing changes that a history has, unless something follows. */
const isReport = ({ type }: PoolInput): boolean => type === "beat" || type === "worked";
