/**
 * Judges what the state machines do while a plan runs, by an account of its own: C1–C4 and C6 of channels, L1–L4 of the
 * device lock. A violation is a bug of Treadle and ends the simulation with the invariant's label. L5's remedy, the chain
 * of who waits for whom, is what a standstill reports.
 */
import type { ChannelEnd, ItemView } from "@treadle/core";

/** What is known of an item: its place among those that were put into its stream. */
export type SimulatedItem = { readonly ordinal: number; isStaged: boolean; isDelivered: boolean };

export const keyOf = (end: ChannelEnd): string => `${end.channel}\n${end.stream}`;

type StreamAccount = {
  put: number;
  delivered: number;
  producers: number;
  consumers: number;
  /** the newest item that each call has */
  readonly newest: Map<string, number>;
  hasEnded: boolean;
};

export type JudgedCall = {
  readonly call: string;
  readonly worker: string;
  readonly devices: readonly string[];
  readonly sequence: number;
  readonly gang: string | undefined;
  readonly takes: readonly string[];
  readonly puts: readonly string[];
};

type CallAccount = JudgedCall & { hasHadTurn: boolean; isHolding: boolean };

export class Invariants {
  readonly #streams = new Map<string, StreamAccount>();
  readonly #calls = new Map<string, CallAccount>();
  readonly #onDevice = new Map<string, Set<CallAccount>>();
  readonly #holders = new Map<string, Set<CallAccount>>();
  readonly #memory: ReadonlyMap<string, number>;
  /** by worker: what it has on each of its devices, by what for, and what leaves it */
  readonly #held = new Map<string, Map<string, number>>();
  readonly #leaving = new Map<string, ReadonlyMap<string, number>>();
  /** loaded with all that it has */
  readonly #loaded = new Set<string>();
  readonly #usedBytes = new Map<string, number>();
  readonly #isOrderPlain: boolean;
  #lastToken = 0;

  /** `memory`: bytes by device. L2 is judged only where no gang and no cycle bends the order. */
  constructor(options: { readonly memory: ReadonlyMap<string, number>; readonly isOrderPlain: boolean }) {
    this.#memory = options.memory;
    this.#isOrderPlain = options.isOrderPlain;
  }

  // Channels.

  opened(end: ChannelEnd): void {
    this.#streamOf(end)[end.role === "sink" ? "producers" : "consumers"]++;
  }

  closed(end: ChannelEnd): void {
    const stream = this.#streamOf(end);
    stream[end.role === "sink" ? "producers" : "consumers"]--;
    const { consumers, hasEnded, put, delivered } = stream;
    if (hasEnded && consumers === 0 && delivered !== put)
      fail("C3", `'${end.channel}' ended with ${delivered} of ${put} items delivered`);
  }

  put(end: ChannelEnd, count: number): void {
    this.#streamOf(end).put += count;
  }

  delivered(
    call: string,
    end: ChannelEnd,
    deliveries: readonly ItemView[],
    items: readonly SimulatedItem[],
    most: number,
  ): void {
    const stream = this.#streamOf(end);
    if (items.length > most) fail("C2", `${items.length} items of '${end.channel}' came where ${most} were asked for`);
    let newest = stream.newest.get(call) ?? 0;
    for (const [i, item] of items.entries()) {
      const { delivery } = deliveries[i] as ItemView;
      if (item.isDelivered) fail("C1", `item ${item.ordinal} of '${end.channel}' was delivered twice`);
      if (item.isStaged) fail("C6", `item ${item.ordinal} of '${end.channel}' was delivered before its commit`);
      if (delivery <= newest)
        fail("C2", `item ${item.ordinal} of '${end.channel}' overtook another on its way to '${call}'`);
      item.isDelivered = true;
      newest = delivery;
    }
    stream.newest.set(call, newest);
    stream.delivered += items.length;
  }

  /** Others may have items coming to them until the last consumer is done: those wait for devices that they lent. */
  ended(end: ChannelEnd): void {
    const stream = this.#streamOf(end);
    if (stream.producers > 0) fail("C4", `'${end.channel}' ended while ${stream.producers} calls produced`);
    stream.hasEnded = true;
  }

  // Device lock.

