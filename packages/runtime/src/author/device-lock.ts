/** A worker's side of the device lock. The decision is the lock service's; this only asks, counts and returns. */
import { setTimeout as delay } from "node:timers/promises";
import { type Cancellation, type Peer, ReleasableTag, TreadleError, type WaitTerms } from "@treadle/contracts";
import { LendState } from "@treadle/core";
import type { Tracer } from "@treadle/observe";
import { currentCall, requireCall } from "./call/call-context.ts";
import { WorkTurns, type WorkTurnsPorts } from "./work-turns.ts";

/** How often a call that was given items is looked at, for engines that do not say when they begin. */
const lookMs = 5;

/** Items of streams: those that an answer gives to be worked on, and those that a request is done with. */
export type ItemsOf<T> = { readonly given?: (reply: T) => number; readonly committed?: number };

type Held = {
  readonly token: number;
  /** undefined: all */
  readonly tags: readonly ReleasableTag[] | undefined;
  count: number;
  numKept: number;
};

/** A token that a call has given up, and what the runner said of that, once it was told. */
type GivenUp = { readonly token: number; readonly timer: NodeJS.Immediate; told: Promise<unknown> | undefined };

/** What a call waits for in `take` and `put`, and who is told when that changes. */
class Waits {
  readonly lending = new LendState();
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

export type LockOptions = {
  /**
   * What a call does with its devices while it waits in `take` or `put`. `idle`: others may have them once the worker's
   * engine computes nothing (`Worker.idle`), and what the call was given has had time to set it to work; the wait ends when they
   * are back. A call whose engine may begin later than that, as after a tool has answered, says `never`. `never`: it keeps them; a call that waits for
   * what another one can only make on these devices then fails with `lock.timeout`. Of nested locks the strictest counts.
   */
  readonly lend?: "idle" | "never" | undefined;
  /**
   * What of its worker's memory the call needs, such as `["weights"]` to take new ones: what it does not need is not brought back for
   * it, so that more of others can stay. Default: all of it. A nested lock needs no more than the outer one. Whole where the
   * engine has no tags.
   */
  readonly tags?: readonly ReleasableTag[] | undefined;
};

export class DeviceLock {
  readonly ids: readonly string[];
  readonly #runner: Peer;
  readonly #tracer: Tracer;
  readonly #idle: () => Promise<void> | undefined;
  /** by call: grants are counted per call, so a nested lock costs no message (L5) */
  readonly #held = new Map<string, Promise<Held>>();
  /** calls that were granted them and have not given them up, though they may be lent meanwhile */
  readonly #granted = new Set<string>();
  readonly #waits = new Map<string, Waits>();
  readonly #givenUp = new Map<string, GivenUp>();
  /** what is computed on the devices, and what other runs compute there */
  readonly turns: WorkTurns;

  constructor(
    ids: readonly string[],
    runner: Peer,
    tracer: Tracer,
    idle: () => Promise<void> | undefined,
    takeWork: WorkTurnsPorts["takeWork"] = () => undefined,
  ) {
    this.turns = new WorkTurns({ takeWork, tell: (done) => runner.notify("worked", done) });
    this.#idle = idle;
    this.ids = ids;
    this.#runner = runner;
    this.#tracer = tracer;
  }

  /** Told at once, and whenever it changes, what other runs compute on these devices. */
  onBeside(listener: (works: readonly string[]) => void): void {
    this.turns.onBeside(listener);
  }

  /** Whether a call that goes on has locked them, also while it lends them. */
  get isHeld(): boolean {
    return this.#granted.size > 0;
  }

