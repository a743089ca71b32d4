import { z } from "zod";
import type { Grant, ResourceManager, ResourceRequest, Spending } from "./manager.ts";

const limit = z.number().positive();
const rate = {
  /** units in a period */
  limit,
  /** of a period */
  periodMs: z.number().positive(),
};

/** A limit on use over time. */
export const QuotaWindow = z.discriminatedUnion("type", [
  /** at most `limit` in each period, counted from time 0 */
  z.strictObject({ type: z.literal("fixed"), ...rate }),
  /** at most `limit` in any stretch of one period */
  z.strictObject({ type: z.literal("sliding"), ...rate }),
  z.strictObject({
    type: z.literal("bucket"),
    ...rate,
    /** units that it holds; default: `limit` */
    burst: limit.optional(),
  }),
]);
export type QuotaWindow = z.infer<typeof QuotaWindow>;

/** An external service that limits how many calls run at once, how many start in a period, or both (§5.1). */
export const Quota = z
  .strictObject({
    /** units in use at once; default: any number */
    concurrency: z.int().positive().optional(),
    /** limits on units over time, all of which hold: in each period from time 0 (`fixed`), in any stretch of one (`sliding`), refilled evenly (`bucket`) */
    windows: z.array(QuotaWindow).default([]),
  })
  .refine((q) => q.concurrency !== undefined || q.windows.length > 0, {
    message: "give concurrency, windows, or both; an unlimited service needs no manager",
  });
export type Quota = z.input<typeof Quota>;

/** `rate`: the part of its limit that is used for now, as learned. */
interface WindowState {
  free(nowMs: number, rate: number): number;
  use(units: number, nowMs: number, rate: number): void;
  /** when more is free, in ms from now: so many units, or one more whole one where there are so many already */
  nextMs(nowMs: number, units: number, rate: number): number;
  /** Nothing of it counts that is older, where that may be used. */
  isFresh(nowMs: number): boolean;
  /** The service takes nothing until then, and less from then on. */
  refused(untilMs: number, rate: number): void;
}

function fixedWindow({ limit, periodMs }: { limit: number; periodMs: number }): WindowState {
  let period = -1;
  let used = 0;
  const turn = (nowMs: number): void => {
    const current = Math.floor(nowMs / periodMs);
    if (current !== period) used = 0;
    period = current;
  };
  return {
    free(nowMs, rate) {
      turn(nowMs);
      return limit * rate - used;
    },
    use(units, nowMs) {
      turn(nowMs);
      used += units;
    },
    nextMs: (nowMs) => (Math.floor(nowMs / periodMs) + 1) * periodMs - nowMs,
    isFresh(nowMs) {
      turn(nowMs);
      return used === 0;
    },
    refused() {},
  };
}

function slidingWindow({ limit, periodMs }: { limit: number; periodMs: number }): WindowState {
  let uses: { at: number; units: number }[] = [];
  let used = 0;
  const forget = (nowMs: number): void => {
    let gone = 0;
    while (gone < uses.length && uses[gone]!.at + periodMs <= nowMs) used -= uses[gone++]!.units;
    if (gone > 0) uses = uses.slice(gone);
  };
  return {
    free(nowMs, rate) {
      forget(nowMs);
      return limit * rate - used;
    },
    use(units, nowMs) {
      forget(nowMs);
      uses.push({ at: nowMs, units });
      used += units;
    },
    nextMs: (nowMs) => Math.max(0, (uses[0]?.at ?? nowMs - periodMs) + periodMs - nowMs),
    isFresh(nowMs) {
      forget(nowMs);
      return uses.length === 0;
    },
    refused() {},
  };
}

