/**
 * Actions with an idempotency key. Their calls may be lost: they wait for the client to repeat the call, run once, and tell
 * every repeat how they went.
 *
 * IK1 a tenant's key runs one action at most as long as it is remembered, which is `repeatMs` from its end. Of those that
 *    have ended, the oldest lose what they printed when the tenant's budget has no room; a repeat is then told so, and the
 *    action does not run again.
 * IK3 an action that no call has followed for `repeatMs` is cancelled.
 */
import { createHash } from "node:crypto";
import * as grpc from "@grpc/grpc-js";
import { ActionLog, type FollowingCall } from "./action-log.ts";
import type { DiskBudget } from "./output-spool.ts";

type Repeatable = {
  readonly tenant: string;
  /** of the request: a key stands for one */
  readonly digest: string;
  readonly log: ActionLog;
  readonly cancel: (reason: string) => void;
  hasOutput: boolean;
  timer: NodeJS.Timeout | undefined;
};

/** What a repeat finds: `joined`, or why it cannot. */
export type Repeat = "first" | "joined" | "another-request" | "output-forgotten";

export class RepeatableActions {
  readonly #repeatMs: number;
  readonly #known = new Map<string, Repeatable>();

  constructor(repeatMs: number) {
    this.#repeatMs = repeatMs;
  }

  join(tenant: string, key: string, request: object, call: FollowingCall & CancelledCall): Repeat {
    const one = this.#known.get(nameOf(tenant, key));
    if (one === undefined) return "first";
    if (one.digest !== digestOf(request)) return "another-request";
    if (!one.hasOutput) return "output-forgotten";
    this.#follow(nameOf(tenant, key), one, call);
    return "joined";
  }

  /** The log that the action of a first call writes; `cancel` ends the action. */
  begin(
    { tenant, key, request, budget }: { tenant: string; key: string; request: object; budget: DiskBudget },
    call: FollowingCall & CancelledCall,
    cancel: (reason: string) => void,
  ): ActionLog {
    const log = new ActionLog(budget);
    const one = { tenant, digest: digestOf(request), log, cancel, hasOutput: true, timer: undefined };
    const name = nameOf(tenant, key);
    this.#known.set(name, one);
    this.#follow(name, one, call);
    return log;
  }

  /** To be called when its log has ended. */
  ended(tenant: string, key: string): void {
    const name = nameOf(tenant, key);
    const one = this.#known.get(name);
    if (one === undefined) return;
    // The oldest end is the first, for `makeRoom`.
    this.#known.delete(name);
    this.#known.set(name, one);
    this.#after(one, () => this.#forget(name, one));
  }

  /** Forgets what ended actions of the tenant printed, oldest first, until so much is free or nothing is left to forget. */
  makeRoom(tenant: string, bytes: number): void {
    let freed = 0;
    for (const one of this.#known.values()) {
      if (freed >= bytes) return;
      const { log } = one;
      if (one.tenant !== tenant || !log.hasEnded || log.numFollowers > 0 || log.keptBytes === 0) continue;
      freed += log.keptBytes;
      one.hasOutput = false;
      log.forget();
    }
  }

  close(): void {
    for (const [name, one] of this.#known) this.#forget(name, one);
  }

  #follow(name: string, one: Repeatable, call: FollowingCall & CancelledCall): void {
    clearTimeout(one.timer);
    const leave = one.log.follow(call);
    call.on("cancelled", () => {
      leave();
      if (one.log.numFollowers > 0 || this.#known.get(name) !== one || one.log.hasEnded) return;
      // IK3
      this.#after(one, () => one.cancel("its caller went away, and did not come back"));
    });
    if (one.log.hasEnded) this.#after(one, () => this.#forget(name, one));
  }

  #after(one: Repeatable, run: () => void): void {
    clearTimeout(one.timer);
    one.timer = setTimeout(run, this.#repeatMs).unref();
  }

  #forget(name: string, one: Repeatable): void {
    clearTimeout(one.timer);
    // A call that reads slowly has the rest to read.
    if (one.log.numFollowers > 0 && this.#known.get(name) === one) {
      this.#after(one, () => this.#forget(name, one));
      return;
    }
    if (this.#known.get(name) === one) this.#known.delete(name);
    one.log.forget();
  }
}

type CancelledCall = { on(event: "cancelled", listener: () => void): unknown };

/** Names of tenants and keys hold any character but this. */
const nameOf = (tenant: string, key: string): string => `${tenant}\0${key}`;

const digestOf = (request: object): string =>
  createHash("sha256")
    .update(JSON.stringify(digestible(request)))
    .digest("hex");

/** Maps arrive in any order; of bytes, which may be many megabytes, the digest stands for them. */
function digestible(value: unknown): unknown {
  if (value instanceof Uint8Array) return createHash("sha256").update(value).digest("hex");
  if (Array.isArray(value)) return value.map(digestible);
  if (value === null || typeof value !== "object") return value;
  const entries = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(entries.map(([key, each]) => [key, digestible(each)]));
}

/** How a repeat that cannot join fails. */
export const repeatFailures = {
  "another-request": {
    status: grpc.status.ALREADY_EXISTS,
    message: (key: string) =>
      `idempotency_key: '${key}' was given with another request; repeat the same one, or choose another key`,
  },
  "output-forgotten": {
    status: grpc.status.ABORTED,
    message: (key: string) =>
      `the action with the idempotency key '${key}' has run, but there was no room to keep what it printed; read faster, or raise limits.unreadMib`,
  },
} as const;
