/**
 * Messages between any two workers of a run: send and recv, and the collectives built on them.
 *
 * The mailbox of a worker holds what arrived and was not asked for yet; its size is bounded per sender by making the
 * sender wait, so memory stays bounded whoever is slow. When a worker dies, whoever waits for a message of it fails with
 * `worker.died`, and what it had sent before is dropped with it.
 */
import { type MessageEnvelope, type Peer, TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { currentCall } from "./call/call-context.ts";

type Slot = {
  readonly from: string;
  readonly tag: string;
  readonly queue: { value: unknown; taken: () => void }[];
  readonly waiting: Waiter[];
};
type Waiter = { readonly sinceMs: number; resolve: (value: unknown) => void; reject: (error: Error) => void };

const mailboxLimit = 16;

export class Messenger {
  readonly self: string;
  readonly #component: string;
  readonly #rank: number;
  #worldSize: number;
  readonly #connect: (worker: string) => Promise<Peer>;
  readonly #slots = new Map<string, Slot>();
  /** collectives that the current call has made */
  readonly #rounds = new Map<string, number>();

  constructor(component: string, rank: number, worldSize: number, connect: (worker: string) => Promise<Peer>) {
    this.#component = component;
    this.#rank = rank;
    this.#worldSize = worldSize;
    this.self = `${component}/${rank}`;
    this.#connect = connect;
  }

  get worldSize(): number {
    return this.#worldSize;
  }

  /** Between two steps the group has grown or shrunk. */
  resized(worldSize: number): void {
    this.#worldSize = worldSize;
  }

  /** Sends to a worker such as `actor/0`; resolves when it lies in the receiver's mailbox. Order per pair and tag is kept. */
  async send(to: string, value: unknown, tag = ""): Promise<void> {
    const peer = await this.#connect(to);
    await peer.request("message", { from: this.self, tag, value });
  }

  /** The next message of a worker under a tag. Throws `worker.died` when that worker dies first. */
  recv<T = unknown>(from: string, tag = ""): Promise<T> {
    const slot = this.#slot(from, tag);
    const ready = slot.queue.shift();
    if (ready) {
      ready.taken();
      return Promise.resolve(ready.value as T);
    }
    const sinceMs = performance.now();
    return new Promise<unknown>((resolve, reject) => slot.waiting.push({ sinceMs, resolve, reject })) as Promise<T>;
  }

  /** Every rank of the group calls it; all get the root's value. */
  async broadcast<T>(value: T, root = 0): Promise<T> {
    const tag = this.#collectiveTag("broadcast");
    if (this.#rank !== root) return this.recv<T>(`${this.#component}/${root}`, tag);
    await Promise.all(this.#others().map((other) => this.send(other, value, tag)));
    return value;
  }

  /** Every rank of the group calls it; the root gets all values in the order of the ranks, the others undefined. */
  async gather<T>(value: T, root = 0): Promise<T[] | undefined> {
    const tag = this.#collectiveTag("gather");
    if (this.#rank !== root) {
      await this.send(`${this.#component}/${root}`, value, tag);
      return undefined;
    }
    return Promise.all(
      Array.from({ length: this.#worldSize }, (_, rank) =>
        rank === root ? value : this.recv<T>(`${this.#component}/${rank}`, tag),
      ),
    );
  }

  /**
   * Every rank of the group calls it with as many numbers; all get the element-wise sum, bit for bit the same. Sums have the
   * precision of the array: beyond 2^24 float32 no longer counts by one.
   */
  async allReduceSum<T extends Float32Array | Float64Array>(values: T): Promise<T> {
    if (this.#worldSize === 1) return values;
    const parts = await this.gather(values);
    if (!parts) return this.broadcast(values);
    const sum = values.slice() as T; // those of this rank, which is the first
    for (const part of parts.slice(1)) {
      if (part.length !== sum.length) {
        throw new TreadleError(
          "workflow.invalid",
          `ranks of '${this.#component}' reduce arrays of different lengths, '${sum.length}' and '${part.length}'`,
        );
      }
      for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (part[i] as number);
    }
    return this.broadcast(sum);
  }

  /** The messages that have been waited for longer than so. */
  awaited(longerThanMs: number): { from: string; what: string }[] {
    const untilMs = performance.now() - longerThanMs;
    return [...this.#slots.values()]
      .filter(({ waiting: [first] }) => first !== undefined && first.sinceMs < untilMs)
      .map(({ from, tag }) => ({ from, what: kindOf(tag) }));
  }

  /** Called by the host for each message that arrives; the promise settles when the sender may go on. */
  deliver({ from, tag, value }: z.infer<typeof MessageEnvelope>): Promise<void> | undefined {
    const slot = this.#slot(from, tag);
    const waiter = slot.waiting.shift();
    if (waiter) {
      waiter.resolve(value);
      return undefined;
    }
    if (slot.queue.length < mailboxLimit) {
      slot.queue.push({ value, taken: () => {} });
      return undefined;
    }
    return new Promise((taken) => slot.queue.push({ value, taken }));
  }

  /** Called by the host when a worker has died. */
  peerDied(worker: string, cause: TreadleError): void {
    for (const [key, slot] of this.#slots) {
      if (!key.startsWith(`${worker}\n`)) continue;
      for (const message of slot.queue.splice(0)) message.taken();
      for (const waiter of slot.waiting.splice(0)) waiter.reject(cause);
    }
  }

  /** Every rank of a group makes the same collectives in a call, in the same order, so a running number tells them apart. */
  #collectiveTag(kind: string): string {
    const context = currentCall();
    // Ranks of one group call share its sequence, so a rank that starts a call over meets the others where they are.
    const call = context?.call.split("/")[0] ?? "setup";
    const round = this.#rounds.get(call) ?? 0;
    if (round === 0) this.#rounds.clear(); // calls run one after another
    this.#rounds.set(call, round + 1);
    return `#${kind}.${call}.${round}`;
  }

  #others(): string[] {
    const all = Array.from({ length: this.#worldSize }, (_, rank) => `${this.#component}/${rank}`);
    return all.filter((name) => name !== this.self);
  }

  #slot(from: string, tag: string): Slot {
    const key = `${from}\n${tag}`;
    let slot = this.#slots.get(key);
    if (!slot) {
      slot = { from, tag, queue: [], waiting: [] };
      this.#slots.set(key, slot);
    }
    return slot;
  }
}

/** A collective by its name, as its rounds differ by nothing that a person would know. */
function kindOf(tag: string): string {
  if (tag.startsWith("#")) return tag.slice(1, tag.indexOf("."));
  return tag === "" ? "untagged" : `tagged '${tag}'`;
}
