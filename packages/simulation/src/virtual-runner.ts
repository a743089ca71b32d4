/**
 * The runner on virtual time: `RunnerState` decides, what it wants takes the time that the profile says, and `Invariants`
 * judges by an account of its own.
 */
import type { DeviceSpec, TagMemory, TreadleError, WorkerMemory } from "@treadle/contracts";
import {
  type Answer,
  type ChannelEnd,
  type Incarnation,
  type ItemView,
  inTurn,
  type LeaseEffect,
  type RunnerEffect,
  type RunnerInput,
  RunnerState,
} from "@treadle/core";
import type { Timeline } from "./event-queue.ts";
import { type Invariants, keyOf, type SimulatedItem } from "./invariants.ts";
import type { ComponentModel } from "./workflow-model.ts";

export type VirtualRunnerOptions = {
  readonly queue: Timeline;
  readonly components: readonly ComponentModel[];
  readonly channels: readonly string[];
  readonly maxStaleness: number;
  /** items that a channel holds before a put waits */
  readonly capacityOf: (channel: string) => number;
  /** bytes by device */
  readonly memory: ReadonlyMap<string, number>;
  /** of a component's ranks on each of their devices */
  readonly memoryOf: (component: ComponentModel) => WorkerMemory;
  readonly invariants: Invariants;
  readonly onSend: (call: string, worker: string) => void;
  readonly onSwap: (worker: string, swap: "onload" | "offload", startMs: number) => void;
  readonly onCommit: (step: number, seconds: number) => void;
  /** devices are shared with other runs: what the lock asks of their pool */
  readonly onLease?: ((effect: LeaseEffect) => void) | undefined;
};

/** `servedMs`: when what was asked for was there; until now the call has waited for the devices that it had lent. */
export type OnAnswer = (answer: Answer, servedMs: number | undefined) => void;

type OpenCall = {
  readonly call: string;
  readonly from: Incarnation | undefined;
  readonly ends: readonly ChannelEnd[];
  /** its ranks take in rounds (C8) */
  readonly isGang: boolean;
  /** deliveries that it has not acknowledged: as long as there are any, what it puts is held back (C6) */
  held: readonly number[];
  staged: SimulatedItem[];
  token: number | undefined;
};
type Waiting = {
  readonly open: OpenCall;
  readonly most: number;
  readonly end?: ChannelEnd;
  readonly onAnswer: OnAnswer;
};
type Member = { readonly component: ComponentModel; readonly devices: readonly string[] };
type RequestInput = Extract<RunnerInput, { readonly request: number }>;

const node = "virtual";
const supervision = {
  maxRestarts: 0,
  restartWindowMs: 0,
  heartbeatTimeoutMs: Number.POSITIVE_INFINITY,
  stallMs: Number.POSITIVE_INFINITY,
  lockTimeoutMs: Number.POSITIVE_INFINITY,
  startTimeoutMs: Number.POSITIVE_INFINITY,
};

export class VirtualRunner {
  readonly #options: VirtualRunnerOptions;
  readonly #state: RunnerState;
  readonly #members = new Map<string, Member>();
  readonly #calls = new Map<string, OpenCall>();
  readonly #waiting = new Map<number, Waiting>();
  readonly #groups = new Map<number, { left: number; readonly onSettled: () => void }>();
  readonly #ordinals = new Map<string, number>();
  #lastRequest = 0;
  #sequence = 0;

