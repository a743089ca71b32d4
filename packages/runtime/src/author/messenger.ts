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
import {
  incomplete,
  openPlace,
  type Rendezvous,
  type RendezvousAddress,
  type RendezvousOptions,
  type RendezvousOutcome,
  type RendezvousReply,
} from "./rendezvous.ts";

type Slot = {
  readonly from: string;
  readonly tag: string;
  readonly queue: { value: unknown; taken: () => void }[];
  readonly waiting: Waiter[];
};
type Waiter = { readonly sinceMs: number; resolve: (value: unknown) => void; reject: (error: Error) => void };

const mailboxLimit = 16;
/** Of tags that nobody waits under any more; what comes under an older one is long overdue. */
const endedLimit = 1024;
const rendezvousLimitMs = 60_000;

export class Messenger {
  readonly self: string;
  readonly #component: string;
  readonly #rank: number;
  #worldSize: number;
  readonly #connect: (worker: string) => Promise<Peer>;
  readonly #address: RendezvousAddress;
  readonly #slots = new Map<string, Slot>();
  /** of those whose waiting was ended: what still comes for them is dropped */
  readonly #ended = new Set<string>();
  /** collectives that the current call has made */
  readonly #rounds = new Map<string, number>();

  constructor(
    component: string,
    rank: number,
    worldSize: number,
    connect: (worker: string) => Promise<Peer>,
    address: RendezvousAddress = { host: "127.0.0.1", listen: "127.0.0.1" },
  ) {
    this.#address = address;
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

  /** A tag of the call under way: the ranks of one group call have the same, and no other call has it. */
  callTag(name: string): string {
    return `${name}.${groupCall()}`;
  }

  /**
   * The next message of a worker under a tag. Throws `worker.died` when that worker dies first, and the signal's reason when that
   * aborts: what has come or comes under the tag is dropped then.
   */
  recv<T = unknown>(from: string, tag = "", { signal }: { readonly signal?: AbortSignal } = {}): Promise<T> {
    if (signal) return this.#recvUntil(signal, from, tag) as Promise<T>;
    this.#ended.delete(keyOf(from, tag));
    const slot = this.#slot(from, tag);
    const ready = slot.queue.shift();
    if (ready) {
      ready.taken();
      return Promise.resolve(ready.value as T);
    }
    const sinceMs = performance.now();
    return new Promise<unknown>((resolve, reject) => slot.waiting.push({ sinceMs, resolve, reject })) as Promise<T>;
  }

  async #recvUntil(signal: AbortSignal, from: string, tag: string): Promise<unknown> {
    const end = () => {
      const slot = this.#slot(from, tag);
      for (const message of slot.queue.splice(0)) message.taken();
      for (const waiter of slot.waiting.splice(0)) waiter.reject(signal.reason);
      const key = keyOf(from, tag);
      this.#slots.delete(key);
      this.#ended.add(key);
      const [oldest] = this.#ended;
      if (this.#ended.size > endedLimit && oldest !== undefined) this.#ended.delete(oldest);
    };
    if (signal.aborted) {
      end();
      throw signal.reason;
    }
    signal.addEventListener("abort", end, { once: true });
    try {
      return await this.recv(from, tag);
    } finally {
      signal.removeEventListener("abort", end);
    }
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

  /**
   * Every rank of the group calls it, in `setup`, in `load` or in a call: all get an address and a port on which the first
   * rank may listen, on the loopback interface unless `cluster.links` or the node says otherwise. Throws
   * `rendezvous.incomplete` with the ranks that did not come in time.
   */
  async rendezvous({ timeoutMs = rendezvousLimitMs }: RendezvousOptions = {}): Promise<Rendezvous> {
    const tag = this.#collectiveTag("rendezvous");
    const limit = AbortSignal.timeout(timeoutMs);
    const outcome = this.#rank === 0 ? await this.#receive(tag, limit) : await this.#come(tag, limit);
    if (outcome.type === "place") return outcome.place;
    throw incomplete(this.#component, outcome.workers, timeoutMs);
  }

  /** RV1, RV3: the first rank waits for the others, and tells those that came what became of it. */
  async #receive(tag: string, limit: AbortSignal): Promise<RendezvousOutcome> {
    const others = this.#others();
    const came = await Promise.all(
      others.map(async (other) => {
        if (!(await this.#within(limit, other, tag, () => this.recv(other, tag)))) return false;
        await this.send(other, { type: "awaited" } satisfies RendezvousReply, tag);
        return true;
      }),
    );
    const workers = others.filter((_, at) => !came[at]);
    const outcome: RendezvousOutcome =
      workers.length > 0 ? { type: "missing", workers } : { type: "place", place: await openPlace(this.#address) };
    await Promise.all(others.map((other, at) => came[at] && this.send(other, outcome, tag)));
    return outcome;
  }

  /** Once the first rank has answered, the limit is that one's. */
  async #come(tag: string, limit: AbortSignal): Promise<RendezvousOutcome> {
    const first = `${this.#component}/0`;
    const meet = async () => {
      await this.send(first, null, tag);
      if (!limit.aborted) await this.recv<RendezvousReply>(first, tag);
    };
    if (!(await this.#within(limit, first, tag, meet))) return { type: "missing", workers: [first] };
    return this.recv<RendezvousOutcome>(first, tag);
  }

  /** Whether a message came before the limit; after it nobody waits for it. */
  async #within(limit: AbortSignal, from: string, tag: string, ask: () => Promise<unknown>): Promise<boolean> {
    let end = () => {};
    const over = new Promise<false>((resolve) => {
      end = () => {
        this.#slot(from, tag).waiting.length = 0;
        resolve(false);
      };
    });
    limit.addEventListener("abort", end);
    try {
      return await Promise.race([ask().then(() => true), over]);
    } finally {
      limit.removeEventListener("abort", end);
    }
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
    if (this.#ended.has(keyOf(from, tag))) return undefined;
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
    const call = groupCall();
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
    const key = keyOf(from, tag);
    let slot = this.#slots.get(key);
    if (!slot) {
      slot = { from, tag, queue: [], waiting: [] };
      this.#slots.set(key, slot);
    }
    return slot;
  }
}

const keyOf = (from: string, tag: string): string => `${from}\n${tag}`;

/** Ranks of one group call share its sequence, so a rank that starts a call over meets the others where they are. */
const groupCall = (): string => currentCall()?.call.split("/")[0] ?? "setup";

/** A collective by its name, as its rounds differ by nothing that a person would know. */
function kindOf(tag: string): string {
  if (tag.startsWith("#")) return tag.slice(1, tag.indexOf("."));
  return tag === "" ? "untagged" : `tagged '${tag}'`;
}
