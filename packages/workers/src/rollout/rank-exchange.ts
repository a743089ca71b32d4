/**
 * The ranks of a group during one of its calls: which of them take part, and what they tell each other, one message a rank
 * and tick.
 *
 * - RX1 a rank is up from its hello to its death, its farewell, or the hello of a process that starts its call over; up and
 *   down alternate
 * - RX2 what a rank that is up says arrives once and in order; what an earlier process of its said arrives no more
 * - RX3 nobody waits for a rank that has not said hello: a rank may be waiting for devices that this one holds
 */
import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { setTimeout as wait } from "node:timers/promises";
import type { Messenger } from "@treadle/runtime";
import { type GroupPlacement, mostTold } from "@treadle/trajectories";
import { Envelope, type RankLoad, type RankMessage } from "./rank-messages.ts";

type Hello = Extract<RankMessage, { type: "hello" }>;

export type RankEvents = {
  readonly up: (rank: number, hello: Hello) => void;
  readonly down: (rank: number) => void;
  readonly said: (rank: number, message: Exclude<RankMessage, { type: "hello" | "gone" }>) => void;
  /** what is here, as that rank is told when it changes */
  readonly load: (rank: number) => RankLoad;
  /** of those that are unfinished here, as others are told when one has changed */
  readonly episodes: Pick<GroupPlacement, "episodes" | "tell">;
  readonly failed: (error: unknown) => void;
};

type Other = {
  readonly rank: number;
  readonly name: string;
  nonce: string | undefined;
  isUp: boolean;
  /** of its last envelope */
  sequence: number;
  out: RankMessage[];
  nextSequence: number;
  isSending: boolean;
  /** whether the last envelope has arrived */
  lastSent: Promise<boolean>;
  /** undefined: it is told as soon as it is up */
  toldLoad: RankLoad | undefined;
  /** of which it does not know how they are: however long an envelope takes, one entry an episode */
  readonly untold: Set<number>;
};

export type RankExchangeOptions = {
  readonly messages: Pick<Messenger, "send" | "recv" | "callTag">;
  readonly component: string;
  readonly rank: number;
  readonly worldSize: number;
  /** of now */
  readonly hello: () => Omit<Hello, "type">;
  readonly events: RankEvents;
};

const resendMs = 200;

export class RankExchange {
  readonly #options: RankExchangeOptions;
  readonly #tag: string;
  /** of this process in this call */
  readonly nonce: string = randomUUID();
  readonly #others = new Map<number, Other>();
  readonly #closing = new AbortController();
  readonly #loops: Promise<void>[] = [];
  readonly #closed: Promise<boolean>;
  #isTicking = false;

