/**
 * Producers before consumers (L2), over the calls that the runner has opened.
 *
 * A call *precedes* another when it is earlier in program order and some chain of open calls carries its output to the
 * other. While it may still want a device that the other one asks for, it goes first. It has had its turn once it
 * - has acquired and released its devices, or
 * - has enqueued something while it neither held them nor waited for them: it produces without the lock, or it lent them.
 *   One that has lent them comes back for them, so there must be something in it for the other, if it feeds the other
 *   directly; else the other would be loaded, find nothing, and leave again.
 *
 * Nothing else blocks: producers on other devices (spatial placement), producers without devices, producers that
 * ended. Of two calls that feed each other the earlier one goes first, so the order has no circle of its own. A circle
 * through data remains possible, when the earlier call waits for an item of the later one before its first turn; calls
 * say when they wait (`park`), and a producer that waits, however indirectly, for the consumer does not block it.
 */
import type { CallInput, StreamRef } from "./lock-messages.ts";

export type CallRecord = {
  readonly call: string;
  readonly worker: string;
  devices: readonly string[];
  readonly sequence: number;
  readonly gang: string | undefined;
  readonly consumes: readonly string[];
  readonly produces: readonly string[];
  /** Equal for calls which the same calls precede, whatever their devices. */
  readonly kind: string;
  numTurns: number;
  /** the streams into which it has put something */
  readonly enqueued: Set<string>;
  isHolding: boolean;
  isWaiting: boolean;
  /** others may have its devices until it asks for them again */
  hasLent: boolean;
  /** what it waits for, at once */
  readonly parked: ParkedOn[];
  /** The last search that came by. */
  visit: number;
};

export type ParkedOn = { readonly stream: string; readonly on: "take" | "put" };

export function streamKey({ channel, stream }: StreamRef): string {
  return `${channel}\n${typeof stream}\n${stream}`;
}

export class CallOrder {
  readonly #calls = new Map<string, CallRecord>();
  readonly #producers = new Map<string, Set<CallRecord>>();
  readonly #consumers = new Map<string, Set<CallRecord>>();
  readonly #onDevice = new Map<string, Set<CallRecord>>();
  readonly #gangs = new Map<string, Set<CallRecord>>();
  /** by stream and then by a stream which its producers consume, how many open calls do so */
  readonly #feeds = new Map<string, Map<string, number>>();
  /** By what is consumed: every stream from which data comes. Forgotten when `#feeds` gains or loses a pair. */
  readonly #upstream = new Map<string, ReadonlySet<string>>();
  /** Calls which may depend on others than before, or which others may wait for no longer. */
  readonly #changed = new Set<CallRecord>();
  #isRewired = false;

