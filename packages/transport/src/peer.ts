/**
 * Requests, replies, cancellations and notifications over one link.
 *
 * Owned here: the table of requests this side made (`#pending`) and of those it is answering asynchronously
 * (`#answering`). The link owns the bytes. One timer serves all deadlines, re-armed at most once per deadline.
 *
 * P1 every request settles exactly once: reply, error, timeout, cancellation or the end of the link.
 * P2 a caller that stopped waiting (cancelled, timed out) tells the handler, whose signal aborts.
 * P3 a handler's throw or rejection, an unknown method and an answer that cannot be sent all become error replies.
 * P4 when the link ends, every pending request rejects and every handler's signal aborts, with the same cause.
 * P5 an envelope that is not well formed, or a body that its handler refuses as such, closes the link with
 *    `link.protocol`; it never throws into the link.
 */

import {
  type Cancellation,
  type Clock,
  ErrorRecordShape,
  fromErrorRecord,
  isRefusalOf,
  type Link,
  type Peer,
  type RequestContext,
  type SendOptions,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import { Canceller } from "./canceller.ts";
import { systemClock } from "./clock.ts";
import { envelopeKind } from "./envelope.ts";

export type PeerOptions = {
  /** Drives deadlines; tests move it by hand. */
  readonly clock?: Clock | undefined;
};

/** Timers past this overflow; the check then simply runs again. */
const maxDelayMs = 2 ** 30;

type Handler = (body: unknown, context: RequestContext) => unknown;

type Pending = {
  readonly resolve: (value: never) => void;
  readonly reject: (error: Error) => void;
  readonly method: string;
  /** Clock time at which the request gives up; Infinity when it waits for ever. */
  readonly deadline: number;
  readonly timeoutMs: number;
  readonly signal: Cancellation | undefined;
  readonly onAbort: (() => void) | undefined;
};

/** Aborts lazily: a controller exists only for handlers that look at their signal. */
class Answer extends Canceller implements RequestContext {
  readonly remote: string;
  #controller: AbortController | undefined;

  constructor(remote: string) {
    super();
    this.remote = remote;
  }

  get cancellation(): Cancellation {
    return this;
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      const controller = new AbortController();
      this.#controller = controller;
      if (this.aborted) controller.abort(this.reason);
      else this.addEventListener("abort", () => controller.abort(this.reason));
    }
    return this.#controller.signal;
  }
}

class LinkPeer implements Peer {
  readonly link: Link;
  readonly #clock: Clock;
  readonly #handlers = new Map<string, Handler>();
  readonly #pending = new Map<number, Pending>();
  readonly #answering = new Map<number, Answer>();
  #lastId = 0;
  #end: Error | undefined;
  #nextCheckAt = Number.POSITIVE_INFINITY;
  #cancelCheck: (() => void) | undefined;

  constructor(link: Link, clock: Clock) {
    this.link = link;
    this.#clock = clock;
    link.onClose((cause) => this.#onEnd(cause));
    link.onMessage((message) => this.#onMessage(message));
  }

  request<T = unknown>(
    method: string,
    body: unknown,
    options?: SendOptions & { signal?: Cancellation | undefined; timeoutMs?: number | undefined },
  ): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#end) throw this.#end;
      const signal = options?.signal;
      if (signal?.aborted) throw cancelledError(method, this.link.remote, signal.reason);
      const id = ++this.#lastId;
      this.link.send([envelopeKind.request, id, method, body], options);
      const timeoutMs = options?.timeoutMs ?? Number.POSITIVE_INFINITY;
      const deadline = timeoutMs === Number.POSITIVE_INFINITY ? timeoutMs : this.#clock.now() + timeoutMs;
      let onAbort: (() => void) | undefined;
      if (signal) {
        onAbort = () => this.#giveUp(id, cancelledError(method, this.link.remote, signal.reason));
        signal.addEventListener("abort", onAbort, { once: true });
      }
      this.#pending.set(id, { resolve, reject, method, deadline, timeoutMs, signal, onAbort });
      if (deadline < this.#nextCheckAt) this.#checkAt(deadline);
    });
  }