function tokenBucket(window: { limit: number; periodMs: number; burst?: number | undefined }): WindowState {
  const { limit, periodMs, burst = limit } = window;
  let tokens = burst;
  let at: number | undefined;
  const refill = (nowMs: number, rate: number): void => {
    if (at !== undefined && nowMs < at) return;
    tokens = Math.min(burst, tokens + ((nowMs - (at ?? nowMs)) * limit * rate) / periodMs);
    at = nowMs;
  };
  return {
    free(nowMs, rate) {
      refill(nowMs, rate);
      // Refills add up fractions; a millionth short of a whole unit is a whole one.
      return tokens + 1e-6;
    },
    use(units, nowMs, rate) {
      refill(nowMs, rate);
      tokens -= units;
    },
    nextMs(nowMs, units, rate) {
      refill(nowMs, rate);
      const wanted = units > tokens + 1e-6 ? Math.min(units, burst) : Math.floor(tokens + 1e-6) + 1;
      return Math.max(1, ((wanted - tokens) * periodMs) / (limit * rate));
    },
    // It fills up to its burst however slowly, so that the largest call is only a matter of time.
    isFresh: () => false,
    refused(untilMs, rate) {
      tokens = Math.min(tokens, burst * rate);
      at = Math.max(at ?? untilMs, untilMs);
    },
  };
}

const firstBackoffMs = 1000;
const longestBackoffMs = 60_000;
/** Services ask for minutes. What asks for more is asked again then, or one wrong header would stop everybody for good. */
const longestRetryAfterMs = 600_000;

/** A service that refuses everything is still asked, this part of what was configured. */
const leastRate = 1 / 64;
const rateStep = 1 / 16;

/**
 * The quota manager (§5.1). Beyond the configured limits it learns: a refusal by the service (status 429) stops all calls until
 * Retry-After (ten minutes at most), or for a doubling time without it. It halves how many may run at once and how many may start
 * in a period. Every full round of successes allows one more at once, and a sixteenth of the limit more in a period, up to what
 * was configured.
 *
 * QM1 a call that asks for more than was learned, though not for more than was configured, runs when nothing else does: no
 *    refusal makes an action impossible.
 */
export class QuotaManager implements ResourceManager {
  readonly resource: string;
  readonly capacity: number;
  /** Where only rates are limited, a call that runs takes nothing from anybody. */
  readonly mostHeld: number;
  readonly #limits: readonly QuotaWindow[];
  readonly #windows: readonly WindowState[];
  readonly #concurrency: number;
  readonly #running = new Map<string, number>();
  #inUse = 0;
  #learned: number;
  #successes = 0;
  #rate = 1;
  #rateSuccesses = 0;
  /** the most that any action needs of those that wait, as of a decision (QM1) */
  #wanted = { atMs: Number.NaN, units: 0 };
  #blockedUntilMs = Number.NEGATIVE_INFINITY;
  #backoffMs = firstBackoffMs;

