import { z } from "zod";
import type { Grant, ResourceManager, ResourceRequest, Spending } from "./manager.ts";

const limit = z.number().positive();
const periodMs = z.number().positive();

/** A limit on use over time. */
export const QuotaWindow = z.discriminatedUnion("type", [
  /** at most `limit` in each period, counted from time 0 */
  z.strictObject({ type: z.literal("fixed"), limit, periodMs }),
  /** at most `limit` in any stretch of one period */
  z.strictObject({ type: z.literal("sliding"), limit, periodMs }),
  /** refills evenly with `limit` a period, holds `burst` */
  z.strictObject({ type: z.literal("bucket"), limit, periodMs, burst: limit.optional() }),
]);
export type QuotaWindow = z.infer<typeof QuotaWindow>;

/** An external service that limits how many calls run at once, how many start in a period, or both (§5.1). */
export const Quota = z
  .strictObject({ concurrency: z.int().positive().optional(), windows: z.array(QuotaWindow).default([]) })
  .refine((q) => q.concurrency !== undefined || q.windows.length > 0, {
    message: "give concurrency, windows, or both; an unlimited service needs no manager",
  });
export type Quota = z.input<typeof Quota>;

interface WindowState {
  free(nowMs: number): number;
  use(units: number, nowMs: number): void;
  /** when more is free, in ms from now: so many units, or one more whole one where there are so many already */
  nextMs(nowMs: number, units: number): number;
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
    free(nowMs) {
      turn(nowMs);
      return limit - used;
    },
    use(units, nowMs) {
      turn(nowMs);
      used += units;
    },
    nextMs: (nowMs) => (Math.floor(nowMs / periodMs) + 1) * periodMs - nowMs,
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
    free(nowMs) {
      forget(nowMs);
      return limit - used;
    },
    use(units, nowMs) {
      forget(nowMs);
      uses.push({ at: nowMs, units });
      used += units;
    },
    nextMs: (nowMs) => Math.max(0, (uses[0]?.at ?? nowMs - periodMs) + periodMs - nowMs),
  };
}

function tokenBucket(window: { limit: number; periodMs: number; burst?: number | undefined }): WindowState {
  const { limit, periodMs, burst = limit } = window;
  let tokens = burst;
  let at: number | undefined;
  const refill = (nowMs: number): void => {
    tokens = Math.min(burst, tokens + ((nowMs - (at ?? nowMs)) * limit) / periodMs);
    at = nowMs;
  };
  return {
    free(nowMs) {
      refill(nowMs);
      // Refills add up fractions; a millionth short of a whole unit is a whole one.
      return tokens + 1e-6;
    },
    use(units, nowMs) {
      refill(nowMs);
      tokens -= units;
    },
    nextMs(nowMs, units) {
      refill(nowMs);
      const wanted = units > tokens + 1e-6 ? Math.min(units, burst) : Math.floor(tokens + 1e-6) + 1;
      return Math.max(1, ((wanted - tokens) * periodMs) / limit);
    },
  };
}

const firstBackoffMs = 1000;
const longestBackoffMs = 60_000;
/** Services ask for minutes. What asks for more is asked again then, or one wrong header would stop everybody for good. */
const longestRetryAfterMs = 600_000;

/**
 * The quota manager (§5.1). Beyond the configured limits it learns: a refusal by the service (status 429) stops all
 * calls until Retry-After (ten minutes at most), or for a doubling time without it, and halves how many may run at once; every full round
 * of successes allows one more, up to the configured number.
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

  bind(): string {
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
    for (const window of this.#windows) window.use(units, nowMs);
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
    if (this.#learned >= this.#concurrency) return;
    this.#successes++;
    if (this.#successes < this.#learned) return;
    this.#successes = 0;
    this.#learned++;
  }

  /** The service refused a call because there were too many; `retryAfterMs` is what it asked for, if it did. */
  throttled(nowMs: number, retryAfterMs?: number): void {
    const alreadyBlocked = nowMs < this.#blockedUntilMs;
    const waitMs = Math.min(retryAfterMs ?? this.#backoffMs, longestRetryAfterMs);
    this.#blockedUntilMs = Math.max(this.#blockedUntilMs, nowMs + waitMs);
    this.#successes = 0;
    // Calls that ran together are refused together: that is one signal, not many.
    if (alreadyBlocked) return;
    if (retryAfterMs === undefined) this.#backoffMs = Math.min(longestBackoffMs, this.#backoffMs * 2);
    this.#learned = Math.max(1, Math.floor(Math.min(this.#learned, Math.max(1, this.#inUse)) / 2));
  }

  nextChangeMs(nowMs: number, units = 1): number | undefined {
    if (nowMs < this.#blockedUntilMs) return this.#blockedUntilMs - nowMs;
    const waits = this.#windows.filter((w) => w.free(nowMs) < this.capacity).map((w) => w.nextMs(nowMs, units));
    return waits.length === 0 ? undefined : Math.min(...waits);
  }

  #free(nowMs: number): number {
    if (nowMs < this.#blockedUntilMs) return 0;
    let free = this.#learned - this.#inUse;
    for (const window of this.#windows) free = Math.min(free, window.free(nowMs));
    return Math.max(0, free);
  }
}

/** Reads a Retry-After header: seconds, or an HTTP date relative to `wallNowMs`. Undefined when it says nothing. */
export function parseRetryAfter(header: string | null | undefined, wallNowMs: number): number | undefined {
  if (header === null || header === undefined || header.trim() === "") return undefined;
  const seconds = Number(header);
  if (Number.isFinite(seconds)) return seconds >= 0 ? seconds * 1000 : undefined;
  const at = Date.parse(header);
  return Number.isNaN(at) ? undefined : Math.max(0, at - wallNowMs);
}
