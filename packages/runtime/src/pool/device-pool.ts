/**
 * The pool of devices that several runs share, in the process that started them. `DevicePoolState` decides; here are the
 * clock, and the ways to the runs.
 *
 * - PS1 while this process itself is suspended no time passes for the state: it has heard of nobody, which says nothing of them.
 * - PS2 a run counts as gone, and its devices as free, only when none of its processes is left.
 */
import type { PoolReply, PoolRequest } from "@treadle/contracts";
import { DevicePoolState, type PoolEffect, type PoolInput, type PoolLimits } from "@treadle/core";

export type { PoolLimits } from "@treadle/core";

type PooledRun = {
  readonly reply: (message: PoolReply) => void;
  /** Ends every process of the run at once; `gone` follows when none is left. */
  readonly end: (why: string) => void;
};

/** Of one run, up to now. */
export type PoolTally = {
  /** it had devices leased */
  readonly leasedMs: number;
  /** it had asked for devices that others had */
  readonly waitedMs: number;
  /** from joining to its admission */
  readonly queuedMs: number;
  readonly leases: number;
};

type Account = {
  -readonly [Key in keyof PoolTally]: PoolTally[Key];
} & { joinedMs: number | undefined; askedMs: number | undefined; grantedMs: number | undefined };

const tickMs = 100;
/** More than this between two looks at the clock was no time of this process. */
const mostElapsedMs = 2000;

export class DevicePool {
  readonly #state: DevicePoolState;
  readonly #now: () => number;
  readonly #runs = new Map<string, PooledRun>();
  readonly #accounts = new Map<string, Account>();
  readonly #ticker: NodeJS.Timeout;
  #lookedMs: number;
  #poolMs = 0;

  constructor(limits: PoolLimits, now: () => number = () => performance.now()) {
    this.#state = new DevicePoolState(limits);
    this.#now = now;
    this.#lookedMs = now();
    this.#ticker = setInterval(() => this.#feed({ type: "tick" }), tickMs);
  }

  add(run: string, pooled: PooledRun): void {
    this.#runs.set(run, pooled);
    const none = { leasedMs: 0, waitedMs: 0, queuedMs: 0, leases: 0 };
    this.#accounts.set(run, { ...none, joinedMs: undefined, askedMs: undefined, grantedMs: undefined });
  }

  /** What the process of a run says. */
  received(run: string, request: PoolRequest): void {
    const account = this.#accounts.get(run);
    if (!account) return;
    if (request.type === "join") account.joinedMs = this.#time();
    else if (request.type === "request") account.askedMs = this.#time();
    else if (request.type === "release") this.#ended(account);
    this.#feed({ ...request, run });
  }

  /** PS2. */
  gone(run: string): void {
    const account = this.#accounts.get(run);
    if (account) this.#ended(account);
    this.#feed({ type: "gone", run });
    this.#runs.delete(run);
  }

  tally(run: string): PoolTally {
    const { leasedMs = 0, waitedMs = 0, queuedMs = 0, leases = 0 } = this.#accounts.get(run) ?? {};
    return { leasedMs, waitedMs, queuedMs, leases };
  }

  close(): void {
    clearInterval(this.#ticker);
  }

  #ended(account: Account): void {
    if (account.grantedMs !== undefined) account.leasedMs += this.#time() - account.grantedMs;
    if (account.askedMs !== undefined) account.waitedMs += this.#time() - account.askedMs;
    account.grantedMs = undefined;
    account.askedMs = undefined;
  }

  /** PS1. */
  #time(): number {
    const nowMs = this.#now();
    this.#poolMs += Math.min(nowMs - this.#lookedMs, mostElapsedMs);
    this.#lookedMs = nowMs;
    return this.#poolMs;
  }

  #feed(input: PoolInput): void {
    for (const effect of this.#state.handle(input, this.#time())) this.#act(effect);
  }

  #act(effect: PoolEffect): void {
    const account = this.#accounts.get(effect.run);
    const run = this.#runs.get(effect.run);
    if (!run || !account) return;
    if (effect.type === "end") {
      run.end(effect.why);
      return;
    }
    if (effect.type === "admitted") account.queuedMs = this.#time() - (account.joinedMs ?? this.#time());
    if (effect.type === "granted") {
      account.waitedMs += this.#time() - (account.askedMs ?? this.#time());
      Object.assign(account, { askedMs: undefined, grantedMs: this.#time(), leases: account.leases + 1 });
    }
    const { run: _, ...reply } = effect;
    run.reply(reply);
  }
}