  constructor(options: VirtualRunnerOptions) {
    this.#options = options;
    const { queue, components, channels, memory, capacityOf, maxStaleness } = options;
    const isLeased = options.onLease !== undefined;
    this.#state = new RunnerState({ supervision, rejoinMs: 0, placeWaitMs: 0, maxStaleness, isLeased }, queue.nowMs);
    for (const name of channels) this.feed({ type: "define-channel", name, capacity: capacityOf(name), pick: "fifo" });
    const places = [...memory].map(
      ([id, memoryBytes], index): DeviceSpec => ({ id, index, node, kind: "virtual", memoryBytes }),
    );
    this.feed({ type: "nodes", present: [node], places });
    for (const component of components) {
      const { name, isGang, ranks } = component;
      this.feed({
        type: "add-component",
        component: name,
        restart: isGang ? "group" : "rank",
        resizes: false,
        replays: [],
      });
      for (const { worker, devices } of ranks) this.#members.set(worker, { component, devices });
    }
    const layout = components.map(({ name, ranks }) => {
      return [name, { ranks: ranks.map(({ devices }) => ({ node, devices: [...devices] })) }] as const;
    });
    this.feed({ type: "lay-out", components: Object.fromEntries(layout) });
  }

  get state(): Pick<RunnerState, "blockerOf" | "standstill" | "channelSnapshots"> {
    return this.#state;
  }

  feed(input: RunnerInput): void {
    this.#later(() => input);
  }

  /** Calls a method on every rank of a component, and says which calls these are; `onSend` follows for each. */
  call(
    component: ComponentModel,
    method: string,
    step: number,
    ends: readonly ChannelEnd[],
    onSettled: () => void,
  ): string[] {
    const { invariants } = this.#options;
    const sequence = ++this.#sequence;
    const { name, ranks, isGang } = component;
    const gang = isGang ? `call-${sequence}` : undefined;
    const keys = (role: ChannelEnd["role"]) => ends.filter((end) => end.role === role).map(keyOf);
    const calls = ranks.map((_, rank) => `${sequence}/${rank}`);
    for (const [rank, { worker, devices }] of ranks.entries()) {
      const call = calls[rank] as string;
      this.#open(call, { worker, incarnation: 0 }, ends, isGang);
      invariants.callOpened({ call, worker, devices, sequence, gang, takes: keys("source"), puts: keys("sink") });
    }
    this.#groups.set(sequence, { left: ranks.length, onSettled });
    this.feed({ type: "begin-work", step });
    this.feed({ type: "call", sequence, component: name, method, ranks: [...ranks.keys()], ends, step });
    return calls;
  }

  /** The workflow's own end of a channel. */
  openOwn(call: string, end: ChannelEnd): void {
    this.#open(call, undefined, [end]);
    this.feed({ type: "open", call, end });
  }