  notify(method: string, body: unknown, options?: SendOptions): void {
    if (this.#end) throw this.#end;
    this.link.send([envelopeKind.notify, method, body], options);
  }

  handle(method: string, handler: Handler): void {
    if (this.#handlers.has(method)) {
      throw new TreadleError(
        "workflow.invalid",
        `method '${method}' already has a handler on this peer: one is allowed`,
      );
    }
    this.#handlers.set(method, handler);
  }

  #onMessage(message: unknown) {
    if (!Array.isArray(message)) return this.#malformed("a message that is no array");
    const id = message[1];
    switch (message[0]) {
      case envelopeKind.request:
        if (message.length !== 4 || !isId(id) || typeof message[2] !== "string") return this.#malformed("a request");
        return this.#answer(id, message[2], message[3]);
      case envelopeKind.reply: {
        if (message.length !== 3 || !isId(id) || id > this.#lastId) return this.#malformed("a reply");
        const pending = this.#take(id);
        return pending?.resolve(message[2] as never);
      }
      case envelopeKind.failure: {
        const record = ErrorRecordShape.safeParse(message[2]);
        if (message.length !== 3 || !isId(id) || id > this.#lastId || !record.success) {
          return this.#malformed("an error reply");
        }
        const pending = this.#take(id);
        return pending?.reject(fromErrorRecord(record.data));
      }
      case envelopeKind.cancel:
        if (message.length !== 2 || !isId(id)) return this.#malformed("a cancellation");
        this.#answering
          .get(id)
          ?.abort(new TreadleError("call.cancelled", `'${this.link.remote}' stopped waiting for the answer`)); // P2
        return;
      case envelopeKind.notify:
        if (message.length !== 3 || typeof id !== "string") return this.#malformed("a notification");
        return this.#notice(id, message[2]);
      default:
        return this.#malformed(`an envelope of kind '${String(message[0]).slice(0, 20)}'`);
    }
  }

  #answer(id: number, method: string, body: unknown) {
    const handler = this.#handlers.get(method);
    if (handler === undefined) return this.#fail(id, this.#unknownMethod(method)); // P3
    if (this.#answering.has(id)) return this.#malformed(`a request under the number ${id}, which is still in use,`);
    const answer = new Answer(this.link.remote);
    let result: unknown;
    try {
      result = handler(body, answer);
    } catch (error) {
      return this.#failed(id, method, body, error);
    }
    if (!isThenable(result)) return this.#reply(id, result);
    this.#answering.set(id, answer);
    result.then(
      (value) => {
        this.#answering.delete(id);
        this.#reply(id, value);
      },
      (error: unknown) => {
        this.#answering.delete(id);
        this.#failed(id, method, body, error);
      },
    );
  }

  #failed(id: number, method: string, body: unknown, error: unknown): void {
    if (isRefusalOf(error, body))
      this.#malformed(`a request '${method}'`, error); // P5
    else this.#fail(id, error); // P3
  }

