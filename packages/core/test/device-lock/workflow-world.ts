/**
 * A workflow in miniature: workers that lock, take, put and release against the real channel and lock machines, one
 * random event at a time, with a shell as thin as it can be. The world keeps its own account of who holds and who is
 * loaded, and judges every effect by it.
 */
import { expect } from "vitest";
import type { ChannelEffect, ItemView } from "../../src/channel/channel-messages.ts";
import { ChannelState } from "../../src/channel/channel-state.ts";
import { DeviceLockState } from "../../src/device-lock/device-lock-state.ts";
import type { LeaseEffect, LeaseInput, LockEffect } from "../../src/device-lock/lock-messages.ts";

export type Command =
  | { readonly op: "lock" | "release" | "work" }
  | { readonly op: "barrier"; readonly name: string; readonly size: number }
  | { readonly op: "take"; readonly channel: string; readonly max: number }
  | { readonly op: "put"; readonly channel: string; readonly items: readonly string[] };

/** What a `take` yields back: the items, or undefined at the end of the stream. */
export type Program = Generator<Command, void, readonly string[] | undefined>;

export type RankSpec = {
  readonly worker: string;
  readonly devices: readonly string[];
  readonly residentBytes: number;
  readonly sequence: number;
  readonly stream: number;
  readonly source: string | undefined;
  readonly sinks: readonly string[];
  readonly gang?: string | undefined;
  readonly program: () => Program;
};

type Rank = RankSpec & {
  readonly call: string;
  run: Program;
  life: number;
  token: number | undefined;
  lent: boolean;
  held: readonly ItemView[];
  hasPut: boolean;
  numTurns: number;
  isDone: boolean;
  /** what to resume with when the devices are back */
  answer: readonly string[] | undefined;
  waitsFor: string;
};

export type { LeaseEffect };

export class WorkflowWorld {
  readonly lock: DeviceLockState;
  readonly channels = new Map<string, ChannelState>();
  readonly ranks = new Map<string, Rank>();
  /** Acknowledged by a rank without sinks: channel, stream and item, once for each time. */
  readonly consumed: string[] = [];
  readonly #pending: (() => void)[] = [];
  readonly #random: () => number;
  readonly #loaded = new Set<string>();
  /** Loaded, or on the way in or out. */
  readonly #inMemory = new Set<string>();
  readonly #capacityBytes: number;
  readonly #onLease: ((effect: LeaseEffect) => void) | undefined;
  readonly #devices: readonly string[];
  readonly #workers = new Map<string, { readonly devices: readonly string[]; readonly residentBytes: number }>();
  readonly #barriers = new Map<string, (() => void)[]>();
  #lastRequest = 0;
  #lastToken = 0;
  numOffloads = 0;
  numLoans = 0;
  /** Judges L2 strictly; only right where channels never fill, since credit can close a circle. */
  isOrderStrict = false;

  constructor(options: {
    random: () => number;
    devices: readonly string[];
    capacityBytes: number;
    channelItems: number;
    channels: readonly string[];
    /** of a run that shares its devices: told what its lock asks of the pool */
    onLease?: (effect: LeaseEffect) => void;
  }) {
    this.#random = options.random;
    this.#capacityBytes = options.capacityBytes;
    this.#devices = options.devices;
    this.#onLease = options.onLease;
    this.lock = new DeviceLockState({
      devices: options.devices.map((device) => ({ device, capacityBytes: options.capacityBytes })),
      isLeased: options.onLease !== undefined,
    });
    for (const name of options.channels)
      this.channels.set(name, new ChannelState({ name, capacity: { items: options.channelItems } }));
  }

  addWorker(worker: string, devices: readonly string[], residentBytes: number): void {
    this.#workers.set(worker, { devices, residentBytes });
    this.lock.addWorker({ worker, devices, residentBytes });
  }

  /** What the runner does when it calls a method: register everything in program order, then let it run. */
  call(spec: RankSpec): void {
    const call = `${spec.sequence}:${spec.worker}`;
    const rank: Rank = {
      ...spec,
      call,
      run: spec.program(),
      life: 0,
      token: undefined,
      lent: false,
      held: [],
      hasPut: false,
      numTurns: 0,
      isDone: false,
      answer: undefined,
      waitsFor: "its start",
    };
    this.ranks.set(call, rank);
    const refs = (names: readonly string[]) => names.map((channel) => ({ channel, stream: spec.stream }));
    const { worker, sequence, gang, source, sinks, stream } = spec;
    this.lock.openCall({ call, worker, sequence, gang, consumes: refs(source ? [source] : []), produces: refs(sinks) });
    if (source) this.#channel(source).open({ call, worker, role: "source", stream });
    for (const sink of sinks) this.#channel(sink).open({ call, worker, role: "sink", stream });
    this.#later(rank, () => this.#resume(rank, undefined));
  }

