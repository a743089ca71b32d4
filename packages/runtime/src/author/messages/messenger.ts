/**
 * Messages between any two workers of a run: send and recv, and the collectives built on them.
 *
 * - MS1 the mailbox of a worker holds what arrived and was not asked for yet. It is bounded per sender by making the sender wait,
 *   so memory stays bounded whoever is slow.
 * - MS2 when a worker dies, whoever waits for a message of it fails with `worker.died`. What its process sent is dropped, also what
 *   another worker still passes on.
 * - MS3 whoever passes a message on has it itself once all have it that get it by way of it: until then nobody may change it.
 * - MS4 a wait of a collective, for an answer, or for those that a broadcast goes to has a deadline, and names who holds it up.
 */
import type { MessageEnvelope, Onward, Peer, TreadleError } from "@treadle/contracts";
import { currentCall, unmetered } from "../call/call-context.ts";
import { ofOthers } from "../call/of-others.ts";
import { describeGroup } from "../group/group.ts";
import { type AllReducePorts, allReduceSum } from "./all-reduce.ts";
import { byNode, type Hop, hopsOf } from "./broadcast-tree.ts";
import type { Said } from "./hold-up.ts";
import { Mailbox } from "./mailbox.ts";
import { PeerWaits } from "./peer-waits.ts";
import { meet, type Rendezvous, type RendezvousAddress, type RendezvousOptions } from "./rendezvous.ts";

const rendezvousLimitMs = 60_000;
/** Whoever is asked for whom it waits has so long to answer. */
const askLimitMs = 5000;
/** Whoever passes a message on waits for less long than the one that it has it of, and so names the culprit first. */
const passingShare = 0.9;

export type MessengerPorts = {
  readonly component: string;
  readonly rank: number;
  readonly worldSize: number;
  readonly incarnation: number;
  readonly node: string;
  readonly connect: (worker: string) => Promise<Peer>;
  /** Resolves once the worker takes messages. */
  readonly reachable: (worker: string) => Promise<unknown>;
  /** The nodes that workers are on. */
  readonly nodesOf: (workers: readonly string[]) => Promise<readonly string[]>;
  /** where the ranks of its group may meet; default: the loopback interface */
  readonly address?: RendezvousAddress;
  /** `supervision.peerTimeoutMs` */
  readonly peerTimeoutMs: number;
};

/** The workers of a group, as a method gets it in its arguments; some of them where it is restricted to these. */
export type Addressed = { readonly groupName: string; readonly size: number };

export class Messenger {
  readonly self: string;
  readonly #ports: MessengerPorts;
  #worldSize: number;
  /** the host's alone */
  readonly mailbox = new Mailbox();
  readonly #waits: PeerWaits;
  /** collectives that a call has made; one that starts over counts again, as its fellow ranks do */
  readonly #rounds = new WeakMap<object, number>();
  readonly #setup = {};
  /** of workers that died: the oldest process of that name that still counts (MS2) */
  readonly #since = new Map<string, number>();
  /** where workers were when they were last asked for: a broadcast to one that has moved since reaches it all the same */
  readonly #nodes = new Map<string, string>();

