/**
 * Requests, replies, cancellations and notifications over one link.
 *
 * Owned here: the table of requests this side made (`#pending`) and of those it is answering asynchronously
 * (`#answering`). The link owns the bytes. One timer serves all deadlines, re-armed at most once per deadline.
 *
 * PE1 every request settles exactly once: reply, error, timeout, cancellation or the end of the link.
 * PE2 a caller that stopped waiting (cancelled, timed out) tells the handler, whose signal aborts.
 * PE3 a handler's throw or rejection, an unknown method and an answer that cannot be sent all become error replies.
 * PE4 when the link ends, every pending request rejects and every handler's signal aborts, with the same cause.
 * PE5 an envelope or a body that is not well formed closes the link with `link.protocol`, and reaches no handler; a reply
 *    that does not fit its verb rejects the request. Neither throws into the link.
 */

import {
  type Cancellation,
  type Clock,
  ErrorRecordShape,
  fromErrorRecord,
  type Link,
  type Peer,
  type Protocol,
  problemsOf,
  type RequestContext,
  type SendOptions,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import type { z } from "zod";
import { systemClock } from "../clock.ts";
import { Canceller } from "./canceller.ts";
import { envelopeKind } from "./envelope.ts";

export type PeerOptions = {
  /** Drives deadlines; tests move it by hand. */
  readonly clock?: Clock | undefined;
};

/** Timers past this overflow; the check then simply runs again. */
const maxDelayMs = 2 ** 30;

type Handler = (body: unknown, context: RequestContext) => unknown;

type Pending = {
  readonly resolve: (value: unknown) => void;
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

class LinkPeer {
  readonly link: Link;
  readonly #protocol: ReadonlyMap<string, Protocol[string]>;
  readonly #clock: Clock;
  readonly #handlers = new Map<string, Handler>();
  readonly #pending = new Map<number, Pending>();
  readonly #answering = new Map<number, Answer>();
  #lastId = 0;
  #end: Error | undefined;
  #nextCheckAt = Number.POSITIVE_INFINITY;
  #cancelCheck: (() => void) | undefined;

  constructor(link: Link, protocol: Protocol, clock: Clock) {
    this.link = link;
    this.#protocol = verbsOf(protocol);
    this.#clock = clock;
    link.onClose((cause) => this.#onEnd(cause));
    link.onMessage((message) => this.#onMessage(message));
  }

  request(
    method: string,
    body: unknown,
    options?: SendOptions & { signal?: Cancellation | undefined; timeoutMs?: number | undefined },
  ): Promise<unknown> {
    return new Promise((resolve, reject) => {
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
    if (!this.#protocol.has(method)) {
      throw new TreadleError(
        "workflow.invalid",
        `verb '${method}' is not one of this peer's protocol, which has ${[...this.#protocol.keys()].join(", ")}`,
      );
    }
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
        if (pending) this.#replied(pending, message[2]);
        return;
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
          ?.abort(new TreadleError("call.cancelled", `'${this.link.remote}' stopped waiting for the answer`)); // PE2
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
    if (handler === undefined) return this.#fail(id, this.#unknownMethod(method)); // PE3
    if (this.#answering.has(id)) return this.#malformed(`a request under the number ${id}, which is still in use,`);
    const parsed = this.#protocol.get(method)?.request.safeParse(body);
    if (!parsed?.success) return this.#malformed(`a request '${method}'`, parsed?.error); // PE5
    const answer = new Answer(this.link.remote);
    let result: unknown;
    try {
      result = handler(parsed.data, answer);
    } catch (error) {
      return this.#fail(id, error); // PE3
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
        this.#fail(id, error); // PE3
      },
    );
  }

  #replied(pending: Pending, body: unknown): void {
    const verb = this.#protocol.get(pending.method);
    if (verb?.isPlainReply?.(body)) {
      pending.resolve(body);
      return;
    }
    const parsed = verb?.reply?.safeParse(body);
    if (parsed?.success) pending.resolve(parsed.data);
    else pending.reject(unfitReply(pending.method, this.link.remote, parsed?.error)); // PE5
  }

  #notice(method: string, body: unknown) {
    const handler = this.#handlers.get(method);
    if (handler === undefined) return; // Nobody waits for an answer, and the other side may be newer.
    const parsed = this.#protocol.get(method)?.request.safeParse(body);
    if (!parsed?.success) return this.#malformed(`a notification '${method}'`, parsed?.error); // PE5
    const report = (error: unknown) => {
      process.emitWarning(`handler of notification '${method}' failed: ${String(error)}`, "TreadleWarning");
    };
    try {
      const result = handler(parsed.data, new Answer(this.link.remote));
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
      this.#fail(id, error); // PE3
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
      if (!this.#end) this.link.send([envelopeKind.cancel, id]); // PE2
    } catch {
      // The link closed meanwhile, which aborts the handler as well (PE4).
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

  #malformed(what: string, problems?: z.ZodError): void {
    if (this.#end) return;
    const why = problems ? `: ${problemsOf(problems)}; both processes must run the same version` : "";
    const error = new TreadleError("link.protocol", `'${this.link.remote}' sent ${what} that is not well formed${why}`);
    void this.link.close(error); // PE5
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
    // PE4
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

function unfitReply(verb: string, remote: string, problems: z.ZodError | undefined): TreadleError {
  const why = problems ? problemsOf(problems) : "this verb has no reply";
  return new TreadleError(
    "link.protocol",
    `'${remote}' answered '${verb}' with what is no reply: ${why}; run the same version everywhere, and leave the process's clock and objects alone`,
    { details: { verb } },
  );
}

const tables = new WeakMap<Protocol, ReadonlyMap<string, Protocol[string]>>();

/** A map finds nothing that a remote name could find on an object's prototype. */
function verbsOf(protocol: Protocol): ReadonlyMap<string, Protocol[string]> {
  let verbs = tables.get(protocol);
  if (!verbs) {
    verbs = new Map(Object.entries(protocol));
    tables.set(protocol, verbs);
  }
  return verbs;
}

/** Speaks the verbs of a protocol over a link. The peer takes the link's message listener; use one peer a link. */
export function createPeer<P extends Protocol>(link: Link, protocol: P, options: PeerOptions = {}): Peer<P> {
  // What the types say of bodies and replies, the schemas of the protocol prove of each.
  return new LinkPeer(link, protocol, options.clock ?? systemClock) as unknown as Peer<P>;
}