  /** The runner's own puts: a producer that opens, puts and closes. */
  feed(channel: string, stream: number, items: readonly string[]): void {
    const call = `feed ${channel} ${stream}`;
    const state = this.#channel(channel);
    state.open({ call, worker: "runner", role: "sink", stream });
    this.#apply(
      state.put({
        call,
        put: ++this.#lastRequest,
        items: items.map((payload) => ({ payload, sizeBytes: 1 })),
        nowMs: 0,
      }),
    );
    this.#apply(state.close({ call, outcome: { ok: true } }));
  }

  /** The process of a worker ends and another one takes its place. */
  kill(worker: string): void {
    const affected = [...this.ranks.values()].filter((rank) => rank.worker === worker && !rank.isDone);
    if (affected.length === 0) return;
    this.#loaded.delete(worker);
    this.#inMemory.delete(worker);
    for (const rank of affected) {
      rank.life += 1;
      Object.assign(rank, { token: undefined, lent: false, held: [], answer: undefined, waitsFor: "its restart" });
    }
    const effects = [...this.channels.values()].flatMap((channel) => channel.workerDied({ worker }));
    this.#apply(effects);
    this.#applyLock(this.lock.workerDied({ worker }));
    const { devices, residentBytes } = affected[0] as Rank;
    this.lock.addWorker({ worker, devices, residentBytes });
    for (const rank of affected) {
      this.#later(rank, () => {
        for (const channel of this.#channelsOf(rank)) channel.retry({ call: rank.call, worker });
        rank.run = rank.program();
        this.#resume(rank, undefined);
      });
    }
  }

  /** Runs random events until nothing is left to happen; `between` may interfere after each. */
  run(between: (event: number) => void = () => {}): void {
    for (let event = 0; this.step(); event++) {
      if (event > 50_000) throw new Error(`no end in sight:\n${this.report()}`);
      between(event);
    }
    if (!this.isDone) throw new Error(`deadlock:\n${this.report()}`);
  }

  /** One random event; false when nothing is left to happen. */
  step(): boolean {
    const at = Math.floor(this.#random() * this.#pending.length);
    const [next] = this.#pending.splice(at, 1);
    next?.();
    this.#checkMemory();
    return next !== undefined;
  }

  get isDone(): boolean {
    return [...this.ranks.values()].every((rank) => rank.isDone);
  }

  /** Devices that ranks hold, or onto which they are being loaded. */
  get devicesInUse(): readonly string[] {
    return this.lock.snapshot().devices.flatMap(({ device, holders }) => (holders.length > 0 ? [device] : []));
  }

  /** Components that compute on a device. */
  componentsOn(id: string): readonly string[] {
    const holders = this.lock.snapshot().devices.find(({ device }) => device === id)?.holders ?? [];
    return [...new Set(holders.map((worker) => worker.slice(0, worker.lastIndexOf("/"))))];
  }

  /** What the pool says. */
  lease(input: LeaseInput): void {
    this.#applyLock(this.lock.lease(input, 0));
  }

  report(): string {
    const waits = [...this.ranks.values()]
      .filter((rank) => !rank.isDone)
      .map((rank) => `${rank.call} on ${rank.devices} waits for ${rank.waitsFor}`);
    return [...waits, JSON.stringify(this.lock.snapshot().holds), JSON.stringify(this.lock.edges())].join("\n");
  }

  #channel(name: string): ChannelState {
    return this.channels.get(name) as ChannelState;
  }

  #channelsOf(rank: Rank): ChannelState[] {
    return [...new Set([...(rank.source ? [rank.source] : []), ...rank.sinks])].map((name) => this.#channel(name));
  }

  #later(rank: Rank, action: () => void): void {
    const { life } = rank;
    this.#pending.push(() => {
      if (rank.life === life) action();
    });
  }

  #resume(rank: Rank, value: readonly string[] | undefined): void {
    const { value: command, done } = rank.run.next(value);
    if (done) this.#finish(rank);
    else this.#execute(rank, command);
  }

  #execute(rank: Rank, command: Command): void {
    const { call } = rank;
    rank.waitsFor = command.op === "take" || command.op === "put" ? `${command.op} ${command.channel}` : command.op;
    switch (command.op) {
      case "work":
        if (rank.devices.length > 0 && this.lock.validate(rank.token as number))
          throw new Error("L3: works without a valid token");
        this.#later(rank, () => this.#resume(rank, undefined));
        return;
      case "lock":
        this.#applyLock(this.lock.acquire({ request: call, call, nowMs: 0 }));
        return;
      case "release": {
        const token = rank.token as number;
        rank.token = undefined;
        rank.numTurns += 1;
        this.#applyLock(this.lock.release({ token }));
        this.#later(rank, () => this.#resume(rank, undefined));
        return;
      }
      case "barrier": {
        const waiting = this.#barriers.get(command.name) ?? [];
        waiting.push(() => this.#resume(rank, undefined));
        this.#barriers.set(command.name, waiting);
        if (waiting.length < command.size) return;
        this.#barriers.delete(command.name);
        this.#pending.push(...waiting);
        return;
      }
      case "take": {
        this.#settle(rank);
        rank.waitsFor = `take ${command.channel}`;
        const take = ++this.#lastRequest;
        const effects = this.#channel(command.channel).take({ call, take, max: { items: command.max }, nowMs: 0 });
        this.#blockUnless(effects, (effect) => "take" in effect && effect.take === take, rank, command.channel, "take");
        return;
      }
      case "put": {
        const put = ++this.#lastRequest;
        const items = command.items.map((payload) => ({ payload, sizeBytes: 1 }));
        const effects = this.#channel(command.channel).put({
          call,
          put,
          items,
          staged: rank.held.length > 0,
          nowMs: 0,
        });
        rank.hasPut = true;
        this.#applyLock(this.lock.enqueued({ call, stream: { channel: command.channel, stream: rank.stream } }));
        this.#blockUnless(
          effects,
          (effect) => effect.type === "put-accepted" && effect.put === put,
          rank,
          command.channel,
          "put",
        );
      }
    }
  }

  /** A call that cannot go on says so and lends its devices. */
  #blockUnless(
    effects: readonly ChannelEffect[],
    answers: (effect: ChannelEffect) => boolean,
    rank: Rank,
    channel: string,
    on: "take" | "put",
  ): void {
    if (!effects.some(answers)) {
      if (rank.token !== undefined) {
        rank.lent = true;
        this.numLoans += 1;
        const { token } = rank;
        rank.token = undefined;
        this.#applyLock(this.lock.lend({ token }));
      }
      this.#applyLock(this.lock.park({ call: rank.call, stream: { channel, stream: rank.stream }, on }));
    }
    this.#apply(effects);
  }

  /** C6: acknowledges and commits on every channel of the call in one turn. */
  #settle(rank: Rank): void {
    const effects: ChannelEffect[] = [];
    if (rank.sinks.length === 0)
      for (const item of rank.held) this.consumed.push(`${rank.source}/${rank.stream}/${item.payload}`);
    rank.held = [];
    for (const channel of this.#channelsOf(rank)) effects.push(...channel.ack({ call: rank.call }));
    for (const channel of this.#channelsOf(rank)) effects.push(...channel.commit({ call: rank.call }));
    this.#apply(effects);
  }

  #finish(rank: Rank): void {
    this.#settle(rank);
    rank.isDone = true;
    const closed = this.#channelsOf(rank).flatMap((channel) =>
      channel.close({ call: rank.call, outcome: { ok: true } }),
    );
    this.#apply(closed);
    this.#applyLock(this.lock.closeCall({ call: rank.call }));
  }

  #apply(effects: readonly ChannelEffect[]): void {
    for (const effect of effects) {
      if (effect.type === "finished") continue;
      const rank = this.ranks.get(effect.call);
      if (!rank) continue;
      if (effect.type === "fail" || effect.type === "put-refused") throw effect.error;
      if (effect.type === "stale-ack") throw new Error("acknowledged what it did not hold");
      if (effect.type === "deliver") rank.held = effect.deliveries;
      const answer = effect.type === "deliver" ? effect.deliveries.map((item) => item.payload as string) : undefined;
      this.#later(rank, () => {
        this.lock.unpark({ call: rank.call });
        if (!rank.lent) this.#resume(rank, answer);
        else {
          rank.answer = answer;
          rank.waitsFor = "its loan";
          this.#applyLock(this.lock.reclaim({ request: rank.call, call: rank.call, nowMs: 0 }));
        }
      });
    }
  }

  #applyLock(effects: readonly LockEffect[]): void {
    this.#judgeOffloads(effects);
    for (const effect of effects) {
      if (effect.type === "refuse") throw effect.error;
      if (effect.type === "stale") throw effect.error;
      if (effect.type.endsWith("-lease")) this.#onLease?.(effect as LeaseEffect);
      else if (effect.type === "grant") this.#granted(this.ranks.get(effect.call) as Rank, effect.token);
      else if (effect.type === "offload") {
        this.numOffloads += 1;
        this.#loaded.delete(effect.worker);
        this.#pending.push(() => {
          this.#inMemory.delete(effect.worker);
          this.#applyLock(this.lock.offloaded({ worker: effect.worker }));
        });
      } else if (effect.type === "onload") {
        this.#inMemory.add(effect.worker);
        const lives = this.#livesOf(effect.worker);
        this.#pending.push(() => {
          // A process that died meanwhile does not answer.
          if (this.#livesOf(effect.worker) !== lives) return;
          this.#loaded.add(effect.worker);
          this.#applyLock(this.lock.onloaded({ worker: effect.worker }));
        });
      }
    }
  }

  #livesOf(worker: string): number {
    return [...this.ranks.values()].filter((rank) => rank.worker === worker).reduce((sum, rank) => sum + rank.life, 0);
  }

  #granted(rank: Rank, token: number): void {
    expect(token, "L3: tokens rise").toBeGreaterThan(this.#lastToken);
    this.#lastToken = token;
    if (rank.devices.length > 0) expect(this.#loaded.has(rank.worker), "L4: no grant without onload").toBe(true);
    const active = [...this.ranks.values()].filter((other) => other.token !== undefined && other !== rank);
    for (const other of active) {
      const shared = other.devices.filter((device) => rank.devices.includes(device));
      if (other.gang === undefined || other.gang !== rank.gang)
        expect(shared, `L1: ${other.call} and ${rank.call} share a device`).toEqual([]);
    }
    if (this.isOrderStrict && !rank.lent) this.#judgeOrder(rank);
    rank.token = token;
    const { answer } = rank;
    rank.lent = false;
    rank.answer = undefined;
    this.#later(rank, () => this.#resume(rank, answer));
  }

  /** L2: whoever feeds this rank, however indirectly, on a shared device has had its turn or has ended. */
  #judgeOrder(rank: Rank): void {
    const open = [...this.ranks.values()].filter((other) => !other.isDone);
    const fed = new Set([rank]);
    for (const each of fed) {
      for (const other of open)
        if (other.stream === each.stream && other.sinks.includes(each.source ?? "")) fed.add(other);
    }
    for (const other of fed) {
      if (
        other === rank ||
        other.sequence >= rank.sequence ||
        !other.devices.some((device) => rank.devices.includes(device))
      )
        continue;
      expect(other.numTurns > 0 || other.hasPut, `L2: ${rank.call} before ${other.call}`).toBe(true);
    }
  }

  #checkMemory(): void {
    for (const device of this.#devices) {
      if (this.#bytesOn(device, this.#inMemory) > this.#capacityBytes)
        throw new Error(`L1: the memory of ${device} overflows`);
    }
  }

  #bytesOn(device: string, workers: Iterable<string>): number {
    let bytes = 0;
    for (const worker of workers) {
      const known = this.#workers.get(worker);
      if (known?.devices.includes(device)) bytes += known.residentBytes;
    }
    return bytes;
  }

  /** L4: with any one of the offloaded still there, some device would overflow. */
  #judgeOffloads(effects: readonly LockEffect[]): void {
    const victims = effects.flatMap((effect) => (effect.type === "offload" ? [effect.worker] : []));
    if (victims.length === 0) return;
    const devices = this.lock.snapshot().devices;
    for (const victim of victims) {
      const overflows = devices.some(({ device, holders }) => {
        if (!this.#bytesOn(device, [victim])) return false;
        const staying = [...this.#loaded].filter((worker) => !victims.includes(worker) && !holders.includes(worker));
        return this.#bytesOn(device, [...staying, ...holders, victim]) > this.#capacityBytes;
      });
      expect(overflows, `L4: '${victim}' was offloaded without need`).toBe(true);
    }
  }
}
