/**
 * What open calls have asked for and not been answered. Pure.
 *
 * A request has a number: those of callers count upwards, and those that the machine makes of its own (first loads, EX6)
 * count down below 0, so that the two never meet.
 */
import { TreadleError, type WaitTerms } from "@treadle/contracts";
import type { StreamRef } from "../device-lock/lock-messages.ts";
import type { Answer, ChannelEnd, Emit } from "./runner-messages.ts";

/** What became of a load: its devices are granted, or refused with the reason. */
export type LoadOutcome = { readonly call: string; readonly error: TreadleError | undefined };

export type OpenCall = {
  readonly call: string;
  worker: string;
  readonly ends: readonly ChannelEnd[];
  /** it has delivered items that it has not acknowledged */
  holds: boolean;
  /** channels of which it commits item by item */
  readonly streamed: Set<string>;
  /** undefined for the workflow's own, which asks for no devices */
  readonly lock: LockPart | undefined;
  /** those that wait */
  readonly requests: Set<number>;
  /** puts and takes, since it began */
  numAnswered: number;
};

export type LockPart = {
  readonly sequence: number;
  readonly gang: string | undefined;
  /** False while nothing can depend on the call: it has no part in the order before it asks for devices. */
  isOrdered: boolean;
  firstToken: number | undefined;
  token: number | undefined;
  isLent: boolean;
};

export type Outcome = { readonly answer: Answer } | { readonly error: unknown };

export type Request = {
  readonly open: OpenCall;
  readonly on: "put" | "take" | "acquire";
  /** its call keeps its devices meanwhile */
  readonly keeps: WaitTerms["keeps"];
  /** of a put or take that waits */
  stream: StreamRef | undefined;
  /** it was not answered at once */
  hasWaited: boolean;
  /** set while the call waits for the devices that it lent */
  outcome: (Outcome & { readonly servedMs: number }) | undefined;
};

export class OpenRequests {
  readonly #emit: Emit;
  readonly #open = new Map<number, Request>();
  readonly #loads: LoadOutcome[] = [];
  #lastOwn = 0;

  constructor(emit: Emit) {
    this.#emit = emit;
  }

  /** A number for a request of the machine itself. */
  nextOwn(): number {
    return --this.#lastOwn;
  }

  asks(request: number, open: OpenCall, on: Request["on"], { keeps, numAnswered }: WaitTerms = {}): void {
    const isUnderWay = numAnswered !== undefined && numAnswered !== open.numAnswered;
    const keepsNow = keeps ?? (isUnderWay ? "for-now" : undefined);
    this.#open.set(request, { open, on, keeps: keepsNow, stream: undefined, hasWaited: false, outcome: undefined });
    open.requests.add(request);
  }

  get(request: number): Request | undefined {
    return this.#open.get(request);
  }

  /** Puts and takes of a call that are not answered, nor about to be. */
  waitingOf({ requests }: OpenCall): number[] {
    return [...requests].filter((id) => {
      const request = this.#open.get(id);
      return request?.stream !== undefined && request.outcome === undefined;
    });
  }

  /** Its call has devices, and may set them to work a moment later. */
  keepsForNow(id: number): boolean {
    const request = this.#open.get(id);
    const lock = request?.open.lock;
    return request?.keeps === "for-now" && lock?.token !== undefined && !lock.isLent;
  }

  /** EX4. */
  answer(id: number, outcome: Outcome, servedMs?: number): void {
    const request = this.#open.get(id);
    request?.open.requests.delete(id);
    if (request && request.on !== "acquire") request.open.numAnswered++;
    this.#open.delete(id);
    if (id < 0) {
      const error = "error" in outcome ? (outcome.error as TreadleError) : undefined;
      if (request && error?.disposition !== "cancelled") this.#loads.push({ call: request.open.call, error });
      return;
    }
    this.#emit(
      "answer" in outcome
        ? { type: "answer", request: id, answer: outcome.answer, ...(servedMs === undefined ? {} : { servedMs }) }
        : { type: "reject", request: id, error: outcome.error },
    );
  }

  /** What a call waited for when it started over or ended is never answered otherwise. */
  callOff({ call, requests }: OpenCall, on: Request["on"]): void {
    for (const request of requests) {
      if (this.#open.get(request)?.on !== on) continue;
      const message = `call '${call}' started over or ended while its ${on} waited`;
      this.answer(request, { error: new TreadleError("call.cancelled", message) });
    }
  }

  /** What became of first loads since this was asked last. */
  takeLoads(): readonly LoadOutcome[] {
    return this.#loads.splice(0);
  }

  /** Rejects all of them. */
  fail(error: unknown): void {
    for (const request of this.#open.keys()) if (request > 0) this.#emit({ type: "reject", request, error });
    this.#open.clear();
  }
}
