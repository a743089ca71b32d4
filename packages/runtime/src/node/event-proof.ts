/**
 * Events of a run go by topics, where others may publish, too. Each carries a code that only holders of the run's token can
 * make, and its number.
 *
 * EV1 an event counts only as its code says: for this run, this topic, and nothing of it changed.
 * EV2 it counts once: the numbers of one stream of events grow.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { EventProof } from "@treadle/contracts";

export type EventsOf = { readonly topic: string; readonly run: string; readonly token: string };

type Proven<E> = E & { readonly proof: EventProof };

/** Of one who publishes. */
export class EventProver {
  readonly #of: EventsOf;
  readonly #stream = crypto.randomUUID();
  #sequence = 0;

  constructor(of: EventsOf) {
    this.#of = of;
  }

  prove<E extends object>(event: E): Proven<E> {
    const proof = { stream: this.#stream, sequence: ++this.#sequence };
    return { ...event, proof: { ...proof, mac: codeOf(this.#of, proof, event).toString("hex") } };
  }
}

/** Of whoever listens. */
export class EventChecker {
  readonly #of: EventsOf;
  /** what came last of each; only holders of the token begin one */
  readonly #last = new Map<string, number>();

  constructor(of: EventsOf) {
    this.#of = of;
  }

  /** Whether it counts; it does not a second time. */
  isGenuine({ proof, ...event }: Proven<object>): boolean {
    const { stream, sequence, mac } = proof;
    if (!timingSafeEqual(Buffer.from(mac, "hex"), codeOf(this.#of, proof, event))) return false; // EV1
    if (sequence <= (this.#last.get(stream) ?? 0)) return false; // EV2
    this.#last.set(stream, sequence);
    return true;
  }
}

function codeOf({ topic, run, token }: EventsOf, proof: Omit<EventProof, "mac">, event: object): Buffer {
  const { stream, sequence } = proof;
  const text = JSON.stringify(["treadle event 1", topic, run, stream, sequence, event], inOrder);
  return createHmac("sha256", token).update(text).digest();
}

/** The same text whatever order the fields are in. */
const inOrder = (_: string, value: unknown): unknown =>
  typeof value === "object" && value !== null && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
    : value;
