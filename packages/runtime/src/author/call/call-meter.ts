/**
 * What one observed call costs this rank: busy time, and time spent waiting for devices, items, credit and other workers.
 *
 * Owner of: the readings of one call.
 *
 * CM1 the call is busy while it awaits nothing that it has asked for: waits may nest and overlap, and one counts from when
 *     it is awaited, so that a call which asks ahead, or puts without awaiting it, is busy with what it does meanwhile. It is
 *     busy, too, while its engine computes, whatever it awaits and whenever that began, as in
 *     `Promise.all([source.take(), lockThenTrain()])`, and in the turn of the event loop in which one of several waits has ended.
 *     What else goes on beside a wait is not known: timers of its own, or another process.
 *     What it asks other workers for, fellow ranks included, it waits for: what those compute is theirs, and the way of a
 *     message or an answer is what a step takes besides.
 * CM2 batches are those of the first channel that brought items. What else the call takes, puts, sends or locks belongs
 *     to the batch that is open, so that work which follows a second take is not lost.
 * CM3 items of a stream overlap, so that no item's time is its own: they are told as batches of as many as are in flight at
 *     once, of equal time each, which together have all of it.
 */
import {
  type CallObservation,
  type ChannelObservation,
  type ItemBlock,
  median,
  type SequenceSums,
  type WorkerMemory,
} from "@treadle/contracts";
import { queuedMs } from "./run-queue.ts";

/** A wait for something that was asked for. */
export type AskedWait = Disposable & {
  /** From now on the call does nothing else (CM1). */
  awaited(): void;
};

/** For items or credit. */
export type ChannelWait = AskedWait & {
  /** What came, or went: counted when the wait has brought something. */
  moved(blocks: readonly ItemBlock[]): void;
};

export type MeterReadings = {
  readonly now: () => number;
  /** what the worker says of its engine (`Worker.idle`): undefined where nothing computes */
  readonly idle: () => Promise<void> | undefined;
  /** processor milliseconds of the process so far */
  readonly cpuMs: () => number;
  /** milliseconds that the process was ready to run and had no processor so far; undefined where nobody counts them */
  readonly queuedMs: () => number | undefined;
};

const processReadings: Omit<MeterReadings, "idle"> = {
  now: () => performance.now(),
  cpuMs: () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  },
  queuedMs,
};

type Begun = { readonly idleMs: number; readonly numComputed: number };

/** An engine that computes one call after another is idle in none of the moments in which it is asked. */
const mostAsksInTurn = 8;

/** `waits`: each in which nothing computed, in milliseconds */
type MeteredChannel = { readonly total: ChannelObservation; readonly waits: number[] };

export class CallMeter {
  readonly #readings: MeterReadings;
  readonly #cpuAtStartMs: number;
  readonly #channels = new Map<string, MeteredChannel>();
  readonly #batches = new Map<number, CallObservation["batches"][number]>();
  readonly #peers = new Map<string, CallObservation["peers"][number]>();
  #sequences: SequenceSums | undefined;
  #numWaits = 0;
  #numComputed = 0;
  /** somebody asks again once what the engine computes has ended */
  #isFollowed = false;
  #isOver = false;
  #busyMs = 0;
  #idleMs = 0;
  #isBusy = true;
  /** since when it is busy, or is not */
  #sinceMs: number;
  #queuedMs = 0;
  /** undefined where nobody counts them */
  #queuedSinceMs: number | undefined;
  #lockWaitMs = 0;
  /** CM2 */
  #batchChannel: string | undefined;
  #batch: { items: number; readonly fromMs: number; readonly inFlight: number | undefined } | undefined;

  constructor(given: Pick<MeterReadings, "idle"> & Partial<MeterReadings>) {
    this.#readings = { ...processReadings, ...given };
    this.#sinceMs = this.#readings.now();
    this.#cpuAtStartMs = this.#readings.cpuMs();
    this.#queuedSinceMs = this.#readings.queuedMs();
  }

