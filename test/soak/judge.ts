/**
 * Judges what a runner's machine decides, turn by turn, by an account of its own: of inputs and effects, and of what is put and
 * delivered under faults. A call that starts over may get again what it had, so an item counts as delivered only while the
 * process that has it lives.
 */
import type { RunnerEffect, RunnerInput, RunnerState } from "@treadle/core";

export class BrokenInvariant extends Error {}

export type JudgeOptions = {
  /** items of a stream */
  readonly capacity: number;
  readonly maxStaleness: number;
  /** its calls are repeated on processes that replace others */
  readonly replayed: string | undefined;
};

type Holder = { readonly call: string; readonly worker: string };
type Asked = Holder & { readonly takes: string | undefined; readonly inGang: boolean };
type Sent = { readonly calls: Set<string>; last: number };

export class Judge {
  readonly #options: JudgeOptions;
  /** steps that have begun and are not committed */
  readonly #steps = new Set<number>();
  /** requests that wait for their answers, and the channel of those that take */
  readonly #requests = new Map<number, Asked>();
  /** by call: what it put into a channel while it held what it took */
  readonly #staged = new Map<string, Set<string>>();
  readonly #holds = new Map<string, Holder>();
  /** by call: the rounds that it has had with the other ranks of its call */
  readonly #rounds = new Map<string, number>();
  /** by call number: its ranks */
  readonly #ranks = new Map<number, readonly string[]>();
  /** by process */
  readonly #sent = new Map<string, Sent>();
  readonly #up = new Map<string, number>();
  readonly #gone = new Set<string>();
  /** by call number: it is of the method that is repeated */
  readonly #repeatable = new Set<number>();
  /** by worker: the newest of these that it has had */
  readonly #newest = new Map<string, number>();
  /** by process: the call that it must repeat, or a later one, before it is up */
  readonly #owes = new Map<string, number>();

  constructor(options: JudgeOptions) {
    this.#options = options;
  }

  turn(input: RunnerInput, effects: readonly RunnerEffect[], state: RunnerState): void {
    this.#asked(input);
    for (const effect of effects) this.#decided(effect);
    this.#judgeDeaths(effects);
    if (effects.some(({ type }) => type === "answer")) this.#judgeRounds();
    if (input.type === "put" || input.type === "take" || input.type === "commit") this.#judgeCapacity(state);
  }

