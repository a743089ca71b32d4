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
import { Mailbox } from "./mailbox.ts";
import {
  incomplete,
  openPlace,
  type Rendezvous,
  type RendezvousAddress,
  type RendezvousOptions,
  type RendezvousOutcome,
  type RendezvousReply,
} from "./rendezvous.ts";

const rendezvousLimitMs = 60_000;

export class Messenger {
  readonly self: string;
  readonly #component: string;
  readonly #rank: number;
  #worldSize: number;
  readonly #connect: (worker: string) => Promise<Peer>;
  readonly #address: RendezvousAddress;
  /** the host's alone */
  readonly mailbox = new Mailbox();
  /** collectives that a call has made; one that starts over counts again, as its fellow ranks do */
  readonly #rounds = new WeakMap<object, number>();
  readonly #setup = {};

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
    return (signal ? this.#recvUntil(signal, from, tag) : this.mailbox.next(from, tag)) as Promise<T>;
  }

  async #recvUntil(signal: AbortSignal, from: string, tag: string): Promise<unknown> {
    const end = () => this.mailbox.end(from, tag, signal.reason);
    if (signal.aborted) {
      end();
      throw signal.reason;
    }
    signal.addEventListener("abort", end, { once: true });
    try {
      return await this.mailbox.next(from, tag);
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
        resolve(false);
        this.mailbox.end(from, tag, limit.reason);
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
    return this.mailbox.awaited(longerThanMs).map(({ from, tag }) => ({ from, what: kindOf(tag) }));
  }

  /** Called by the host for each message that arrives; the promise settles when the sender may go on. */
  deliver(message: z.infer<typeof MessageEnvelope>): Promise<void> | undefined {
    return this.mailbox.deliver(message);
  }

  /** Called by the host when a worker has died. */
  peerDied(worker: string, cause: TreadleError): void {
    this.mailbox.peerDied(worker, cause);
  }

  /** Every rank of a group makes the same collectives in a call, in the same order, so a running number tells them apart. */
  #collectiveTag(kind: string): string {
    const call = groupCall();
    const owner = currentCall() ?? this.#setup;
    const round = this.#rounds.get(owner) ?? 0;
    if (round === 0) this.mailbox.forget((tag) => isOfEarlier(tag, call));
    this.#rounds.set(owner, round + 1);
    return `#${kind}.${call}.${round}`;
  }

  #others(): string[] {
    const all = Array.from({ length: this.#worldSize }, (_, rank) => `${this.#component}/${rank}`);
    return all.filter((name) => name !== this.self);
  }
}

/** Ranks of one group call share its sequence, so a rank that starts a call over meets the others where they are. */
const groupCall = (): string => currentCall()?.call.split("/")[0] ?? "setup";

/** Whether it is a collective's of an earlier call: this rank's part in that is over, however it ended, since calls run in order. */
function isOfEarlier(tag: string, call: string): boolean {
  const [, earlier] = tag.startsWith("#") ? tag.split(".") : [];
  return earlier !== undefined && Number(earlier) < Number(call);
}

/** A collective by its name, as its rounds differ by nothing that a person would know. */
function kindOf(tag: string): string {
  if (tag.startsWith("#")) return tag.slice(1, tag.indexOf("."));
  return tag === "" ? "untagged" : `tagged '${tag}'`;
}