  /**
   * Waits until this rank alone may use its devices and is loaded on them, then holds them until disposed:
   * `await using _ = await this.devices.lock()`. Nested locks of one call count. The runner is told with the reply where the call
   * ends at once, and else by a message: in both cases after what the call has put.
   * Throws `lock.timeout` with the whole chain of who waits for whom.
   */
  async lock({ lend = "idle", tags }: LockOptions = {}): Promise<AsyncDisposable> {
    const { call, signal, method } = requireCall("a device lock was asked for");
    if (this.ids.length === 0) {
      throw new TreadleError(
        "workflow.invalid",
        `'${method}' locks devices, but its component runs without any; leave 'devices: "none"' out of its launch, or 'none' out of placement.components, or do not lock`,
      );
    }
    this.#tell(call);
    let held = this.#held.get(call);
    if (!held) {
      held = this.#acquire(call, signal, tags);
      this.#held.set(call, held);
      held.catch(() => this.#held.delete(call));
    } else {
      held.then(
        (value) => value.count++,
        () => {}, // every lock of the call is refused below
      );
    }
    const granted = await held;
    const lacks = (tags ?? ReleasableTag.options).find((tag) => granted.tags?.includes(tag) === false);
    if (lacks !== undefined) {
      await this.#releaseOnce(call);
      throw new TreadleError(
        "workflow.invalid",
        `'${method}' locks its devices with '${lacks}' within a lock of ${granted.tags?.join(", ")} alone; give the outer lock the tags of all inner ones`,
      );
    }
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
   * Makes a request that may wait, for items or for room, and says with it whether the call keeps its devices meanwhile. It may have
   * asked for them and not have them yet: then it waits for both. A call may wait in several places: while it does in any, and
   * computes nothing, others have the devices.
   */
  async waiting<T>(
    call: string,
    on: "take" | "put",
    ask: (terms: WaitTerms) => Promise<T>,
    { given, committed = 0 }: ItemsOf<T> = {},
  ): Promise<T> {
    this.#tell(call);
    const waits = this.#waitsOf(call);
    const asked = this.#held.get(call);
    const held = this.#granted.has(call) ? await asked?.catch(() => undefined) : undefined;
    // The grant may be on its way: what is granted meanwhile the call keeps until it has said otherwise.
    const isPending = asked !== undefined && held === undefined;
    const lends = held?.numKept === 0;
    // The call may lock its devices while it waits.
    const mayLend = held === undefined || lends;
    const computes = lends && this.#idle() !== undefined;
    if (committed > 0 && waits.lending.committed(committed)) waits.change();
    const terms: WaitTerms = isPending
      ? { keeps: "for-now" }
      : held === undefined
        ? {}
        : waits.lending.terms({ keeps: !lends, computes });
    const answer = ask(terms);
    if (mayLend) waits.lending.asked();
    if (computes) waits.change();
    if (lends && terms.keeps) this.#watch(call, waits);
    let hasItems = false;
    let numGiven = 0;
    try {
      const reply = await answer;
      hasItems = on === "take" && reply !== null;
      numGiven = given?.(reply) ?? 0;
      return reply;
    } finally {
      // Before whoever asked goes on.
      waits.lending.answered(hasItems ? "items" : "room", mayLend, numGiven);
      waits.change();
      if (waits.lending.isWaiting) this.#watch(call, waits);
    }
  }

  #waitsOf(call: string): Waits {
    const known = this.#waits.get(call);
    if (known) return known;
    const waits = new Waits();
    this.#waits.set(call, waits);
    return waits;
  }

  /** Does what `LendState` decides, as long as anything of the call waits. */
  async #watch(call: string, waits: Waits): Promise<void> {
    if (waits.isWatched) return;
    waits.isWatched = true;
    for (;;) {
      const changed = waits.changed();
      const held = await this.#held.get(call)?.catch(() => undefined);
      const busy = this.#idle();
      const step = waits.lending.next({ keeps: held?.numKept !== 0, computes: busy !== undefined });
      if (step.type === "over") break;
      if (step.type === "await-change") await changed;
      else if (step.type === "await-idle") await Promise.race([busy, changed]);
      else if (step.type === "say") this.#say(call, step.numAnswered);
      else if (step.forMs === undefined) await turns();
      else await this.#untilComputing(step.forMs, changed);
    }
    waits.isWatched = false;
  }

  /** Or for so long, or until something is answered. */
  async #untilComputing(forMs: number, changed: Promise<void>): Promise<void> {
    const untilMs = performance.now() + forMs;
    let hasChanged = false;
    const change = changed.then(() => {
      hasChanged = true;
    });
    while (!hasChanged && this.#idle() === undefined && performance.now() < untilMs)
      await Promise.race([delay(lookMs, undefined, { ref: false }), change]);
  }

  #say(call: string, numAnswered: number): void {
    try {
      this.turns.lent();
      this.#runner.notify("lock.lend", { call, numAnswered });
    } catch {
      // without its runner the worker ends
    }
  }

  /** The call is over, and what it has not given up is its runner's to free. */
  forget(call: string): void {
    this.#waits.delete(call);
    this.#held.delete(call);
    if (this.#granted.delete(call)) this.turns.released();
    this.#givenUp.delete(call);
  }

  /** Whether a call has not given them up. */
  holds(call: string): boolean {
    return this.#held.has(call);
  }

  /** Before the call's reply, which frees them as well. Throws what the runner said of those that were given up before (L3). */
  async ending(call: string): Promise<void> {
    const given = this.#givenUp.get(call);
    if (given === undefined) return;
    clearImmediate(given.timer);
    await given.told;
  }

  async #acquire(call: string, signal: Cancellation, tags: readonly ReleasableTag[] | undefined): Promise<Held> {
    using _ = this.#tracer.span("device lock", "lock-wait");
    using _wait = currentCall()?.meter?.lockWait();
    const { token } = await this.#runner.request("lock.acquire", { call, tags: tags && [...tags] }, { signal });
    const waits = this.#waits.get(call);
    waits?.lending.granted();
    if (waits?.lending.isWaiting) this.#watch(call, waits);
    if (this.#held.has(call)) {
      this.#granted.add(call); // unless nobody waited for it
      this.turns.granted();
    }
    return { token, tags, count: 1, numKept: 0 };
  }

  async #releaseOnce(call: string): Promise<void> {
    const held = await this.#held.get(call);
    if (!held || --held.count > 0) return;
    this.#held.delete(call);
    this.#granted.delete(call);
    this.turns.released();
    await this.#givenUp.get(call)?.told;
    const timer = setImmediate(() => this.#tell(call));
    this.#givenUp.set(call, { token: held.token, timer, told: undefined });
  }

  /** The call goes on without its devices. */
  #tell(call: string): void {
    const given = this.#givenUp.get(call);
    if (given === undefined || given.told !== undefined) return;
    clearImmediate(given.timer);
    given.told = this.#runner.request("lock.release", { call, token: given.token });
    given.told.catch(() => {}); // the call's end throws it
  }
}

/** Until what an answer resolves has gone on as far as it does by itself. */
async function turns(): Promise<void> {
  for (let turn = 0; turn < 2; turn++) await new Promise((resolve) => setImmediate(resolve));
}