  #asked(input: RunnerInput): void {
    switch (input.type) {
      case "begin-step":
        if (this.#steps.size > this.#options.maxStaleness)
          fail("W2", `step ${input.step} begins while ${[...this.#steps].join(" and ")} are not committed`);
        this.#steps.add(input.step);
        return;
      case "committed":
        this.#steps.delete(input.step);
        return;
      case "call":
        this.#ranks.set(
          input.sequence,
          input.ranks.map((index) => `${input.sequence}/${index}`),
        );
        if (input.method === this.#options.replayed) this.#repeatable.add(input.sequence);
        return;
      case "ready": {
        const newest = this.#newest.get(input.worker);
        if (newest !== undefined) this.#owes.set(keyOf(input), newest);
        return;
      }
      case "put":
      case "take":
      case "commit":
      case "acquire":
      case "release":
        this.#requested(input);
        return;
      case "returned":
        if (!this.#gone.has(keyOf(input))) this.#staged.delete(input.call);
        return;
      case "threw":
        if (!this.#gone.has(keyOf(input))) this.#startsOver(({ call }) => call === input.call);
    }
  }

  #requested(input: Extract<RunnerInput, { request: number }>): void {
    const { request, call, from } = input;
    if (this.#requests.has(request)) fail("RS5", `request ${request} is made twice`);
    const takes = input.type === "take" ? input.channel : undefined;
    const inGang = input.type === "take" && input.inGang === true;
    this.#requests.set(request, { call, worker: from?.worker ?? "runner", takes, inGang });
    if (from === undefined || this.#gone.has(keyOf(from))) return;
    if (input.type === "take" && input.acknowledge) this.#staged.delete(call); // C6: it is committed with this
    if (input.type !== "put") return;
    const staged = this.#staged.get(call) ?? new Set();
    this.#staged.set(call, staged);
    for (let at = 0; at < input.items.length; at++) staged.add(itemKey(input.channel, input.items.at(at)?.payload));
  }

  #decided(effect: RunnerEffect): void {
    switch (effect.type) {
      case "answer":
      case "reject": {
        const asked = this.#requests.get(effect.request);
        if (!asked) fail("RS5", `request ${effect.request} is answered twice, or never was`);
        this.#requests.delete(effect.request);
        if (effect.type !== "answer" || effect.answer.type !== "batch") return;
        if (asked.inGang) this.#rounds.set(asked.call, (this.#rounds.get(asked.call) ?? 0) + 1);
        if (asked.takes !== undefined)
          for (const { payload } of effect.answer.items) this.#delivered(asked, itemKey(asked.takes, payload));
        return;
      }
      case "send":
        this.#sends(effect);
        return;
      case "settle": {
        const [sequence, index] = effect.call.split("/").map(Number) as [number, number];
        if (!this.#repeatable.has(sequence)) return;
        const worker = `maker/${index}`;
        this.#newest.set(worker, Math.max(sequence, this.#newest.get(worker) ?? 0));
        return;
      }
      case "replay":
        if (effect.of >= (this.#owes.get(keyOf(effect)) ?? 0)) this.#owes.delete(keyOf(effect));
        return;
      case "up": {
        const owed = this.#owes.get(keyOf(effect));
        if (owed !== undefined && effect.incarnation > 0)
          fail("CB2", `'${effect.worker}' is ready again, and has not repeated call ${owed} or a later one`);
        this.#up.set(effect.worker, effect.incarnation);
        return;
      }
      case "discard":
        this.#gone.add(keyOf(effect));
        this.#startsOver(({ worker }) => worker === effect.worker);
    }
  }

  #delivered(asked: Holder, item: string): void {
    for (const [call, staged] of this.#staged)
      if (staged.has(item)) fail("C6", `'${item}' is delivered to '${asked.call}' before '${call}' has committed it`);
    const holder = this.#holds.get(item);
    if (holder !== undefined)
      fail("C1", `'${item}' is delivered to '${asked.call}', and was to '${holder.call}', whose process lives`);
    this.#holds.set(item, asked);
  }

  /** RK1: a process gets calls in the order in which they were made; one that starts over it may get again. */
  #sends({ worker, incarnation, call }: Extract<RunnerEffect, { type: "send" }>): void {
    const key = keyOf({ worker, incarnation });
    const sent = this.#sent.get(key) ?? { calls: new Set(), last: 0 };
    this.#sent.set(key, sent);
    if (sent.calls.has(call)) return;
    const sequence = Number(call.slice(0, call.indexOf("/")));
    if (sequence < sent.last) fail("RK1", `'${worker}' gets call ${call} after call ${sent.last}`);
    sent.calls.add(call);
    sent.last = sequence;
  }

  /** RS2: whoever computes learns of each death in its turn, or it would wait for what the dead one was to send. */
  #judgeDeaths(effects: readonly RunnerEffect[]): void {
    const gone = new Set(effects.flatMap((each) => (each.type === "discard" ? [each.worker] : [])));
    for (const worker of gone) this.#up.delete(worker);
    if (!effects.some(({ type }) => type === "died") || effects.some(({ type }) => type === "failed")) return;
    const told = new Set(effects.flatMap((each) => (each.type === "peer-died" ? [`${each.worker} ${each.dead}`] : [])));
    for (const dead of gone)
      for (const worker of this.#up.keys())
        if (!told.has(`${worker} ${dead}`)) fail("RS2", `'${worker}' is not told that '${dead}' has died`);
  }

  /** C8: when a turn is over, all ranks of a call have had a round, or none has. */
  #judgeRounds(): void {
    for (const call of this.#rounds.keys())
      for (const other of this.#ranks.get(Number(call.slice(0, call.indexOf("/")))) ?? [])
        if (this.#rounds.get(other) !== this.#rounds.get(call))
          fail(
            "C8",
            `call ${call} has had ${this.#rounds.get(call)} rounds, and call ${other} ${this.#rounds.get(other) ?? 0}`,
          );
  }

  /** C3: beyond the capacity only what was let through for a take that waits, which the channel counts. */
  #judgeCapacity(state: RunnerState): void {
    const { capacity } = this.#options;
    for (const { channel, credit } of state.channelSnapshots())
      for (const { stream, usedItems, overdrawnItems } of credit)
        if (usedItems > capacity + overdrawnItems)
          fail("C3", `'${channel}' holds ${usedItems} items of '${stream}', of ${capacity} that it may`);
  }

  #startsOver(is: (holder: Holder) => boolean): void {
    for (const [item, holder] of this.#holds) if (is(holder)) this.#holds.delete(item);
    for (const call of this.#rounds.keys()) {
      const worker = `trainer/${call.slice(call.indexOf("/") + 1)}`; // only trainers take in rounds
      if (is({ call, worker })) this.#rounds.delete(call);
    }
    for (const call of this.#staged.keys()) {
      const worker = this.#workerOf(call);
      if (is({ call, worker })) this.#staged.delete(call);
    }
  }

  #workerOf(call: string): string {
    return `maker/${call.slice(call.indexOf("/") + 1)}`; // only makers put
  }
}

const keyOf = ({ worker, incarnation }: { readonly worker: string; readonly incarnation: number }): string =>
  `${worker}#${incarnation}`;
const itemKey = (channel: string, payload: unknown): string => `${channel} ${payload}`;

function fail(label: string, what: string): never {
  throw new BrokenInvariant(`${label}: ${what}`);
}
