/** The ports through which pure code meets the outside. Implementations live in mechanism packages. */

import type { AnswerOf, AskVerb, BodyOf, Protocol, ReplyOf, RequestOf, RunProtocol, TellVerb } from "./protocol.ts";

/** Time in milliseconds from an arbitrary origin; monotonic. Tests and simulations drive it by hand. */
export interface Clock {
  now(): number;
  /**
   * Calls `run` after `delayMs`; the returned function cancels it. A process that waits for nothing else ends before, unless
   * `keepsAlive`: somebody is promised what `run` does.
   */
  after(delayMs: number, run: () => void, keepsAlive?: boolean): () => void;
}

/** Who is at the other end of a link: `runner`, or a worker as `rollout/0`, with the incarnation of its process. */
export type PeerName = string;

/** How one message travels. */
export type SendOptions = {
  /**
   * The message may overtake others that still stream through a socket: heartbeats, cancellations, replies to them.
   * Urgent messages keep their order among themselves. They carry no more than 64 KiB of typed arrays.
   */
  readonly urgent?: boolean | undefined;
  /**
   * Any object. Messages with the same one, on whatever links of this process, carry the same typed arrays in the same order:
   * receivers that see the same memory are lent one copy of these, and what one of them writes into it no other sees.
   */
  readonly together?: object | undefined;
};

/**
 * A connection between two processes (or two ends in one process) that carries messages in order, each at most once;
 * none is lost while the link stays open, and `onClose` follows the last message.
 *
 * A message is any nest of plain objects, arrays, strings, numbers, booleans, null, undefined, bigint, Date, Map, Set,
 * Buffer, ArrayBuffer, DataView and typed arrays. Large typed arrays anywhere in it move out of band without being
 * re-encoded. What is sent belongs to the link: it must not be changed until `drained()` (and never, where both ends
 * share a process). What is received belongs to the receiver.
 */
export interface Link {
  readonly remote: PeerName;
  /**
   * Queues a message; never awaits. Order is kept, except for what `urgent` says.
   * Throws `link.closed` when the link is closed, `link.frame-too-large`, `link.unsupported-value`.
   */
  send(message: unknown, options?: SendOptions): void;
  /** Bytes queued and not yet handed to the operating system; producers of bulk wait for `drained()` above a mark. */
  readonly queuedBytes: number;
  /** Resolves when `queuedBytes` is below the link's low mark, and rejects with `link.closed` when it never will be. */
  drained(): Promise<void>;
  /** One listener. Messages that arrive before it is set wait for it. */
  onMessage(listener: (message: unknown) => void): void;
  /** Called once; `cause` is absent after an orderly close from either side. A listener set later is called at once. */
  onClose(listener: (cause: Error | undefined) => void): void;
  /** Delivers what is queued, then closes. With a cause it tears the link down at once and `onClose` gets the cause. */
  close(cause?: Error): Promise<void>;
}

