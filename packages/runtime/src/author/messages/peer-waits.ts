/**
 * The waits of a worker for others that have a deadline: for messages of collectives, for the receivers of its own, and for
 * answers.
 *
 * - AW1 a wait ends with what was waited for, with the failure of that, or after the limit with `worker.late`, which names who
 *   holds it up.
 * - AW2 what comes while the one that holds it up is looked for still counts: a worker that was suspended itself blames nobody
 *   for that.
 * - AW3 a wait for a worker that is starting, or has no place, goes on: the supervisor gives up on that one, or has it back.
 * - AW4 whoever has given up still says for whom it waited, so that those that wait for it blame the same one.
 */
import { TreadleError } from "@treadle/contracts";
import { findHoldUp, type HoldUp, type Said } from "./hold-up.ts";

export type PeerWait = {
  /** the one that is waited for */
  readonly worker: string;
  /** as in `waited for ${what} of 'actor/0'` */
  readonly what: string;
  /** in a word or two, for whoever watches */
  readonly kind: string;
  /** default: the worker's own */
  readonly limitMs?: number;
};

export type PeerWaitsPorts = {
  /** the worker whose waits they are */
  readonly self: string;
  readonly limitMs: number;
  /** Asks another worker for whom it waits. */
  readonly ask: (worker: string) => Promise<Said>;
};

type Blamed = Exclude<HoldUp, { readonly why: "absent" }>;
type Open = PeerWait & { readonly sinceMs: number; hasFailed: boolean };

export class PeerWaits {
  readonly #ports: PeerWaitsPorts;
  readonly #open = new Set<Open>();

  constructor(ports: PeerWaitsPorts) {
    this.#ports = ports;
  }

  /** For whom it waits now, or has just waited in vain (AW4). */
  get waitsFor(): string[] {
    return [...new Set([...this.#open].map(({ worker }) => worker))];
  }

  /** The waits that have lasted longer than so. */
  longerThan(ms: number): { from: string; what: string }[] {
    const untilMs = performance.now() - ms;
    const late = [...this.#open].filter(({ sinceMs, hasFailed }) => sinceMs < untilMs && !hasFailed);
    return late.map(({ worker, kind }) => ({ from: worker, what: kind }));
  }

  /** What `begin` resolves with; its signal aborts when nobody waits for it any more (AW1). */
  async within<T>(wait: PeerWait, begin: (signal: AbortSignal) => PromiseLike<T>): Promise<T> {
    const limitMs = wait.limitMs ?? this.#ports.limitMs;
    const open: Open = { ...wait, sinceMs: performance.now(), hasFailed: false };
    const end = new AbortController();
    let timer: NodeJS.Timeout | undefined;
    this.#open.add(open);
    try {
      const done = Promise.resolve(begin(end.signal)).then((value) => ({ value }));
      done.catch(() => {}); // nobody may wait for it any more
      for (;;) {
        const limit = new Promise<undefined>((resolve) => {
          timer = setTimeout(() => resolve(undefined), limitMs).unref();
        });
        const first = (await Promise.race([done, limit])) ?? (await Promise.race([done, this.#holdUp(wait.worker)]));
        clearTimeout(timer);
        if ("value" in first) return first.value; // AW2
        if (first.why === "absent") continue; // AW3
        const error = this.#late(wait, first, Math.round(performance.now() - open.sinceMs));
        open.hasFailed = true;
        end.abort(error);
        throw error;
      }
    } finally {
      clearTimeout(timer);
      if (open.hasFailed) setTimeout(() => this.#open.delete(open), limitMs).unref();
      else this.#open.delete(open);
    }
  }

  async #holdUp(awaited: string): Promise<HoldUp> {
    const search = findHoldUp(this.#ports.self, awaited);
    let step = search.next();
    while (!step.done) step = search.next(await this.#ports.ask(step.value));
    return step.value;
  }

  #late({ worker, what }: PeerWait, holdUp: Blamed, waitedMs: number): TreadleError {
    const culprit = holdUp.worker;
    const by = culprit === worker ? "" : `: it is held up by '${culprit}'`;
    const message = `'${this.#ports.self}' waited ${waitedMs} ms for ${what} of '${worker}'${by}, ${reasons[holdUp.why]}; or raise supervision.peerTimeoutMs`;
    return new TreadleError("worker.late", message, {
      details: { culprit, awaited: worker, what, waitedMs, why: holdUp.why },
      origin: { worker: culprit },
    });
  }
}

const reasons: Readonly<Record<Blamed["why"], string>> = {
  silent: "which does not answer; see whether it is stopped, or computes without a pause",
  elsewhere:
    "which answers, and waits for nobody; see in its log what it does instead, and have all ranks make the same collectives in the same order",
  circle:
    "which waits in a circle with those that wait for it; have all ranks make the same collectives in the same order",
};
