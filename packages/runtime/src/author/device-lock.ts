/** A worker's side of the device lock. The decision is the lock service's; this only asks, counts and returns. */
import { setTimeout as delay } from "node:timers/promises";
import type { Cancellation, Peer } from "@treadle/contracts";
import type { Tracer } from "@treadle/observe";
import { currentCall, requireCall } from "./call/call-context.ts";

type Held = { readonly token: number; count: number; numKept: number };

/** What a call waits for in `take` and `put`. */
class Waits {
  /** waits of a call that may lend its devices */
  num = 0;
  /** of all waits of the call, how many have been answered */
  numAnswered = 0;
  /** the last answer, as long as the call may not have begun what it does with it */
  fresh: "room" | "items" | undefined;
  isWatched = false;
  #change = () => {};

  change(): void {
    this.#change();
  }

  /** Resolves at the next change. */
  changed(): Promise<void> {
    return new Promise((resolve) => {
      this.#change = resolve;
    });
  }
}

/** Items are read, perhaps from another node, before a call computes with them; while it does not, others wait in vain. */
const itemsGraceMs = 1000;

export type LockOptions = {
  /**
   * What a call does with its devices while it waits in `take` or `put`. `idle`: others may have them once the worker's
   * engine computes nothing (`Worker.idle`); the wait ends when they are back. `never`: it keeps them; a call that waits for
   * what another one can only make on these devices then fails with `lock.timeout`. Of nested locks the strictest counts.
   */
  readonly lend?: "idle" | "never" | undefined;
};

export class DeviceLock {
  readonly ids: readonly string[];
  readonly #runner: Peer;
  readonly #tracer: Tracer;
  readonly #idle: () => Promise<void> | undefined;
  /** by call: grants are counted per call, so a nested lock costs no message (L5) */
  readonly #held = new Map<string, Promise<Held>>();
  readonly #waits = new Map<string, Waits>();

  constructor(ids: readonly string[], runner: Peer, tracer: Tracer, idle: () => Promise<void> | undefined) {
    this.#idle = idle;
    this.ids = ids;
    this.#runner = runner;
    this.#tracer = tracer;
  }

  /**
   * Waits until this rank alone may use its devices and is loaded on them, then holds them until disposed:
   * `await using _ = await this.devices.lock()`. Nested locks of one call count.
   * Throws `lock.timeout` with the whole chain of who waits for whom.
   */
  async lock({ lend = "idle" }: LockOptions = {}): Promise<AsyncDisposable> {
    const { call, signal } = requireCall("a device lock was asked for");
    let held = this.#held.get(call);
    if (!held) {
      held = this.#acquire(call, signal);
      this.#held.set(call, held);
      held.catch(() => this.#held.delete(call));
    } else {
      held.then(
        (value) => value.count++,
        () => {}, // every lock of the call is refused below
      );
    }
    const granted = await held;
    const isKept = lend === "never";
    if (isKept) granted.numKept++;
    let disposed = false;
    return {
      [Symbol.asyncDispose]: async () => {
        if (disposed) return;
        disposed = true;
        if (isKept) granted.numKept--;
        if (isKept) this.#waits.get(call)?.change();
        await this.#releaseOnce(call);
      },
    };
  }

  /**
   * Makes a request that may wait, for items or for room, and says with it whether the call keeps its devices meanwhile. A call
   * may wait in several places: while it does in any, and computes nothing, others have the devices.
   */
  async waiting<T>(call: string, on: "take" | "put", ask: (keeps: boolean) => Promise<T>): Promise<T> {
    const waits = this.#waitsOf(call);
    const asked = this.#held.get(call);
    const held = asked && (await asked.catch(() => undefined));
    const lends = held?.numKept === 0;
    const computes = lends && this.#idle() !== undefined;
    const answer = ask(computes || (held !== undefined && !lends));
    if (lends) waits.num++;
    if (computes) this.#watch(call, waits).catch(() => {}); // without a runner nothing is answered either
    let isAnswered = false;
    try {
      const reply = await answer;
      isAnswered = reply !== null;
      return reply;
    } finally {
      // Before whoever asked goes on.
      if (lends) waits.num--;
      waits.numAnswered++;
      waits.fresh = on === "take" && isAnswered ? "items" : "room";
      waits.change();
      if (waits.num > 0) this.#watch(call, waits).catch(() => {});
    }
  }

  #waitsOf(call: string): Waits {
    const known = this.#waits.get(call);
    if (known) return known;
    const waits = new Waits();
    this.#waits.set(call, waits);
    return waits;
  }

  /**
   * While anything of the call waits, says that nothing computes, and again after each answer, which may have set something to
   * work and counts against what was said before it came.
   */
  async #watch(call: string, waits: Waits): Promise<void> {
    if (waits.isWatched) return;
    waits.isWatched = true;
    while (waits.num > 0) {
      const changed = waits.changed();
      const held = await this.#held.get(call)?.catch(() => undefined);
      const busy = this.#idle();
      if (held?.numKept !== 0) await changed;
      else if (busy !== undefined) {
        waits.fresh = undefined;
        await Promise.race([busy, changed]);
      } else if (waits.fresh !== undefined) {
        const { fresh } = waits;
        waits.fresh = undefined;
        await (fresh === "room" ? turns() : Promise.race([delay(itemsGraceMs, undefined, { ref: false }), changed]));
      } else {
        this.#runner.notify("lock.lend", { call, numAnswered: waits.numAnswered });
        await changed;
      }
    }
    waits.isWatched = false;
  }

  /** The call is over. */
  forget(call: string): void {
    this.#waits.delete(call);
  }

  holds(call: string): boolean {
    return this.#held.has(call);
  }

  /** Gives up whatever a call still holds; called when the call ends, however it ends. */
  async releaseAll(call: string): Promise<void> {
    const held = await this.#held.get(call)?.catch(() => undefined);
    if (!held) return;
    held.count = 1;
    await this.#releaseOnce(call);
  }

  async #acquire(call: string, signal: Cancellation): Promise<Held> {
    using _ = this.#tracer.span("device lock", "lock-wait");
    using _wait = currentCall()?.meter?.lockWait();
    const { token } = await this.#runner.request("lock.acquire", { call }, { signal });
    return { token, count: 1, numKept: 0 };
  }

  async #releaseOnce(call: string): Promise<void> {
    const held = await this.#held.get(call);
    if (!held || --held.count > 0) return;
    this.#held.delete(call);
    await this.#runner.request("lock.release", { call, token: held.token });
  }
}

/** Until what an answer resolves has gone on as far as it does by itself. */
async function turns(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));
}