  constructor(ports: MessengerPorts) {
    this.#ports = ports;
    this.#worldSize = ports.worldSize;
    this.self = `${ports.component}/${ports.rank}`;
    this.#waits = new PeerWaits({
      self: this.self,
      limitMs: ports.peerTimeoutMs,
      ask: (worker) => this.#ask(worker),
    });
  }

  get worldSize(): number {
    return this.#worldSize;
  }

  /** Where sockets of this worker's own may listen, and by what others reach them: the loopback interface unless `cluster.links` or the node says otherwise. */
  get address(): RendezvousAddress {
    return this.#ports.address ?? { host: "127.0.0.1", listen: "127.0.0.1" };
  }

  /** Between two steps the group has grown or shrunk. */
  resized(worldSize: number): void {
    this.#worldSize = worldSize;
  }

  /** Sends to a worker such as `actor/0`; resolves when it lies in the receiver's mailbox. Order per pair and tag is kept. */
  send(to: string, value: unknown, tag = ""): Promise<void> {
    return ofOthers(this.#send(to, value, tag));
  }

  async #send(to: string, value: unknown, tag: string): Promise<void> {
    const peer = await this.#ports.connect(to);
    await peer.request("message", this.#envelope(value, tag));
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
    return ofOthers(this.#recv<T>(from, tag, signal));
  }

  #recv<T>(from: string, tag: string, signal?: AbortSignal): Promise<T> {
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

  /**
   * Every rank of the group calls it; all get the root's value. Throws `worker.late` after `supervision.peerTimeoutMs`, as all
   * collectives do.
   */
  broadcast<T>(value: T, root = 0): Promise<T> {
    return ofOthers(this.#broadcast(value, root));
  }

  async #broadcast<T>(value: T, root: number): Promise<T> {
    const tag = this.#collectiveTag("broadcast");
    if (this.#ports.rank !== root) return this.#awaited<T>(this.#rankName(root), tag);
    await this.#spread(this.#others(), value, tag);
    return value;
  }

  /**
   * From this worker to all ranks of a group but itself: each gets the value by `broadcastFrom` or `recv`, in order with what was
   * sent under the tag. Resolves when all have it; throws `worker.late` when one has not after
   * `supervision.peerTimeoutMs`.
   */
  broadcastTo(group: Addressed, value: unknown, tag = ""): Promise<void> {
    const ranks = describeGroup(group)?.ranks ?? Array.from({ length: group.size }, (_, rank) => rank);
    const workers = ranks.map((rank) => `${group.groupName}/${rank}`).filter((worker) => worker !== this.self);
    return ofOthers(this.#spread(workers, value, tag));
  }

  /** What a worker of any group broadcasts to this one's. Throws `worker.died`, and `worker.late` after `supervision.peerTimeoutMs`. */
  broadcastFrom<T = unknown>(from: string, tag = ""): Promise<T> {
    return ofOthers(this.#awaited<T>(from, tag));
  }

  /** Every rank of the group calls it; the root gets all values in the order of the ranks, the others undefined. */
  gather<T>(value: T, root = 0): Promise<T[] | undefined> {
    return ofOthers(this.#gather(value, root));
  }

  async #gather<T>(value: T, root: number): Promise<T[] | undefined> {
    const tag = this.#collectiveTag("gather");
    if (this.#ports.rank !== root) {
      await this.#post({ to: this.#rankName(root), onward: nobody }, this.#envelope(value, tag));
      return undefined;
    }
    return Promise.all(
      Array.from({ length: this.#worldSize }, (_, rank) =>
        rank === root ? value : this.#awaited<T>(this.#rankName(rank), tag),
      ),
    );
  }

  /**
   * Every rank of the group calls it with as many numbers; all get the element-wise sum, bit for bit the same. Sums have the
   * precision of the array: beyond 2^24 float32 no longer counts by one.
   */
  allReduceSum<T extends Float32Array | Float64Array>(values: T): Promise<T> {
    return ofOthers(this.#allReduceSum(values));
  }

  async #allReduceSum<T extends Float32Array | Float64Array>(values: T): Promise<T> {
    if (this.#worldSize === 1) return values;
    const tag = this.#collectiveTag("allReduceSum");
    const { rank, component } = this.#ports;
    const ports: AllReducePorts = {
      component,
      rank,
      worldSize: this.#worldSize,
      give: (to, part) => this.#post({ to: this.#rankName(to), onward: nobody }, this.#envelope(part, tag)),
      take: (from) => this.#awaited(this.#rankName(from), tag),
      spread: (total) => this.#spread(this.#others(), total, `${tag}.sum`),
      takeTotal: (from) => this.#awaited(this.#rankName(from), `${tag}.sum`),
    };
    return allReduceSum(ports, values);
  }

  /**
   * Every rank of the group calls it, in `setup`, in `load` or in a call: all get an address and a port on which the first
   * rank may listen, on the loopback interface unless `cluster.links` or the node says otherwise. Throws
   * `rendezvous.incomplete` with the ranks that did not come in time.
   */
  rendezvous({ timeoutMs = rendezvousLimitMs }: RendezvousOptions = {}): Promise<Rendezvous> {
    const tag = this.#collectiveTag("rendezvous");
    const { component, rank } = this.#ports;
    const { address } = this;
    const ports = {
      component,
      rank,
      address,
      others: this.#others(),
      send: (to: string, value: unknown) => this.#send(to, value, tag),
      recv: (from: string) => this.#recv(from, tag),
      end: (from: string, reason: unknown) => this.mailbox.end(from, tag, reason),
    };
    return ofOthers(meet(ports, timeoutMs));
  }

  /**
   * What a worker was asked for by a call of one of its methods: `messages.answer("actor/0", "its weights", actor.weights())`.
   * Throws what the call throws, and `worker.late` after `supervision.peerTimeoutMs`.
   */
  answer<T>(worker: string, what: string, asked: PromiseLike<T>): Promise<T> {
    // A handle counts from when it is awaited, which it is here, and whoever asks may not yet wait.
    return ofOthers(unmetered(() => this.#waits.within({ worker, what, kind: "an answer" }, () => asked)));
  }

  /** Those that have been waited for longer than so, and with what. */
  awaited(longerThanMs: number): { from: string; what: string }[] {
    const messages = this.mailbox.awaited(longerThanMs).map(({ from, tag }) => ({ from, what: kindOf(tag) }));
    const isMessage = new Set(messages.map(({ from, what }) => `${from} ${what}`));
    const others = this.#waits.longerThan(longerThanMs).filter(({ from, what }) => !isMessage.has(`${from} ${what}`));
    return [...messages, ...others];
  }

  /** For whom it waits in collectives and for answers; what another one that waits for this one asks. */
  get waitsFor(): string[] {
    return this.#waits.waitsFor;
  }

  /** Called by the host for each message that arrives; the promise settles when the sender may go on. */
  deliver(envelope: MessageEnvelope): Promise<void> | undefined {
    const isOfDead = () => envelope.incarnation < (this.#since.get(envelope.from) ?? 0); // MS2
    if (isOfDead()) return undefined;
    const { onward, ...message } = envelope;
    if (onward === undefined) return this.mailbox.deliver(message);
    return this.#pass(onward, message).then(() => (isOfDead() ? undefined : this.mailbox.deliver(message))); // MS3
  }

  /** Called by the host when a worker has died; processes of it before `since` count no more. */
  peerDied(worker: string, cause: TreadleError, since = 0): void {
    this.#since.set(worker, since);
    this.#nodes.delete(worker);
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

  /** MS4. */
  #awaited<T>(from: string, tag: string): Promise<T> {
    const wait = { worker: from, what: nameOf(tag), kind: kindOf(tag) };
    return this.#waits.within(wait, (signal) => this.#recv<T>(from, tag, signal));
  }

  async #spread(workers: readonly string[], value: unknown, tag: string): Promise<void> {
    const nodes = await this.#whereAre(workers);
    await this.#hand(hopsOf(byNode(this.#ports.node, workers, nodes)), this.#envelope(value, tag));
  }

  #pass(onward: Onward, envelope: MessageEnvelope): Promise<void> {
    return this.#hand(hopsOf(onward), envelope, this.#ports.peerTimeoutMs * passingShare);
  }

  /** Those that share a copy: on this node, more than one. */
  async #hand(hops: readonly Hop[], envelope: MessageEnvelope, limitMs?: number): Promise<void> {
    const together = hops.length > 1 ? {} : undefined;
    await Promise.all(hops.map((hop) => this.#post(hop, envelope, { together, limitMs })));
  }

  /** Until it lies in the mailbox of all that get it by this hop (MS4). */
  #post({ to, onward }: Hop, envelope: MessageEnvelope, { together, limitMs }: PostOptions = {}): Promise<void> {
    const kind = kindOf(envelope.tag);
    const wait = { worker: to, what: `the receipt of ${nameOf(envelope.tag)}`, kind, ...(limitMs && { limitMs }) };
    const isLast = onward.inside.length + onward.nodes.length === 0;
    return this.#waits.within(wait, async (signal) => {
      const peer = await this.#ports.connect(to);
      await peer.request("message", isLast ? envelope : { ...envelope, onward }, { signal, together });
    });
  }

  #envelope(value: unknown, tag: string): MessageEnvelope {
    return { from: this.self, incarnation: this.#ports.incarnation, tag, value };
  }

  async #whereAre(workers: readonly string[]): Promise<string[]> {
    const unknown = workers.filter((worker) => !this.#nodes.has(worker));
    if (unknown.length > 0) {
      const nodes = await this.#ports.nodesOf(unknown);
      for (const [at, worker] of unknown.entries()) this.#nodes.set(worker, nodes[at] as string);
    }
    return workers.map((worker) => this.#nodes.get(worker) as string);
  }

  async #ask(worker: string): Promise<Said> {
    const there = await inTime(this.#ports.reachable(worker));
    if (there.type === "late") return { type: "absent" };
    const answer = await inTime(this.#ports.connect(worker).then((peer) => peer.request("waits", {})));
    if (answer.type !== "given") return { type: "silent" };
    const { waitsFor, isStarting } = answer.value;
    return isStarting && waitsFor.length === 0 ? { type: "absent" } : { type: "waits", waitsFor };
  }

  #rankName(rank: number): string {
    return `${this.#ports.component}/${rank}`;
  }

  #others(): string[] {
    const all = Array.from({ length: this.#worldSize }, (_, rank) => this.#rankName(rank));
    return all.filter((name) => name !== this.self);
  }
}

type PostOptions = { readonly together?: object | undefined; readonly limitMs?: number | undefined };

const nobody: Onward = { inside: [], nodes: [] };

type Given<T> = { readonly type: "given"; readonly value: T } | { readonly type: "failed" } | { readonly type: "late" };

/** What is asked of another process. */
async function inTime<T>(asked: Promise<T>): Promise<Given<T>> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<Given<T>>((resolve) => {
    timer = setTimeout(() => resolve({ type: "late" }), askLimitMs).unref();
  });
  const given = asked.then(
    (value): Given<T> => ({ type: "given", value }),
    (): Given<T> => ({ type: "failed" }),
  );
  const first = await Promise.race([given, late]);
  clearTimeout(timer);
  return first;
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

/** For whoever looks for it in the code: which collective of which call, or by which tag. */
function nameOf(tag: string): string {
  if (!tag.startsWith("#")) return tag === "" ? "the untagged broadcast" : `the broadcast tagged '${tag}'`;
  const [kind, call, round] = tag.slice(1).split(".");
  return `'${kind}', collective ${Number(round) + 1} of ${call === "setup" ? "the set-up" : `call ${call}`},`;
}
