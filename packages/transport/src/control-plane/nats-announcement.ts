/** What a member says of itself over NATS: its entry, whenever it changes or somebody asks, and beats. */
import { setTimeout as delay } from "node:timers/promises";
import type { Announcement, MemberKind } from "@treadle/contracts";
import { z } from "zod";
import { boundedText, readJson } from "./bounded-json.ts";
import { maxEntryBytes } from "./flood-gate.ts";
import type { NatsConnection } from "./nats-connection.ts";
import type { Presence } from "./nats-messages.ts";
import { SealKey } from "./sealed-box.ts";
import { EntryProof, maxPresenceWords, PresenceProof, type Trust } from "./trust.ts";

const withdrawTimeoutMs = 3000;
/** Many may ask at once, and a signature takes a millisecond: one answers all who ask within this time. */
const gatherMs = 20;

const Version = z.int().nonnegative();
/** Microseconds of the clock until the year 2112. Nobody could be newer than one that is at the end of all numbers. */
const maxIncarnation = 2 ** 52;
const Entry = z.object({
  incarnation: z.int().positive().max(maxIncarnation),
  version: Version,
  body: z.unknown(),
  proof: EntryProof.optional(),
  /** by which it is written to, where there is no proof, which has one */
  seal: SealKey.optional(),
});
const Beat = z.object({
  incarnation: z.int().positive().max(maxIncarnation),
  version: Version.optional(),
  goodbye: z.string().max(1000).optional(),
  presence: PresenceProof.optional(),
});
const Question = z.object({ word: z.uuid() });
const Kind = z.enum(["node", "run", "pool"]);

export const readEntry = (data: string): z.infer<typeof Entry> | undefined => readJson(Entry, data);
export const readBeat = (data: string): z.infer<typeof Beat> | undefined => readJson(Beat, data);

/** What tells two processes apart that say the same of themselves. */
export const identityOf = ({ proof, seal }: z.infer<typeof Entry>): string => proof?.seal ?? seal ?? "";

/** What somebody asks who wants to know whether a member is there (TR6). */
export const presenceQuestion = (word: string): string => JSON.stringify({ word } satisfies z.infer<typeof Question>);

/** Whose it is, of a subject that ends so. */
export function memberIn(subject: string): { readonly kind: MemberKind; readonly name: string } | undefined {
  const [kind, name] = subject.split(".").slice(-2);
  const known = Kind.safeParse(kind);
  return known.success && name !== undefined ? { kind: known.data, name } : undefined;
}

/**
 * Microseconds of the wall clock as it was when this process began: later announcements of one process are above its earlier
 * ones, whatever is done to the clock, and those of different processes do not meet.
 */
export const incarnationNow = (): number => Math.floor((performance.timeOrigin + performance.now()) * 1000);

export type AnnouncementOptions = {
  readonly prefix: string;
  /** as `node.a` */
  readonly key: string;
  readonly incarnation: number;
  readonly body: unknown;
  readonly trust: Trust | undefined;
  /** by which this process is written to */
  readonly seal: string;
  readonly intervalMs: number;
  /** stops answering commands */
  readonly end: () => Promise<void>;
};

export class NatsAnnouncement implements Announcement {
  readonly key: string;
  readonly incarnation: number;
  readonly #connection: NatsConnection;
  readonly #options: AnnouncementOptions;
  readonly #replacedListeners: (() => void)[] = [];
  #presence: Awaited<ReturnType<NatsConnection["present"]>> | undefined;
  #version = 0;
  #words: string[] = [];
  #isOver = false;
  #isReplaced = false;

  constructor(connection: NatsConnection, options: AnnouncementOptions) {
    this.#connection = connection;
    this.#options = options;
    this.key = options.key;
    this.incarnation = options.incarnation;
  }

  /** Resolves when the server has been told. Rejects with `link.frame-too-large`. */
  async start(): Promise<void> {
    this.#presence = await this.#connection.present(this.#presenceOf(this.#options.body));
    if (this.#isOver) this.#presence.end();
  }

  /** Somebody asks this member for something. */
  asked(data: string): void {
    const { trust, prefix } = this.#options;
    const question = trust && readJson(Question, data);
    if (trust === undefined || question === undefined || this.#words.length >= maxPresenceWords) return;
    if (this.#words.push(question.word) > 1) return;
    setTimeout(() => {
      const presence = trust.provePresence(this.key, this.incarnation, this.#words);
      this.#words = [];
      if (this.#isOver) return;
      this.#connection.publish(
        `${prefix}.beat.${this.key}`,
        JSON.stringify({ incarnation: this.incarnation, version: this.#version, presence }),
      );
    }, gatherMs).unref();
  }

  async update(body: unknown): Promise<void> {
    if (this.#isOver) return;
    this.#version++;
    await this.#presence?.become(this.#presenceOf(body));
  }

  async withdraw(reason: string): Promise<void> {
    if (this.#isOver) return;
    const { prefix, end } = this.#options;
    this.#stop();
    const goodbye = JSON.stringify({ incarnation: this.incarnation, goodbye: reason });
    this.#connection.publish(`${prefix}.beat.${this.key}`, goodbye);
    // While the server is away nothing can be said, and nobody needs to wait for it: silence says the same.
    await Promise.race([end().catch(() => {}), delay(withdrawTimeoutMs, undefined, { ref: false })]);
  }

  onReplaced(listener: () => void): void {
    if (this.#isReplaced) queueMicrotask(listener);
    else this.#replacedListeners.push(listener);
  }

  get isReplaced(): boolean {
    return this.#isReplaced;
  }

  replaced(): void {
    if (this.#isOver) return;
    this.#isReplaced = true;
    this.#stop();
    void this.#options.end().catch(() => {}); // the connection has ended
    for (const listener of this.#replacedListeners) listener();
  }

  #stop(): void {
    this.#isOver = true;
    this.#presence?.end();
  }

  #presenceOf(body: unknown): Presence {
    const { prefix, key, incarnation, trust, seal, intervalMs } = this.#options;
    const version = this.#version;
    const proof = trust === undefined ? { seal } : { proof: trust.prove(key, { incarnation, version, body }) };
    const text = JSON.stringify({ incarnation, version, body, ...proof });
    const entry = boundedText(text, `what '${key}' says of itself`, maxEntryBytes);
    return {
      beat: { subject: `${prefix}.beat.${key}`, data: JSON.stringify({ incarnation, version }) },
      entry: { subject: `${prefix}.entry.${key}`, data: entry },
      intervalMs,
      probe: `${prefix}.probe`,
      ask: `${prefix}.ask.${key}`,
    };
  }
}
