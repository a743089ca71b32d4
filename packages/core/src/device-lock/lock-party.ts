/** A party asks for devices and holds them together: one call, or all calls of a gang. The lock owns every field. */

import type { ReleasableTag } from "@treadle/contracts";
import type { CallRecord } from "./call-order.ts";
import type { RequestId } from "./lock-messages.ts";
import { devicesOf, type Part, type Want, type WorkerState } from "./residency.ts";

/**
 * `asking` waits for its grant; `active` holds a token and computes; `lent` waits for data or credit, and its token is
 * no longer valid.
 */
export type Member = {
  readonly call: CallRecord;
  readonly worker: WorkerState;
  readonly party: Party;
  /** that its worker needs loaded; undefined: all */
  readonly tags: readonly ReleasableTag[] | undefined;
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
  /** Its devices that went to parties behind it, since others of them were held. */
  readonly missed = new Set<string>();
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

  /** What is loaded before its grant (MT3). */
  get wants(): Want[] {
    return this.workers.map((worker) => {
      const tags = new Set<Part["tag"]>([undefined]);
      for (const member of this.members.values())
        if (member.worker === worker) for (const tag of member.tags ?? tagsOf(worker)) tags.add(tag);
      return { worker, parts: worker.parts.filter(({ tag }) => tags.has(tag)) };
    });
  }

  get devices(): readonly string[] {
    this.#devices ??= devicesOf(this.workers);
    return this.#devices;
  }

  /** It keeps others off its devices (L2). */
  isOverdue(maxBypass: number): boolean {
    const hasMissedAll = this.missed.size > 0 && this.devices.every((device) => this.missed.has(device));
    return hasMissedAll || this.numBypassed >= maxBypass;
  }

  /** Said with every change of `members`. */
  membersChanged(): void {
    this.#workers = undefined;
    this.#devices = undefined;
  }

  /** All of its workers are ranks of one. */
  get component(): string {
    const worker = this.workers[0]?.worker ?? "";
    return worker.slice(0, worker.lastIndexOf("/"));
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

const tagsOf = ({ parts }: WorkerState): Part["tag"][] => parts.map(({ tag }) => tag);