  open(input: CallInput, devices: readonly string[]): void {
    const consumes = input.consumes.map(streamKey).sort();
    const record: CallRecord = {
      call: input.call,
      worker: input.worker,
      devices,
      sequence: input.sequence,
      gang: input.gang,
      consumes,
      produces: input.produces.map(streamKey),
      kind: [input.sequence, ...consumes].join("\n\n"),
      numTurns: 0,
      enqueued: new Set(),
      isHolding: false,
      isWaiting: false,
      hasLent: false,
      parked: [],
      visit: 0,
    };
    this.#calls.set(record.call, record);
    for (const stream of record.produces) addTo(this.#producers, stream, record);
    for (const stream of record.consumes) addTo(this.#consumers, stream, record);
    for (const device of devices) addTo(this.#onDevice, device, record);
    if (record.gang !== undefined) addTo(this.#gangs, record.gang, record);
    for (const to of record.produces) for (const from of consumes) this.#feed(to, from, 1);
  }

  close(record: CallRecord): void {
    this.#calls.delete(record.call);
    for (const stream of record.produces) removeFrom(this.#producers, stream, record);
    for (const stream of record.consumes) removeFrom(this.#consumers, stream, record);
    for (const device of record.devices) removeFrom(this.#onDevice, device, record);
    if (record.gang !== undefined) removeFrom(this.#gangs, record.gang, record);
    for (const to of record.produces) for (const from of record.consumes) this.#feed(to, from, -1);
    this.#changed.add(record);
  }

  /** The worker that serves the call runs elsewhere now. */
  move(record: CallRecord, devices: readonly string[]): void {
    for (const device of record.devices) removeFrom(this.#onDevice, device, record);
    record.devices = devices;
    for (const device of devices) addTo(this.#onDevice, device, record);
    this.#isRewired = true;
  }

  /** Said with every change of a record's fields, and of who holds what it asks for. */
  changed(record: CallRecord): void {
    this.#changed.add(record);
  }

  /** What has changed since this was last asked; undefined when any call may precede any other now. */
  takeChanges(): CallRecord[] | undefined {
    const changed = this.#isRewired ? undefined : [...this.#changed];
    this.#changed.clear();
    this.#isRewired = false;
    return changed;
  }

  get(call: string): CallRecord | undefined {
    return this.#calls.get(call);
  }

  get calls(): Iterable<CallRecord> {
    return this.#calls.values();
  }

  gangOf(record: CallRecord): Iterable<CallRecord> {
    return record.gang === undefined ? [record] : (this.#gangs.get(record.gang) ?? []);
  }

  gangSizeOf(record: CallRecord): number {
    return record.gang === undefined ? 1 : (this.#gangs.get(record.gang)?.size ?? 0);
  }

  /** The calls that must use a device of `scope` before `record` may, circles through data not considered. */
  *predecessors(record: CallRecord, scope: readonly string[]): Generator<{ call: CallRecord; device: string }> {
    if (record.consumes.length === 0) return;
    let upstream: ReadonlySet<string> | undefined;
    for (const device of scope) {
      for (const other of this.#onDevice.get(device) ?? []) {
        if (other.sequence >= record.sequence || hasHadTurn(other, record.consumes)) continue;
        upstream ??= this.#upstreamOf(record);
        if (other.produces.some((stream) => upstream?.has(stream))) yield { call: other, device };
      }
    }
  }

  /** The calls that can bring what a parked call waits for: producers of the data, or consumers that give credit. */
  suppliersOf({ stream, on }: ParkedOn): ReadonlySet<CallRecord> {
    return (on === "take" ? this.#producers : this.#consumers).get(stream) ?? new Set();
  }

  /** Everybody a parked call may depend on: fellow consumers too, for what they have not acknowledged. */
  awaitedBy(wait: ParkedOn): ReadonlySet<CallRecord>[] {
    const fellows = wait.on === "take" ? this.#consumers.get(wait.stream) : undefined;
    return [this.suppliersOf(wait), fellows ?? new Set()];
  }

  #upstreamOf(record: CallRecord): ReadonlySet<string> {
    const key = record.consumes.join("\n\n");
    const known = this.#upstream.get(key);
    if (known) return known;
    const found = new Set(record.consumes);
    for (const stream of found) for (const from of this.#feeds.get(stream)?.keys() ?? []) found.add(from);
    this.#upstream.set(key, found);
    return found;
  }

  #feed(to: string, from: string, change: 1 | -1): void {
    let feeds = this.#feeds.get(to);
    if (!feeds) {
      feeds = new Map();
      this.#feeds.set(to, feeds);
    }
    const before = feeds.get(from) ?? 0;
    if (before + change === 0) feeds.delete(from);
    else feeds.set(from, before + change);
    if (feeds.size === 0) this.#feeds.delete(to);
    if (before > 0 && before + change > 0) return;
    this.#upstream.clear();
    this.#isRewired = true;
  }
}

/** For calls that consume these streams; without any, for some call or other. */
export function hasHadTurn(call: CallRecord, consumed: readonly string[] = []): boolean {
  if (call.isHolding) return false;
  if (call.numTurns > 0) return true;
  if (call.isWaiting) return false;
  const fed = call.hasLent ? call.produces.filter((stream) => consumed.includes(stream)) : [];
  return fed.length > 0 ? fed.some((stream) => call.enqueued.has(stream)) : call.enqueued.size > 0;
}

function addTo<K, V>(map: Map<K, Set<V>>, key: K, value: V): void {
  const known = map.get(key);
  if (known) known.add(value);
  else map.set(key, new Set([value]));
}

function removeFrom<K, V>(map: Map<K, Set<V>>, key: K, value: V): void {
  const known = map.get(key);
  known?.delete(value);
  if (known?.size === 0) map.delete(key);
}