  callOpened(call: JudgedCall): void {
    const account = { ...call, hasHadTurn: false, isHolding: false };
    this.#calls.set(call.call, account);
    for (const device of call.devices) addTo(this.#onDevice, device, account);
  }

  callClosed(call: string): void {
    const account = this.#calls.get(call);
    if (!account) return;
    this.#calls.delete(call);
    for (const device of account.devices) {
      this.#onDevice.get(device)?.delete(account);
      this.#holders.get(device)?.delete(account);
    }
  }

  enqueued(call: string): void {
    const account = this.#calls.get(call);
    if (account) account.hasHadTurn = true;
  }

  /** Without a token: the devices that it had lent are its again. */
  granted(call: string, token: number | undefined): void {
    const account = this.#calls.get(call) as CallAccount;
    if (token !== undefined) {
      if (token <= this.#lastToken) fail("L3", `'${account.worker}' got token ${token} after ${this.#lastToken}`);
      this.#lastToken = token;
    }
    if (account.devices.length > 0 && !this.#loaded.has(account.worker))
      fail("L4", `'${account.worker}' was granted its devices before it was loaded`);
    for (const device of account.devices) {
      for (const other of this.#holders.get(device) ?? []) {
        if (other.gang === undefined || other.gang !== account.gang)
          fail("L1", `'${account.worker}' was granted '${device}', which '${other.worker}' holds`);
      }
      addTo(this.#holders, device, account);
    }
    account.isHolding = true;
    if (this.#isOrderPlain && token !== undefined) this.#judgeOrder(account);
  }

  /** Lent, or released: then the call has had its turn. */
  freed(call: string, isReleased: boolean): void {
    const account = this.#calls.get(call);
    if (!account) return;
    account.isHolding = false;
    if (isReleased) account.hasHadTurn = true;
    for (const device of account.devices) this.#holders.get(device)?.delete(account);
  }

  /** `bytes` by what they are for; `residualBytes` come with the first load, and stay. */
  onloads(worker: string, devices: readonly string[], bytes: ReadonlyMap<string, number>, residualBytes: number): void {
    const held = this.#held.get(worker) ?? new Map<string, number>();
    this.#held.set(worker, held);
    const coming = [...bytes, ...(held.has("residual") ? [] : [["residual", residualBytes] as const])];
    const comingBytes = coming.reduce((sum, [, each]) => sum + each, 0);
    for (const [what, each] of coming) {
      if (held.has(what)) fail("MT3", `'${worker}' loads '${what}' twice`);
      held.set(what, each);
    }
    for (const device of devices) {
      const used = (this.#usedBytes.get(device) ?? 0) + comingBytes;
      this.#usedBytes.set(device, used);
      const capacity = this.#memory.get(device) ?? Number.POSITIVE_INFINITY;
      if (used > capacity) fail("L4", `'${worker}' overflows the memory of '${device}': ${used} of ${capacity} bytes`);
    }
  }

  onloaded(worker: string): void {
    this.#loaded.add(worker);
  }

  offloads(worker: string, devices: readonly string[], bytes: ReadonlyMap<string, number>): void {
    this.#loaded.delete(worker);
    this.#leaving.set(worker, bytes);
    for (const device of devices)
      for (const call of this.#holders.get(device) ?? [])
        if (call.worker === worker) fail("L4", `'${worker}' is offloaded while it holds devices`);
  }

  /** Says what it still has on each of its devices. */
  offloaded(worker: string, devices: readonly string[]): number {
    const held = this.#held.get(worker) as Map<string, number>;
    for (const [what, bytes] of this.#leaving.get(worker) ?? []) {
      if (!held.delete(what)) fail("MT3", `'${worker}' offloads '${what}', which is not loaded`);
      for (const device of devices) this.#usedBytes.set(device, (this.#usedBytes.get(device) ?? 0) - bytes);
    }
    return [...held.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  /** L2: whoever feeds this call, however indirectly, on a shared device has put something or had its turn. */
  #judgeOrder(account: CallAccount): void {
    const rivals = new Set<CallAccount>();
    for (const device of account.devices) {
      for (const other of this.#onDevice.get(device) ?? [])
        if (other.sequence < account.sequence && !other.hasHadTurn) rivals.add(other);
    }
    if (rivals.size === 0) return;
    const streams = new Set(account.takes);
    for (const stream of streams) {
      for (const other of this.#calls.values()) {
        if (!other.puts.includes(stream)) continue;
        if (rivals.has(other))
          fail("L2", `'${account.worker}' was granted its devices before its producer '${other.worker}'`);
        for (const next of other.takes) streams.add(next);
      }
    }
  }

  #streamOf(end: ChannelEnd): StreamAccount {
    const key = keyOf(end);
    let stream = this.#streams.get(key);
    if (!stream) {
      stream = { put: 0, delivered: 0, producers: 0, consumers: 0, newest: new Map(), hasEnded: false };
      this.#streams.set(key, stream);
    }
    return stream;
  }
}

function fail(label: string, what: string): never {
  throw new Error(`${label}: ${what}`);
}

function addTo<V>(map: Map<string, Set<V>>, key: string, value: V): void {
  const known = map.get(key);
  if (known) known.add(value);
  else map.set(key, new Set([value]));
}
