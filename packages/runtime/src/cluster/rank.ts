/**
 * One rank of a component over all its incarnations: its process, its link, and the calls that are under way on it.
 *
 * R1 calls reach a process in the order in which they were made, also after a restart.
 * R2 a call settles once; a process's death leaves it pending until the rank runs again or the run gives up.
 */
import { CallReply, type CallRequest, type Cancellation, type Peer, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { Place } from "./relocate.ts";
import type { LaunchedWorker } from "./remote-worker.ts";

export type PendingCall = {
  readonly request: CallRequest;
  readonly signal: Cancellation;
  readonly timeoutMs: number;
  readonly resolve: (reply: CallReply) => void;
  readonly reject: (error: unknown) => void;
  attempts: number;
};

/** Far enough apart that a node which went without a word is found out before the last. */
const maxAttempts = 5;

export class Rank {
  readonly name: string;
  readonly component: string;
  readonly index: number;
  /** where it runs, or is to run; another place when its node was lost */
  place: Place;
  /** of the first process here: larger than that of any process that had this name under an earlier plan */
  readonly firstIncarnation: number;
  incarnation: number;
  process: LaunchedWorker | undefined;
  addresses: readonly string[] = [];
  /** how the present process reaches the runner */
  route: "direct" | "nats" | undefined;
  /** the link of the present process, from the moment that it is set up, before it is ready for calls */
  control: Peer | undefined;
  #peer: Peer | undefined;
  readonly #pending = new Map<string, PendingCall>();
  #failure: { readonly error: unknown } | undefined;
  readonly #waitingForReady: { resolve: (peer: Peer) => void; reject: (error: unknown) => void }[] = [];
  readonly #onRetry: (rank: Rank, call: PendingCall, error: TreadleError) => Promise<void>;

  constructor(
    component: string,
    index: number,
    place: Place,
    onRetry: (rank: Rank, call: PendingCall, error: TreadleError) => Promise<void>,
    firstIncarnation = 0,
  ) {
    this.component = component;
    this.index = index;
    this.name = `${component}/${index}`;
    this.place = place;
    this.#onRetry = onRetry;
    this.firstIncarnation = firstIncarnation;
    this.incarnation = firstIncarnation;
  }

  get node(): string {
    return this.place.node;
  }

  get devices(): readonly string[] {
    return this.place.devices;
  }

  get peer(): Peer | undefined {
    return this.#peer;
  }

  get pending(): readonly PendingCall[] {
    return [...this.#pending.values()];
  }

  /** The link of the running process; waits while it starts or restarts. */
  ready(): Promise<Peer> {
    if (this.#failure) return Promise.reject(this.#failure.error);
    if (this.#peer) return Promise.resolve(this.#peer);
    return new Promise((resolve, reject) => this.#waitingForReady.push({ resolve, reject }));
  }

  /** A process of this rank is ready for calls; what was pending is sent first (R1). */
  up(peer: Peer, addresses: readonly string[]): void {
    this.#peer = peer;
    this.addresses = addresses;
    const inOrder = this.pending.toSorted((a, b) => a.request.sequence - b.request.sequence);
    for (const call of inOrder) this.#send(call, peer);
    for (const waiting of this.#waitingForReady.splice(0)) waiting.resolve(peer);
  }

  /** The process is gone, or is not to be used any more: what it may still have sent must not count for the next one. */
  down(): void {
    const gone = new TreadleError("link.closed", `worker '${this.name}' is not used any more`);
    void this.control?.link.close(gone).catch(() => {});
    this.control = undefined;
    this.#peer = undefined;
  }

  /** Nothing more will come of this rank. */
  fail(error: unknown): void {
    this.#failure ??= { error };
    this.control = undefined;
    this.#peer = undefined;
    for (const call of this.#pending.values()) call.reject(error);
    this.#pending.clear();
    for (const waiting of this.#waitingForReady.splice(0)) waiting.reject(error);
  }

  submit(call: PendingCall): void {
    if (this.#failure) {
      call.reject(this.#failure.error);
      return;
    }
    this.#pending.set(call.request.call, call);
    if (this.#peer) this.#send(call, this.#peer);
  }

  /** Puts a call back that had settled on this rank, because its group starts over. */
  requeue(call: PendingCall): void {
    this.#pending.set(call.request.call, call);
  }

  #send(call: PendingCall, peer: Peer): void {
    const incarnation = this.incarnation;
    call.attempts++;
    const { signal, timeoutMs } = call;
    peer.request("call", call.request, { signal, timeoutMs }).then(
      (reply) => {
        if (incarnation !== this.incarnation || !this.#pending.delete(call.request.call)) return;
        const checked = checkReply(reply, this.name, call.request.method);
        if (checked instanceof TreadleError) call.reject(checked);
        else call.resolve(checked);
      },
      (error: unknown) => {
        if (incarnation !== this.incarnation || !this.#pending.has(call.request.call)) return;
        // R2: the end of the process comes by its own way and decides.
        if (
          this.#peer !== peer ||
          (error instanceof TreadleError && error.code === "link.closed" && error.origin.worker === undefined)
        )
          return;
        const retry = error instanceof TreadleError && error.disposition === "retryable" && call.attempts < maxAttempts;
        if (retry) {
          void this.#onRetry(this, call, error).then(
            () => {
              // R2: a process that came up meanwhile has been sent the call already.
              if (incarnation !== this.incarnation) return;
              if (this.#peer && this.#pending.has(call.request.call)) this.#send(call, this.#peer);
            },
            (fatal) => this.#reject(call, fatal),
          );
          return;
        }
        this.#reject(call, error);
      },
    );
  }

  #reject(call: PendingCall, error: unknown): void {
    if (!this.#pending.delete(call.request.call)) return;
    if (call.attempts > 1) this.#giveUp(call);
    call.reject(error);
  }

  /** The process may still keep its later calls back for this one. */
  #giveUp(call: PendingCall): void {
    try {
      this.#peer?.notify("give-up", { call: call.request.call });
    } catch {
      // it has just ended
    }
  }
}

/** A reply without timers and files, as most are, is checked by hand: a record's schema costs as much as the call. */
function checkReply(body: unknown, worker: string, method: string): CallReply | TreadleError {
  const reply = body as CallReply | null;
  if (typeof reply === "object" && reply !== null && typeof reply.durationMs === "number") {
    const { timers, savedPath, observation } = reply;
    if (
      savedPath === undefined &&
      observation === undefined &&
      typeof timers === "object" &&
      timers !== null &&
      isEmpty(timers)
    )
      return reply;
  }
  const checked = CallReply.safeParse(body);
  if (checked.success) return checked.data;
  return new TreadleError(
    "link.protocol",
    `worker '${worker}' answered '${method}' with what is no reply: ${z.prettifyError(checked.error)}; run the same version everywhere, and leave the process's clock and objects alone`,
    { cause: checked.error, origin: { worker, method } },
  );
}

function isEmpty(fields: object): boolean {
  for (const _ in fields) return false;
  return true;
}