  closeOwn(call: string): void {
    this.#later(() => {
      this.#closed(call);
      return { type: "close", call, outcome: { ok: true } };
    });
  }

  acquire(call: string, onAnswer: OnAnswer): void {
    this.#ask(call, { most: 0, onAnswer }, (open, request) => {
      return { type: "acquire", request, from: open.from as Incarnation, call };
    });
  }

  put(call: string, channel: string, count: number, onAnswer: OnAnswer): void {
    this.#ask(call, { most: 0, onAnswer }, (open, request) => {
      const isStaged = open.held.length > 0;
      const items = this.#make(open, channel, count, isStaged);
      if (isStaged) open.staged.push(...items.map(({ payload }) => payload));
      return { type: "put", request, from: open.from, call, channel, items };
    });
  }

  /** Acknowledges the oldest `count` items that the call holds of a channel, and puts what was made of them. */
  commit(
    call: string,
    channel: string,
    count: number,
    outputs: { readonly channel: string; readonly items: number } | undefined,
    onAnswer: OnAnswer,
  ): void {
    this.#ask(call, { most: 0, onAnswer }, (open, request) => {
      const deliveries = open.held.slice(0, count);
      open.held = open.held.slice(count);
      const made = outputs && {
        channel: outputs.channel,
        items: this.#make(open, outputs.channel, outputs.items, false),
      };
      if (open.held.length === 0) settleHoldings(open);
      return { type: "commit", request, from: open.from as Incarnation, call, channel, deliveries, outputs: made };
    });
  }

  #make({ call, ends }: Pick<OpenCall, "call" | "ends">, channel: string, count: number, isStaged: boolean) {
    const { invariants } = this.#options;
    const end = endOf({ call, ends }, channel, "sink");
    const first = this.#ordinals.get(keyOf(end)) ?? 0;
    this.#ordinals.set(keyOf(end), first + count);
    invariants.put(end, count);
    invariants.enqueued(call);
    return Array.from({ length: count }, (_, i) => {
      const payload: SimulatedItem = { ordinal: first + i, isStaged, isDelivered: false };
      return { payload, sizeBytes: 0 };
    });
  }

  /** So many items at once or the end of the stream; with undefined, the call's share of all of it. */
  take(call: string, channel: string, count: number | undefined, onAnswer: OnAnswer): void {
    const open = this.#calls.get(call) as OpenCall;
    const end = endOf(open, channel, "source");
    this.#ask(call, { most: count ?? Number.POSITIVE_INFINITY, end, onAnswer }, ({ from }, request) => {
      settleHoldings(open);
      const bounds = open.isGang ? { maxItems: count, inGang: true } : { maxItems: count, minItems: count };
      return { type: "take", request, from, call, channel, acknowledge: true, ...bounds };
    });
  }

  /** Its devices are free with its reply (EX7). */
  returned(call: string): void {
    this.#later(() => {
      const { from } = this.#calls.get(call) as OpenCall;
      this.#options.invariants.freed(call, true);
      return { type: "returned", ...(from as Incarnation), call };
    });
  }

  #open(call: string, from: Incarnation | undefined, ends: readonly ChannelEnd[], isGang = false): void {
    this.#calls.set(call, { call, from, ends, isGang, held: [], staged: [], token: undefined });
    for (const end of ends) this.#options.invariants.opened(end);
  }

  #ask(call: string, waiting: Omit<Waiting, "open">, make: (open: OpenCall, request: number) => RequestInput): void {
    const request = ++this.#lastRequest;
    this.#later(() => {
      const open = this.#calls.get(call) as OpenCall;
      this.#waiting.set(request, { ...waiting, open });
      return make(open, request);
    });
  }

  /** An input is made in its turn (RL1), of what the account says by then. */
  readonly #later = inTurn((make: () => RunnerInput) => this.#handle(make()));

  /** The account is brought up to date with everything that the input did before what others gain by it is judged. */
  #handle(input: RunnerInput): void {
    const effects = this.#state.handle(input, this.#options.queue.nowMs);
    for (const effect of effects) if (effect.type === "settle") this.#closed(effect.call);
    if (input.type === "put" || input.type === "take" || input.type === "commit")
      this.#judgeLending(input.request, effects);
    for (const effect of effects) this.#act(effect);
  }

  /** L2: a call that was not answered at once lends what it holds. */
  #judgeLending(request: number, effects: readonly RunnerEffect[]): void {
    const { open } = this.#waiting.get(request) as Waiting;
    if (open.token === undefined) return;
    const answer = effects.find((effect) => effect.type === "answer" && effect.request === request);
    const isAnsweredAtOnce = answer?.type === "answer" && answer.servedMs === undefined;
    if (!isAnsweredAtOnce) this.#options.invariants.freed(open.call, false);
  }

  #closed(call: string): void {
    const open = this.#calls.get(call) as OpenCall;
    settleHoldings(open);
    this.#calls.delete(call);
    for (const end of open.ends) this.#options.invariants.closed(end);
    this.#options.invariants.callClosed(call);
  }

  #act(effect: RunnerEffect): void {
    const { onSend, onCommit } = this.#options;
    switch (effect.type) {
      case "launch": {
        const { worker, incarnation } = effect;
        const memory = this.#memoryOf(worker);
        for (const type of ["launched", "connected"] as const) this.feed({ type, worker, incarnation });
        this.feed({ type: "ready", worker, incarnation, ...memory });
        return;
      }
      case "send":
        this.#options.queue.after(0, () => onSend(effect.call, effect.worker));
        return;
      case "answer":
        this.#answered(effect);
        return;
      case "onload":
      case "offload":
        this.#swap(effect);
        return;
      case "settle":
        this.#settled(effect.call);
        return;
      case "commit":
        onCommit(effect.step, effect.seconds);
        this.feed({ type: "committed", step: effect.step });
        return;
      case "ask-lease":
      case "release-lease":
      case "use-lease":
      case "share-lease":
        this.#options.onLease?.(effect);
        return;
      case "reject":
      case "settle-failed":
      case "failed":
        throw effect.error as TreadleError;
    }
  }

  #answered({ request, answer, servedMs }: Extract<RunnerEffect, { type: "answer" }>): void {
    const { invariants } = this.#options;
    const { open, most, end, onAnswer } = this.#waiting.get(request) as Waiting;
    this.#waiting.delete(request);
    if (servedMs !== undefined) invariants.granted(open.call, undefined);
    if (answer.type === "token") {
      invariants.granted(open.call, answer.token);
      open.token = answer.token;
    } else if (answer.type === "batch") {
      open.held = [...open.held, ...answer.items.map(({ delivery }) => delivery)];
      invariants.delivered(open.call, end as ChannelEnd, answer.items, itemsOf(answer.items), most);
    } else if (answer.type === "end-of-stream") invariants.ended(end as ChannelEnd);
    onAnswer(answer, servedMs);
  }

  #swap({ type, worker, incarnation, tags }: Extract<RunnerEffect, { type: "onload" | "offload" }>): void {
    const { queue, invariants, onSwap } = this.#options;
    const { component, devices } = this.#members.get(worker) as Member;
    const memory = this.#memoryOf(worker);
    const startMs = queue.nowMs;
    const moved = memory.tags?.filter(({ tag }) => tags?.includes(tag));
    const bytes = moved?.map(({ tag, bytes }) => [tag, bytes] as const) ?? [["all", memory.memoryBytes]];
    if (type === "onload") invariants.onloads(worker, devices, new Map(bytes), residualOf(memory));
    else invariants.offloads(worker, devices, new Map(bytes));
    queue.after(1000 * swapSeconds(type, component, moved), () => {
      onSwap(worker, type, startMs);
      if (type === "onload") {
        invariants.onloaded(worker);
        this.feed({ type: "onloaded", worker, incarnation, ...memory });
      } else {
        const residualBytes = invariants.offloaded(worker, devices);
        this.feed({ type: "offloaded", worker, incarnation, residualBytes });
      }
    });
  }

  #settled(call: string): void {
    const group = this.#groups.get(Number.parseInt(call, 10));
    if (!group) return;
    group.left--;
    if (group.left > 0) return;
    this.#groups.delete(Number.parseInt(call, 10));
    this.#options.queue.after(0, group.onSettled);
  }

  #memoryOf(worker: string): WorkerMemory {
    return this.#options.memoryOf((this.#members.get(worker) as Member).component);
  }
}

