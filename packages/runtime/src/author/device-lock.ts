/** A worker's side of the device lock. The decision is the lock service's; this only asks, counts and returns. */
import type { Cancellation, Peer } from "@treadle/contracts";
import type { Tracer } from "@treadle/observe";
import { currentCall, requireCall } from "./call/call-context.ts";

type Held = { readonly token: number; count: number; numKept: number };

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
  /** by call, those that hold devices and how often a wait of theirs has been answered */
  readonly #answered = new Map<string, number>();

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
        await this.#releaseOnce(call);
      },
    };
  }

  /**
   * Makes a request that may wait, and says with it whether the call keeps its devices meanwhile. It says later when the
   * engine has become idle, as long as nothing was answered since: what was may have set it to work again.
   */
  waiting<T>(call: string, ask: (keeps: boolean) => Promise<T>): Promise<T> {
    const held = this.#held.get(call);
    return held === undefined ? this.#counted(call, ask(false)) : this.#waitHolding(call, held, ask);
  }

  async #waitHolding<T>(call: string, asked: Promise<Held>, ask: (keeps: boolean) => Promise<T>): Promise<T> {
    const held = await asked.catch(() => undefined);
    const keeps = held !== undefined && (held.numKept > 0 || this.#idle() !== undefined);
    const answer = this.#counted(call, ask(keeps));
    if (!keeps || held.numKept > 0) return answer;
    let isOver = false;
    const end = () => {
      isOver = true;
    };
    answer.then(end, end);
    for (let busy = this.#idle(); busy !== undefined && !isOver; busy = this.#idle())
      await Promise.race([busy, answer]);
    if (!isOver) this.#runner.notify("lock.lend", { call, numAnswered: this.#answered.get(call) ?? 0 });
    return answer;
  }

  /** Counted before whoever asked goes on. */
  #counted<T>(call: string, answer: Promise<T>): Promise<T> {
    const count = () => this.#answered.set(call, (this.#answered.get(call) ?? 0) + 1);
    answer.then(count, count);
    return answer;
  }

  /** The call is over. */
  forget(call: string): void {
    this.#answered.delete(call);
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
