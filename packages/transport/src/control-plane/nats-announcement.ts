/** An announcement's entry in the bucket of members, and who may write it: the highest incarnation of its name. */
import { setTimeout as delay } from "node:timers/promises";
import type { Announcement } from "@treadle/contracts";
import { z } from "zod";
import { readJson } from "./bounded-json.ts";
import type { NatsConnection } from "./nats-connection.ts";
import { EntryProof, type Trust } from "./trust.ts";

/** Writes by compare-and-set that lose against others so often are given up. */
export const announceAttempts = 10;
const withdrawTimeoutMs = 3000;

const Entry = z.object({ incarnation: z.int().positive(), body: z.unknown(), proof: EntryProof.optional() });

export class NatsAnnouncement implements Announcement {
  readonly key: string;
  readonly incarnation: number;
  readonly #connection: NatsConnection;
  readonly #bucket: string;
  readonly #ports: { readonly goodbye: (reason: string) => void; readonly end: () => Promise<void> };
  readonly #replacedListeners: (() => void)[] = [];
  readonly #trust: Trust | undefined;
  #body: unknown;
  #isOver = false;

  constructor(
    connection: NatsConnection,
    bucket: string,
    key: string,
    incarnation: number,
    body: unknown,
    trust: Trust | undefined,
    ports: { readonly goodbye: (reason: string) => void; readonly end: () => Promise<void> },
  ) {
    this.#connection = connection;
    this.#bucket = bucket;
    this.key = key;
    this.incarnation = incarnation;
    this.#body = body;
    this.#trust = trust;
    this.#ports = ports;
  }

  async update(body: unknown): Promise<void> {
    this.#body = body;
    await this.#write();
  }

  /** A node's entry stays, so that its next incarnation is a higher one (CP1); it counts only while it beats. */
  async withdraw(reason: string): Promise<void> {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#ports.goodbye(reason);
    const isRun = this.key.startsWith("run.");
    const said = this.#ports.end().then(() => (isRun ? this.#connection.delete(this.#bucket, this.key) : undefined));
    // While the server is away nothing can be said, and nobody needs to wait for it: silence says the same.
    await Promise.race([said.catch(() => {}), delay(withdrawTimeoutMs, undefined, { ref: false })]);
  }

  onReplaced(listener: () => void): void {
    this.#replacedListeners.push(listener);
  }

  replaced(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    void this.#ports.end().catch(() => {}); // the connection has ended
    for (const listener of this.#replacedListeners) listener();
  }

  /** A server that keeps nothing over its restart has forgotten us. */
  refreshed(): void {
    void this.#write().catch(() => {}); // the next reconnection tries again
  }

  async #write(): Promise<void> {
    for (let attempt = 0; attempt < announceAttempts && !this.#isOver; attempt++) {
      const present = await this.#connection.get(this.#bucket, this.key);
      const entry = readEntry(present?.data);
      if (entry !== undefined && entry.incarnation > this.incarnation) {
        this.replaced();
        return;
      }
      const data = entryOf(this.key, this.incarnation, this.#body, this.#trust);
      if (present?.data === data) return;
      if ((await this.#connection.put(this.#bucket, this.key, data, present?.revision ?? 0)) === "put") return;
    }
  }
}

export function readEntry(data: string | undefined): z.infer<typeof Entry> | undefined {
  return data === undefined ? undefined : readJson(Entry, data);
}

/** What is written of an announcement. */
export function entryOf(key: string, incarnation: number, body: unknown, trust: Trust | undefined): string {
  const proof = trust === undefined ? {} : { proof: trust.prove(key, incarnation, body) };
  return JSON.stringify({ incarnation, body, ...proof });
}