/** What a worker has besides its tags, which stays from its first load on. */
const residualOf = ({ memoryBytes, tags }: WorkerMemory): number =>
  tags === undefined ? 0 : Math.max(0, memoryBytes - tags.reduce((sum, { bytes }) => sum + bytes, 0));

function swapSeconds(
  type: "onload" | "offload",
  { profile }: ComponentModel,
  moved: readonly TagMemory[] | undefined,
): number {
  const of = type === "onload" ? "restoreSeconds" : "releaseSeconds";
  if (moved) return moved.reduce((sum, each) => sum + each[of], 0);
  return type === "onload" ? profile.onloadSeconds : profile.offloadSeconds;
}

export const itemsOf = (items: readonly ItemView[]): SimulatedItem[] =>
  items.map(({ payload }) => payload as SimulatedItem);

/** What a call put while it held items counts from now on (C6). */
function settleHoldings(open: OpenCall): void {
  open.held = [];
  for (const item of open.staged) item.isStaged = false;
  open.staged = [];
}

function endOf({ call, ends }: Pick<OpenCall, "call" | "ends">, channel: string, role: ChannelEnd["role"]): ChannelEnd {
  const end = ends.find((each) => each.channel === channel && each.role === role);
  if (!end) throw new Error(`call '${call}' has no ${role} of channel '${channel}'`);
  return end;
}