  /** The engine has begun to compute for this call (CM1): what it waits for leaves that to it. */
  computes(): void {
    if (this.#numWaits > 0 && !this.#isBusy && !this.#isOver) this.#followEngine();
  }

  /** Waiting for devices, onload included. */
  lockWait(): Disposable {
    const begun = this.#pause();
    return {
      [Symbol.dispose]: () => {
        this.#lockWaitMs += this.#goOn() - begun.idleMs;
      },
    };
  }

  /** Waiting for what other workers do, answer or send, once that is awaited. */
  workerWait(): AskedWait {
    let isOpen = false;
    let isOver = false;
    return {
      awaited: () => {
        if (isOpen || isOver) return;
        isOpen = true;
        this.#pause();
      },
      [Symbol.dispose]: () => {
        if (isOpen && !isOver) this.#goOn();
        isOver = true;
      },
    };
  }

  /**
   * Waiting for a channel's items (`source`) or credit (`sink`), once that is awaited. `inFlight`: of a stream, so many of
   * whose items are worked on at once.
   */
  channelWait(channel: string, role: ChannelObservation["role"], inFlight?: number): ChannelWait {
    const { total, waits } = this.#channel(channel, role);
    if (inFlight !== undefined) total.streamed = true;
    let isAwaited = false;
    let begun: Begun | undefined;
    let items = 0;
    let isOver = false;
    const end = () => {
      if (isOver) return;
      isOver = true;
      if (begun) {
        const waitedMs = this.#goOn() - begun.idleMs;
        total.waitMs += waitedMs;
        if (begun.numComputed === this.#numComputed) waits.push(waitedMs);
      }
      // Of a stream that nobody waited for, what was in flight was worked on.
      if (role === "source" && (begun || (inFlight !== undefined && items > 0)))
        this.#handOver(channel, items, inFlight);
    };
    return {
      awaited: () => {
        if (isAwaited) return;
        isAwaited = true;
        if (!isOver) begun = this.#pause();
        else if (role === "source") this.#handOver(channel, items, inFlight);
      },
      moved: (blocks) => {
        const itemBytes = blocks.flatMap(sizesOf);
        items = itemBytes.length;
        total.items += items;
        total.times++;
        const logs = total.logBytes as [number, number];
        for (const bytes of itemBytes) {
          const log = Math.log(Math.max(1, bytes));
          total.bytes += bytes;
          logs[0] += log;
          logs[1] += log * log;
        }
        end();
      },
      [Symbol.dispose]: end,
    };
  }

  /** A call of another worker, or without a method a message to it. */
  contacted(worker: string, method?: string): void {
    const component = worker.slice(0, worker.lastIndexOf("/"));
    const key = `${component}.${method ?? ""}`;
    const times = (this.#peers.get(key)?.times ?? 0) + 1;
    this.#peers.set(key, { component, ...(method === undefined ? {} : { method }), times });
  }

  /** A model has sampled so many tokens after a prompt. */
  sampled(promptTokens: number, responseTokens: number): void {
    if (responseTokens < 1) return;
    const log = Math.log(responseTokens);
    const { count, logResponse, longestResponse, ...sums } = this.#sequences ?? nothingSampled;
    this.#sequences = {
      count: count + 1,
      promptTokens: sums.promptTokens + promptTokens,
      logResponse: [logResponse[0] + log, logResponse[1] + log * log],
      longestResponse: Math.max(longestResponse, responseTokens),
    };
  }

  /** The call has ended; `swaps` and memory are its worker's. */
  finish(worker: { onloadMs: number; offloadMs: number } & WorkerMemory): CallObservation {
    if (this.#isBusy) this.#rest();
    this.#isOver = true;
    this.#closeBatch();
    return {
      busyMs: this.#busyMs,
      lockWaitMs: this.#lockWaitMs,
      cpuMs: Math.max(0, this.#readings.cpuMs() - this.#cpuAtStartMs),
      ...(this.#queuedSinceMs === undefined ? {} : { queuedMs: this.#queuedMs }),
      ...worker,
      channels: [...this.#channels.values()].map(({ total, waits }) => ({ ...total, ...askMs(waits) })),
      peers: [...this.#peers.values()],
      ...(this.#sequences && { sequences: this.#sequences }),
      batches: [...this.#batches.values()],
    };
  }

  #channel(channel: string, role: ChannelObservation["role"]): MeteredChannel {
    const key = `${role} ${channel}`;
    const found = this.#channels.get(key) ?? {
      total: { channel, role, items: 0, bytes: 0, logBytes: [0, 0], times: 0, waitMs: 0 },
      waits: [],
    };
    this.#channels.set(key, found);
    return found;
  }

  /** `idleMs`: how long the call has been idle until now; `numComputed`: how often its engine computed beside a wait before */
  #pause(): Begun {
    const numComputed = this.#numComputed;
    this.#numWaits++;
    this.#followEngine();
    return { idleMs: this.#idleNowMs(), numComputed };
  }

  /** How long the call has been idle until now. */
  #goOn(): number {
    const idleMs = this.#idleNowMs();
    this.#numWaits--;
    if (!this.#isBusy) this.#resume();
    // What went on computes in this turn, or has an engine compute beyond it; then it waits, as the rest of the call does.
    if (this.#numWaits > 0) process.nextTick(() => this.#followWhileWaiting());
    return idleMs;
  }

  #followWhileWaiting(numAsked?: number): void {
    if (this.#numWaits > 0 && this.#isBusy && !this.#isOver) this.#followEngine(numAsked);
  }

  /** Of a call that waits: busy while its engine computes, and no longer. */
  #followEngine(numAsked = 0): void {
    const computed = this.#readings.idle();
    if (!computed) {
      if (this.#isBusy) this.#rest();
      return;
    }
    this.#numComputed++;
    if (!this.#isBusy) this.#resume();
    if (this.#isFollowed) return;
    this.#isFollowed = true;
    const ask = () => {
      this.#isFollowed = false;
      this.#followWhileWaiting(numAsked + 1);
    };
    // One that always answers with a promise, whatever computes, leaves others their turns.
    const goOn = numAsked < mostAsksInTurn ? ask : () => void setImmediate(ask);
    void computed.then(goOn, goOn);
  }

  #resume(): void {
    this.#turn(true);
    this.#queuedSinceMs = this.#readings.queuedMs();
  }

  #rest(): void {
    this.#turn(false);
    if (this.#queuedSinceMs !== undefined)
      this.#queuedMs += Math.max(0, (this.#readings.queuedMs() ?? 0) - this.#queuedSinceMs);
  }

  #turn(isBusy: boolean): void {
    const nowMs = this.#readings.now();
    if (this.#isBusy) this.#busyMs += nowMs - this.#sinceMs;
    else this.#idleMs += nowMs - this.#sinceMs;
    this.#isBusy = isBusy;
    this.#sinceMs = nowMs;
  }

  /** CM2, CM3 */
  #handOver(channel: string, items: number, inFlight: number | undefined): void {
    if (items > 0) this.#batchChannel ??= channel;
    if (channel !== this.#batchChannel) return;
    if (inFlight !== undefined && this.#batch && items > 0) {
      this.#batch.items += items;
      return;
    }
    this.#closeBatch();
    if (items > 0) this.#batch = { items, fromMs: this.#busyNowMs(), inFlight };
  }

  #closeBatch(): void {
    const batch = this.#batch;
    if (!batch) return;
    this.#batch = undefined;
    const { items, inFlight = items } = batch;
    const itemMs = (this.#busyNowMs() - batch.fromMs) / items;
    const atOnce = Math.min(items, inFlight);
    this.#count(atOnce, Math.floor(items / atOnce), itemMs);
    if (items % atOnce > 0) this.#count(items % atOnce, 1, itemMs);
  }

  #count(items: number, times: number, itemMs: number): void {
    const found = this.#batches.get(items) ?? { channel: this.#batchChannel as string, items, times: 0, busyMs: 0 };
    found.times += times;
    found.busyMs += times * items * itemMs;
    this.#batches.set(items, found);
  }

  #busyNowMs(): number {
    return this.#busyMs + (this.#isBusy ? this.#readings.now() - this.#sinceMs : 0);
  }

  #idleNowMs(): number {
    return this.#idleMs + (this.#isBusy ? 0 : this.#readings.now() - this.#sinceMs);
  }
}

const nothingSampled: SequenceSums = { count: 0, promptTokens: 0, logResponse: [0, 0], longestResponse: 0 };

/** Longer waits are for something. */
function askMs(waits: readonly number[]): { askMs: number } | undefined {
  // One by one: a call may wait more often than a function takes arguments.
  const least = waits.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
  return waits.length > 0 ? { askMs: median(waits.filter((ms) => ms <= 2 * least)) } : undefined;
}

/** Bytes of each item, wherever they are kept. */
function sizesOf({ lengths, kept }: ItemBlock): number[] {
  const sizes = Array.from(lengths);
  for (const { index, sizeBytes } of kept ?? []) sizes[index] = sizeBytes;
  return sizes;
}
