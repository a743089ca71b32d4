/** The ports through which pure code meets the outside. Implementations live in mechanism packages. */

/** Time in milliseconds from an arbitrary origin; monotonic. Tests and simulations drive it by hand. */
export interface Clock {
  now(): number;
  /** Calls `run` after `delayMs`; the returned function cancels it. */
  after(delayMs: number, run: () => void): () => void;
}

/** Who is at the other end of a link: `runner`, or a worker as `rollout/0`, with the incarnation of its process. */
export type PeerName = string;

/**
 * A connection between two processes (or two ends in one process) that carries messages in order.
 *
 * A message is any nest of plain objects, arrays, strings, numbers, booleans, null, undefined, bigint, Date, Map, Set,
 * Buffer and typed arrays. Large typed arrays anywhere in it move out of band without being re-encoded.
 */
export interface Link {
  readonly remote: PeerName;
  /** Queues a message; never awaits. Throws `link.closed` when the link is closed. Order is kept. */
  send(message: unknown): void;
  /** Bytes queued and not yet handed to the operating system; producers of bulk wait for `drained()` above a mark. */
  readonly queuedBytes: number;
  drained(): Promise<void>;
  onMessage(listener: (message: unknown) => void): void;
  /** Called once; `cause` is absent after an orderly close from either side. */
  onClose(listener: (cause: Error | undefined) => void): void;
  close(): Promise<void>;
}

/** What a request handler learns about its caller. */
export type RequestContext = { readonly remote: PeerName; readonly signal: AbortSignal };

/** Requests, replies and notifications over a link. */
export interface Peer {
  readonly link: Link;
  /** Rejects with the handler's error, `call.timeout`, `call.cancelled` (aborts the handler's signal), or `link.closed`. */
  request<T = unknown>(
    method: string,
    body: unknown,
    options?: { signal?: AbortSignal | undefined; timeoutMs?: number | undefined },
  ): Promise<T>;
  notify(method: string, body: unknown): void;
  /** One handler a method; a handler may answer synchronously. */
  handle(method: string, handler: (body: unknown, context: RequestContext) => unknown): void;
}