/** What a request needs of an AbortSignal. An AbortSignal is one; there are cheaper ones. Listeners are called once. */
export interface Cancellation {
  readonly aborted: boolean;
  readonly reason: unknown;
  addEventListener(type: "abort", listener: () => void, options?: { once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** What a request handler learns about its caller. `cancellation` says the same as `signal`, at a tenth of its cost. */
export type RequestContext = {
  readonly remote: PeerName;
  readonly signal: AbortSignal;
  readonly cancellation: Cancellation;
};

/** Requests, replies and notifications over a link, in the verbs of a protocol. */
export interface Peer<P extends Protocol = RunProtocol> {
  readonly link: Link;
  /**
   * Rejects with the handler's error, `call.timeout`, `call.cancelled` (aborts the handler's signal), `link.closed`, or
   * `link.protocol` when the reply does not fit the verb; `details.verb` names it then.
   */
  request<V extends AskVerb<P>>(
    verb: V,
    body: RequestOf<P, V>,
    options?: SendOptions & { signal?: Cancellation | undefined; timeoutMs?: number | undefined },
  ): Promise<ReplyOf<P, V>>;
  notify<V extends TellVerb<P>>(verb: V, body: RequestOf<P, V>, options?: SendOptions): void;
  /** One handler a verb; a handler may answer synchronously. A body that does not fit the verb never reaches it. */
  handle<V extends keyof P & string>(
    verb: V,
    handler: (body: BodyOf<P, V>, context: RequestContext) => AnswerOf<P, V> | PromiseLike<AnswerOf<P, V>>,
  ): void;
}

/** What takes part in a cluster: a node agent, the runner of a run, or a pool of devices that runs share. */
export type MemberKind = "node" | "run" | "pool";

export type Member = {
  readonly kind: MemberKind;
  readonly name: string;
  /** Grows with every start under the same name; commands reach the incarnation that they were meant for, or nobody. */
  readonly incarnation: number;
  /** What the member says of itself; from another process, so to be checked by whoever reads it. */
  readonly body: unknown;
  /** Keys are given, and none of them has signed what it says of itself: nobody asks it for anything, and it keeps nobody out. */
  readonly isUntrusted?: boolean;
};

/** Whose key signed a command, where keys are given. A `name` is that of the only node that may use the key. */
export type CommandSender = { readonly role: "runner" | "node"; readonly name?: string | undefined };

/** As the member sees it that is to act. */
export type Commander = CommandSender & {
  /** Whether the very process that sent the command has announced itself under that name. */
  readonly is: (kind: MemberKind, name: string) => boolean;
};

/** What a member does with a command. `sender` is absent where nobody has a key. */
export type CommandHandler = (method: string, body: unknown, sender?: Commander) => unknown;

/** `left` is final for everything that was asked of the member; when it joins again, that is to be asked anew. */
export type MembershipChange =
  | { readonly type: "joined" | "changed"; readonly member: Member }
  | { readonly type: "left"; readonly member: Member; readonly reason: string };

/** This process as a member, until it withdraws or dies. */
export interface Announcement {
  readonly incarnation: number;
  update(body: unknown): Promise<void>;
  withdraw(reason: string): Promise<void>;
  /** Called once, when another process announced itself under the same name: it counts from now on, this one does not. */
  onReplaced(listener: () => void): void;
}

/** What is kept under a name. */
export type KeptValue = {
  readonly value: unknown;
  /** where keys are given: no trusted runner has signed it under that name, so anybody may have written it */
  readonly isUntrusted?: true;
};

/**
 * Membership, commands, events and records of a cluster. Everything that passes is JSON, and the receiver's own copy.
 *
 * A member is there from its announcement until it withdraws, or is silent for longer than its lease. While this process
 * itself is cut off from the control plane, nobody leaves: silence says nothing then.
 */
export interface ControlPlane {
  readonly isConnected: boolean;
  onConnection(listener: (isConnected: boolean) => void): void;
  /**
   * Joins under a name, and answers commands from then on; what the handler throws reaches the one who asked. Rejects with
   * `control-plane.untrusted` where others than this machine's processes could be heard, and none was given a key.
   */
  announce(kind: MemberKind, name: string, body: unknown, handler: CommandHandler): Promise<Announcement>;
  /** Those that are there now. */
  members(kind: MemberKind): readonly Member[];
  /**
   * Whether that member proves within this time (default 15 s, as it may compute) that it is there: what it said before may be
   * said again by others. Where no keys are given, nobody could prove it, and its beats count.
   */
  provesPresence(member: Member, withinMs?: number): Promise<boolean>;
  /** Called for every change from now on; the returned function ends it. */
  onMember(kind: MemberKind, listener: (change: MembershipChange) => void): () => void;
  /**
   * Rejects with the handler's error, `node.lost` when that incarnation is not there, `call.timeout`, and
   * `control-plane.untrusted` when keys are given and either side does not trust the other's.
   */
  command(member: Member, method: string, body: unknown, options: { readonly timeoutMs: number }): Promise<unknown>;
  /** At most once, to whoever listens now. */
  publish(topic: string, body: unknown): void;
  /** `*` stands for any one part of a topic such as `log.run-1`. */
  subscribe(topic: string, listener: (body: unknown) => void): () => void;
  /** Keeps a value under a name; it survives everything that is connected. */
  keep(name: string, value: unknown): Promise<void>;
  kept(): Promise<ReadonlyMap<string, KeptValue>>;
  /** Withdraws whatever was announced here, and disconnects. */
  close(): Promise<void>;
}

/**
 * The append-only log of a run. One process at a time writes it: whoever opened it last. The one before is told `run.locked`
 * at its next append, whatever became of clocks, locks and networks meanwhile, and nothing of that append is in the log.
 *
 * LG1 an entry whose append resolved is in the log for everybody who opens it later, after all that resolved before it.
 * LG2 an entry whose append rejected may be there or not, once; after that one the same opening appends nothing more.
 * LG3 of two openings the later has every entry that the earlier was told is in it; none is in it twice.
 */
export interface RunLog {
  /** what is in it, oldest first, with what was appended since */
  readonly entries: readonly string[];
  /**
   * Resolves when the entry, and the files that it refers to, by their names in the run's folder, survive
   * whatever the log survives. Calls must not overlap. Rejects with `run.locked`, `disk.full`, `control-plane.unreachable`.
   */
  append(entry: string, files?: readonly string[]): Promise<void>;
  close(): Promise<void>;
}

/** A run's log, and files of its folder under their names there, kept away from the machine that runs it. */
export interface RunStore extends RunLog {
  /** the names of all files that are kept */
  names(): Promise<string[]>;
  /** Keeps what the file of that name holds now, whole or not at all. */
  keep(name: string): Promise<void>;
  /** Makes the file of that name hold what is kept, whole or not at all; false when nothing is. */
  fetch(name: string): Promise<boolean>;
  remove(name: string): Promise<void>;
}