  #notice(method: string, body: unknown) {
    const handler = this.#handlers.get(method);
    if (handler === undefined) return; // Nobody waits for an answer, and the other side may be newer.
    const report = (error: unknown) => {
      if (isRefusalOf(error, body)) return this.#malformed(`a notification '${method}'`, error); // P5
      process.emitWarning(`handler of notification '${method}' failed: ${String(error)}`, "TreadleWarning");
    };
    try {
      const result = handler(body, new Answer(this.link.remote));
      if (isThenable(result)) result.then(undefined, report);
    } catch (error) {
      report(error);
    }
  }

  #reply(id: number, value: unknown) {
    if (this.#end) return;
    try {
      this.link.send([envelopeKind.reply, id, value]);
    } catch (error) {
      this.#fail(id, error); // P3
    }
  }

  #fail(id: number, error: unknown) {
    if (this.#end) return;
    try {
      this.link.send([envelopeKind.failure, id, toErrorRecord(error)]);
    } catch (unsendable) {
      // Details may hold what cannot travel, or be too large; the message and the code always fit.
      try {
        const { code, message } = toErrorRecord(error);
        this.link.send([envelopeKind.failure, id, { code, message: message.slice(0, 10_000) }]);
      } catch {
        void this.link.close(unsendable as Error);
      }
    }
  }

  #take(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    if (pending === undefined) return undefined; // The caller stopped waiting before the answer came.
    this.#pending.delete(id);
    if (pending.onAbort) pending.signal?.removeEventListener("abort", pending.onAbort);
    return pending;
  }

  #giveUp(id: number, error: Error): void {
    const pending = this.#take(id);
    if (pending === undefined) return;
    pending.reject(error);
    try {
      if (!this.#end) this.link.send([envelopeKind.cancel, id]); // P2
    } catch {
      // The link closed meanwhile, which aborts the handler as well (P4).
    }
  }

  #checkAt(time: number): void {
    this.#cancelCheck?.();
    this.#nextCheckAt = time;
    this.#cancelCheck = this.#clock.after(Math.min(maxDelayMs, Math.max(1, time - this.#clock.now())), () =>
      this.#expire(),
    );
  }

  #expire(): void {
    const now = this.#clock.now();
    let next = Number.POSITIVE_INFINITY;
    this.#cancelCheck = undefined;
    this.#nextCheckAt = Number.POSITIVE_INFINITY;
    for (const [id, pending] of this.#pending) {
      if (pending.deadline <= now) {
        this.#giveUp(
          id,
          new TreadleError(
            "call.timeout",
            `'${pending.method}' on '${this.link.remote}' gave no answer within ${pending.timeoutMs} ms; raise timeoutMs or check that process`,
            { details: { method: pending.method, timeoutMs: pending.timeoutMs } },
          ),
        );
      } else if (pending.deadline < next) next = pending.deadline;
    }
    if (next < Number.POSITIVE_INFINITY) this.#checkAt(next);
  }

  #unknownMethod(method: string): TreadleError {
    return new TreadleError(
      "call.unknown-method",
      `method '${method.slice(0, 200)}' is not handled: allowed ${[...this.#handlers.keys()].map((name) => `'${name}'`).join(", ") || "none"}`,
    );
  }

  #malformed(what: string, cause?: unknown): void {
    if (this.#end) return;
    const why = cause instanceof Error ? `: ${cause.message}` : "";
    const error = new TreadleError("link.protocol", `'${this.link.remote}' sent ${what} that is not well formed${why}`);
    void this.link.close(error); // P5
    this.#onEnd(error);
  }

  #onEnd(cause: Error | undefined): void {
    if (this.#end) return;
    const error =
      cause instanceof TreadleError && cause.code.startsWith("link.")
        ? cause
        : new TreadleError("link.closed", `the link to '${this.link.remote}' closed`, { cause });
    this.#end = error;
    this.#cancelCheck?.();
    // P4
    for (const id of [...this.#pending.keys()]) this.#take(id)?.reject(error);
    for (const answer of this.#answering.values()) answer.abort(error);
    this.#answering.clear();
  }
}

function isId(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return value !== null && typeof value === "object" && typeof (value as { then?: unknown }).then === "function";
}

function cancelledError(method: string, remote: string, reason: unknown): TreadleError {
  return new TreadleError("call.cancelled", `'${method}' on '${remote}' was cancelled by its caller`, {
    cause: reason,
  });
}

/** Speaks requests over a link. The peer takes the link's message listener; use one peer a link. */
export function createPeer(link: Link, options: PeerOptions = {}): Peer {
  return new LinkPeer(link, options.clock ?? systemClock);
}