  constructor(options: RankExchangeOptions) {
    this.#options = options;
    const { signal } = this.#closing;
    setMaxListeners(0, signal); // one for each rank that is listened to
    this.#closed = new Promise((resolve) => signal.addEventListener("abort", () => resolve(true), { once: true }));
    const { component, rank, worldSize, messages, hello } = options;
    this.#tag = messages.callTag("episodes");
    for (let other = 0; other < worldSize; other++) {
      if (other === rank) continue;
      this.#others.set(other, {
        rank: other,
        name: `${component}/${other}`,
        nonce: undefined,
        isUp: false,
        sequence: -1,
        out: [{ type: "hello", ...hello() }],
        nextSequence: 0,
        isSending: false,
        lastSent: Promise.resolve(false),
        toldLoad: undefined,
        untold: new Set(),
      });
    }
  }

  start(): void {
    for (const other of this.#others.values()) this.#loops.push(this.#listen(other).catch(this.#options.events.failed));
    this.changed();
  }

  /** To a rank that is up; what is said to others is lost, as they were told to be down. */
  say(rank: number, message: RankMessage): void {
    const other = this.#others.get(rank);
    if (!other?.isUp) return;
    other.out.push(message);
    this.changed();
  }

  sayAll(message: RankMessage): void {
    for (const rank of this.#others.keys()) this.say(rank, message);
  }

  /** What is told of that episode is another, or it has ended. */
  episodeChanged(episode: number): void {
    for (const other of this.#others.values()) if (other.isUp) other.untold.add(episode);
    this.changed();
  }

  /** Something is to be said, or the load may have changed. */
  changed(): void {
    if (this.#isTicking || this.#closing.signal.aborted) return;
    this.#isTicking = true;
    setImmediate(() => {
      this.#isTicking = false;
      for (const other of this.#others.values()) void this.#flush(other);
    });
  }

  /** Returns once what was said before has arrived, or its receiver is down. */
  async close(): Promise<void> {
    for (const other of this.#others.values()) {
      while (other.isUp && (other.isSending || other.out.length > 0)) {
        if (other.isSending) await wait(1);
        else await this.#flush(other);
      }
    }
    this.#closing.abort();
    await Promise.all(this.#loops);
    for (const other of this.#others.values()) this.#part(other);
  }

  /** RX3: also to those that have not come yet, as this rank's hello waits for them. */
  #part(other: Other): void {
    const farewell = { nonce: this.nonce, sequence: other.nextSequence++, messages: [{ type: "gone" as const }] };
    const { messages } = this.#options;
    void other.lastSent.then(async (isSent) => {
      if (isSent) await messages.send(other.name, farewell, this.#tag).catch(() => {});
    });
  }

  async #flush(other: Other): Promise<void> {
    if (other.isSending) return;
    if (this.#hasOtherLoad(other)) {
      other.toldLoad = this.#options.events.load(other.rank);
      other.out.push({ type: "load", load: other.toldLoad });
    }
    this.#tellEpisodes(other);
    if (other.out.length === 0) return;
    other.isSending = true;
    const messages = other.out;
    other.out = [];
    const envelope = { nonce: this.nonce, sequence: other.nextSequence++, messages };
    try {
      for (const { nonce } = other; nonce === other.nonce && !this.#closing.signal.aborted; ) {
        other.lastSent = this.#options.messages.send(other.name, envelope, this.#tag).then(
          () => true,
          () => false,
        );
        if (await Promise.race([other.lastSent, this.#closed])) break;
        // Whoever is gone is said to be dead; whoever is not can be reached again.
        await wait(resendMs);
      }
    } finally {
      other.isSending = false;
    }
    if (other.out.length > 0 || other.untold.size > 0 || this.#hasOtherLoad(other)) this.changed();
  }

  #tellEpisodes({ out, untold, isUp }: Other): void {
    if (!isUp || untold.size === 0) return;
    const some = [...untold].slice(0, mostTold);
    for (const episode of some) untold.delete(episode);
    out.push({ type: "episodes", ...this.#options.events.episodes.tell(some), numUntold: untold.size });
  }

  #hasOtherLoad(other: Other): boolean {
    if (!other.isUp) return false;
    const { toldLoad } = other;
    if (!toldLoad) return true;
    const { active, waiting, yours } = this.#options.events.load(other.rank);
    return active !== toldLoad.active || waiting !== toldLoad.waiting || yours !== toldLoad.yours;
  }

  async #listen(other: Other): Promise<void> {
    const { messages } = this.#options;
    const { signal } = this.#closing;
    while (!signal.aborted) {
      let value: unknown;
      try {
        value = await messages.recv(other.name, this.#tag, { signal });
      } catch {
        if (!signal.aborted) this.#lose(other);
        continue;
      }
      const { nonce, sequence, messages: said } = Envelope.parse(value);
      if (nonce === other.nonce && sequence <= other.sequence) continue; // RX2
      for (const message of said) this.#hear(other, nonce, message);
      other.sequence = sequence;
    }
  }

  #hear(other: Other, nonce: string, message: RankMessage): void {
    if (message.type === "hello") {
      if (nonce !== other.nonce) this.#meet(other, nonce, message);
    } else if (message.type === "gone") {
      if (nonce === other.nonce) this.#down(other);
    } else if (nonce !== other.nonce) {
      // It was taken for dead, and has not heard of it.
      if (other.out[0]?.type !== "gone") this.#lose(other);
    } else if (other.isUp) this.#options.events.said(other.rank, message);
  }

  /** Whatever process is there now begins with a farewell to the one before, and a hello. */
  #lose(other: Other): void {
    this.#down(other);
    other.out = [{ type: "gone" }, { type: "hello", ...this.#options.hello() }];
    this.changed();
  }

  /** RX1 */
  #meet(other: Other, nonce: string, hello: Hello): void {
    this.#down(other);
    other.nonce = nonce;
    other.sequence = -1;
    const own = this.#options.hello();
    // An earlier process may have had the first one.
    other.out = [{ type: "hello", ...own }];
    if (hello.weightsId === undefined || hello.weightsId !== own.weightsId) return;
    other.isUp = true;
    other.toldLoad = undefined;
    for (const episode of this.#options.events.episodes.episodes) other.untold.add(episode);
    this.#options.events.up(other.rank, hello);
    this.changed();
  }

  #down(other: Other): void {
    other.nonce = undefined;
    if (!other.isUp) return;
    other.isUp = false;
    other.out = [];
    other.untold.clear();
    this.#options.events.down(other.rank);
  }
}