  /** Throws a ZodError where the quota is invalid. */
  constructor(resource: string, quota: Quota) {
    const { concurrency, windows } = Quota.parse(quota);
    this.resource = resource;
    this.#concurrency = concurrency ?? Number.POSITIVE_INFINITY;
    this.mostHeld = this.#concurrency;
    this.#learned = this.#concurrency;
    this.#limits = windows;
    this.#windows = windows.map((w) =>
      w.type === "fixed" ? fixedWindow(w) : w.type === "sliding" ? slidingWindow(w) : tokenBucket(w),
    );
    this.capacity = Math.min(
      this.#concurrency,
      ...windows.map((w) => (w.type === "bucket" ? (w.burst ?? w.limit) : w.limit)),
    );
  }

  /** How many may run at once now, as learned. */
  get concurrency(): number {
    return this.#learned;
  }

  /** Of what may start in a period, as a part of what was configured, as learned. */
  get rate(): number {
    return this.#rate;
  }

  bind({ minimum }: ResourceRequest, nowMs: number): string {
    const units = this.#wanted.atMs === nowMs ? Math.max(minimum, this.#wanted.units) : minimum;
    this.#wanted = { atMs: nowMs, units };
    return this.resource;
  }

  home(): undefined {
    return undefined;
  }

  pools(nowMs: number): ReadonlyMap<string, { free: number }> {
    return new Map([[this.resource, { free: this.#free(nowMs) }]]);
  }

  acquire(pool: string, request: ResourceRequest, units: number, nowMs: number): Grant | undefined {
    if (units > this.#free(nowMs) + 1e-9) return undefined;
    for (const window of this.#windows) window.use(units, nowMs, this.#rate);
    this.#running.set(request.actionId, units);
    this.#inUse += units;
    return { resource: this.resource, pool, units };
  }

  release(actionId: string): void {
    this.#inUse -= this.#running.get(actionId) ?? 0;
    this.#running.delete(actionId);
  }

  endTrajectory(): void {}

  spends(units: number): readonly Spending[] {
    return this.#limits.map(({ limit, periodMs }) => ({ share: units / limit, forMs: periodMs }));
  }

  /** The service answered. */
  succeeded(): void {
    this.#backoffMs = firstBackoffMs;
    this.#winBackRate();
    if (this.#learned >= this.#concurrency) return;
    this.#successes++;
    if (this.#successes < this.#learned) return;
    this.#successes = 0;
    this.#learned++;
  }

  #winBackRate(): void {
    if (this.#rate >= 1) return;
    this.#rateSuccesses++;
    if (this.#rateSuccesses < this.#rate * Math.min(...this.#limits.map(({ limit }) => limit))) return;
    this.#rateSuccesses = 0;
    this.#rate = Math.min(1, this.#rate + rateStep);
  }

  /** The service refused a call because there were too many; `retryAfterMs` is what it asked for, if it did. Returns how long all calls wait. */
  throttled(nowMs: number, retryAfterMs?: number): number {
    const alreadyBlocked = nowMs < this.#blockedUntilMs;
    // Calls that ran together are refused together: that is one signal, not many.
    const waitMs = Math.min(retryAfterMs ?? (alreadyBlocked ? 0 : this.#backoffMs), longestRetryAfterMs);
    this.#blockedUntilMs = Math.max(this.#blockedUntilMs, nowMs + waitMs);
    this.#successes = 0;
    this.#rateSuccesses = 0;
    const lessRate = alreadyBlocked ? this.#rate : Math.max(leastRate, this.#rate / 2);
    for (const window of this.#windows) {
      window.free(nowMs, this.#rate);
      window.refused(this.#blockedUntilMs, lessRate);
    }
    const blockedMs = this.#blockedUntilMs - nowMs;
    if (alreadyBlocked) return blockedMs;
    if (retryAfterMs === undefined) this.#backoffMs = Math.min(longestBackoffMs, this.#backoffMs * 2);
    if (this.#windows.length > 0) this.#rate = lessRate;
    if (Number.isFinite(this.#concurrency))
      this.#learned = Math.max(1, Math.floor(Math.min(this.#learned, Math.max(1, this.#inUse)) / 2));
    return blockedMs;
  }

  nextChangeMs(nowMs: number, units = 1): number | undefined {
    if (nowMs < this.#blockedUntilMs) return this.#blockedUntilMs - nowMs;
    const rate = this.#rate;
    const waits = this.#windows
      .filter((w) => w.free(nowMs, rate) < this.capacity && !w.isFresh(nowMs))
      .map((w) => w.nextMs(nowMs, units, rate));
    return waits.length === 0 ? undefined : Math.min(...waits);
  }

  #free(nowMs: number): number {
    if (nowMs < this.#blockedUntilMs) return 0;
    const wanted = Math.min(this.capacity, this.#wanted.atMs === nowMs ? this.#wanted.units : 0); // QM1
    let free = this.#inUse > 0 ? this.#learned - this.#inUse : Math.max(this.#learned, wanted);
    for (const window of this.#windows) {
      const left = window.free(nowMs, this.#rate);
      free = Math.min(free, window.isFresh(nowMs) ? Math.max(left, wanted) : left);
    }
    return Math.max(0, free);
  }
}

/** Reads a Retry-After header: seconds, or an HTTP date relative to `wallNowMs`. Undefined when it is neither. */
export function parseRetryAfter(header: string | null | undefined, wallNowMs: number): number | undefined {
  const said = header?.trim() ?? "";
  if (/^\d+(\.\d+)?$/.test(said)) return Number(said) * 1000;
  // Every HTTP date begins with its weekday; without one, `Date.parse` makes a year of any number.
  const at = /^(mon|tue|wed|thu|fri|sat|sun)/i.test(said) ? Date.parse(said) : Number.NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - wallNowMs);
}
