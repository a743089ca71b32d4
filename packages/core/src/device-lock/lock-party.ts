/** A party asks for devices and holds them together: one call, or all calls of a gang. The lock owns every field. */
import type { CallRecord } from "./call-order.ts";
import type { RequestId } from "./lock-messages.ts";
import { devicesOf, type WorkerState } from "./residency.ts";

/**
 * `asking` waits for its grant; `active` holds a token and computes; `lent` waits for data or credit, and its token is
 * no longer valid.
 */
export type Member = {
  readonly call: CallRecord;
  readonly worker: WorkerState;
  readonly party: Party;
  state: "asking" | "active" | "lent";
  /** Asked and not answered; each one answered counts once (L5). */
  requests: RequestId[];
  count: number;
  token: number;
  sinceMs: number;
  timeoutMs: number;
};

/**
 * `gathering` some calls of the gang have not asked; `waiting` for devices; `preparing` has reserved the devices and
 * swaps; `held`; `lent` every member waits for something else, and others may use the devices.
 */
export type PartyState = "gathering" | "waiting" | "preparing" | "held" | "lent";

export class Party {
  readonly members = new Map<string, Member>();
  /** Order of arrival; a reclaimed loan arrives anew. */
  arrival: number;
  state: PartyState = "gathering";
  /** devices that are reserved for it */
  readonly holds = new Set<string>();
  /** Asks for the second time after a loan: before the others, and its producers no longer matter. */
  reclaims = false;
  /** Later arrivals that went first. */
  numBypassed = 0;
  /** Refused or cancelled while a worker was being onloaded: it holds the devices until that is over. */
  isCancelled = false;
  #workers: readonly WorkerState[] | undefined;
  #devices: readonly string[] | undefined;

  constructor(arrival: number) {
    this.arrival = arrival;
  }

  get workers(): readonly WorkerState[] {
    this.#workers ??= [...new Set([...this.members.values()].map((member) => member.worker))];
    return this.#workers;
  }

  get devices(): readonly string[] {
    this.#devices ??= devicesOf(this.workers);
    return this.#devices;
  }

  /** Said with every change of `members`. */
  membersChanged(): void {
    this.#workers = undefined;
    this.#devices = undefined;
  }

  get sequence(): number {
    let sequence = Number.POSITIVE_INFINITY;
    for (const { call } of this.members.values()) sequence = Math.min(sequence, call.sequence);
    return sequence;
  }

  has(state: Member["state"]): boolean {
    for (const member of this.members.values()) if (member.state === state) return true;
    return false;
  }
}
