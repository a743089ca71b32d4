/** A worker's side of the device lock. The decision is the lock service's; this only asks, counts and returns. */
import type { Cancellation, Peer } from "@treadle/contracts";
import type { Tracer } from "@treadle/observe";
import { currentCall, requireCall } from "./call/call-context.ts";

type Held = { readonly token: number; count: number };

export class DeviceLock {
  readonly ids: readonly string[];
  readonly #runner: Peer;
  readonly #tracer: Tracer;
  /** by call: grants are counted per call, so a nested lock costs no message (L5) */
  readonly #held = new Map<string, Promise<Held>>();

  constructor(ids: readonly string[], runner: Peer, tracer: Tracer) {
    this.ids = ids;
    this.#runner = runner;
    this.#tracer = tracer;
  }

  /**
   * Waits until this rank alone may use its devices and is loaded on them, then holds them until disposed:
   * `await using _ = await this.devices.lock()`. Nested locks of one call count.
   * Throws `lock.timeout` with the whole chain of who waits for whom.
   */
  async lock(): Promise<AsyncDisposable> {
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
    await held;
    let disposed = false;
    return {
      [Symbol.asyncDispose]: async () => {
        if (disposed) return;
        disposed = true;
        await this.#releaseOnce(call);
      },
    };
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
    return { token, count: 1 };
  }

  async #releaseOnce(call: string): Promise<void> {
    const held = await this.#held.get(call);
    if (!held || --held.count > 0) return;
    this.#held.delete(call);
    await this.#runner.request("lock.release", { call, token: held.token });
  }
}
