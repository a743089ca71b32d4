/** Says on the NATS thread that a member is there, and what it is, also while its main thread computes for minutes. */
import type { NatsConnection, Subscription } from "@nats-io/transport-node";
import type { Presence, Said } from "./nats-messages.ts";

/** Many may ask at once: the first is answered at once, and all who ask within this time after it together. */
const answersMs = 100;

export class PresentMember {
  readonly #connection: NatsConnection;
  readonly #timer: NodeJS.Timeout;
  readonly #subscriptions: readonly Subscription[];
  #presence: Presence;
  #answered: NodeJS.Timeout | undefined;
  #isAsked = false;

  constructor(connection: NatsConnection, presence: Presence) {
    this.#connection = connection;
    this.#presence = presence;
    const { probe, ask, intervalMs } = presence;
    this.#subscriptions = [probe, ask].map((subject) =>
      connection.subscribe(subject, { callback: () => this.#answer() }),
    );
    this.#timer = setInterval(() => this.#publish(this.#presence.beat), intervalMs);
    this.say();
  }

  /** The entry comes first: who hears the beat knows whose it is. */
  say(): void {
    this.#publish(this.#presence.entry);
    this.#publish(this.#presence.beat);
  }

  become(presence: Presence): void {
    this.#presence = presence;
    this.say();
  }

  stop(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#answered);
    for (const subscription of this.#subscriptions) subscription.unsubscribe();
  }

  #answer(): void {
    if (this.#answered !== undefined) {
      this.#isAsked = true;
      return;
    }
    this.say();
    this.#answered = setTimeout(() => {
      this.#answered = undefined;
      if (!this.#isAsked) return;
      this.#isAsked = false;
      this.#answer();
    }, answersMs);
  }

  #publish({ subject, data }: Said): void {
    try {
      this.#connection.publish(subject, data);
    } catch {
      // closed meanwhile
    }
  }
}
