/**
 * The tracer of one process.
 *
 * Owner: one worker (or the runner); nothing here is shared between processes. Crossing the boundary: `drain()` only.
 *
 * TC1 off costs next to nothing: `span()` hands back one shared, inert span, and nothing is allocated or timed.
 * TC2 memory is bounded: at most `capacity` records wait; the oldest give way and are counted in `dropped`.
 * TC3 tracing never throws into the code that it watches, and an ended span ignores further calls.
 * TC4 times of different processes of one host are comparable: each is the process's wall-clock origin plus a
 *    monotonic reading, so they neither jump nor run backwards within a process.
 */
import { randomBytes } from "node:crypto";
import type { Attributes, SpanBatch, SpanCategory, TraceRecord } from "@treadle/contracts";

export type SpanOptions = {
  readonly attributes?: Attributes | undefined;
  /** overrides the tracer's current step */
  readonly step?: number | undefined;
  /** overrides the tracer's devices */
  readonly devices?: readonly string[] | undefined;
  /** the same id on `flowOut` of one span and `flowIn` of another, in any process, draws an arrow between them */
  readonly flowOut?: string | undefined;
  readonly flowIn?: string | undefined;
  /** the id of the span that this one is part of; default: what the tracer's `parent` says */
  readonly parent?: string | undefined;
};

/** A stretch of time under way. `using _ = tracer.span(…)` ends it with its scope, however the scope is left. */
export interface Span extends Disposable {
  /** Absent without `spanIds`. */
  readonly id: string | undefined;
  /** Adds to the span's attributes; has no effect once the span has ended. */
  set(attributes: Attributes): void;
  /** Ends the span. Only the first call counts. */
  end(attributes?: Attributes): void;
}

/** A span that has begun and not ended: what the process is doing, or waiting for, right now. */
export type OpenSpan = { readonly name: string; readonly category: SpanCategory; readonly startMs: number };

export interface Tracer {
  readonly enabled: boolean;
  /** The step that spans begun from now on belong to. */
  setStep(step: number | undefined): void;
  /** The devices that spans begun from now on occupy, unless they name others. */
  setDevices(devices: readonly string[]): void;
  span(name: string, category: SpanCategory, options?: SpanOptions): Span;
  /** Records a span that was timed elsewhere; times as `now()` gives them. */
  complete(name: string, category: SpanCategory, startMs: number, endMs: number, options?: SpanOptions): void;
  instant(name: string, category: SpanCategory, options?: SpanOptions): void;
  /** A number is a series called like the counter. */
  counter(name: string, values: number | Readonly<Record<string, number>>): void;
  /** Milliseconds since the Unix epoch, monotonic within the process. */
  now(): number;
  /** Takes every finished record, oldest first, and empties the buffer. */
  drain(): SpanBatch;
  /** Longest first. */
  open(): OpenSpan[];
}

export type TracerOptions = {
  /** `rollout/0`, `runner` */
  readonly worker: string;
  readonly enabled?: boolean | undefined;
  readonly devices?: readonly string[] | undefined;
  /** gives every span an id that no other process has, for export */
  readonly spanIds?: boolean | undefined;
  /** the id of the span that a span begun now is part of */
  readonly parent?: (() => string | undefined) | undefined;
  /** records kept between two drains; default 16384 */
  readonly capacity?: number | undefined;
  readonly now?: (() => number) | undefined;
  readonly pid?: number | undefined;
};

const origin = performance.timeOrigin;

/** TC4: the time that every span uses. */
export function traceNow(): number {
  return origin + performance.now();
}

export const inertSpan: Span = { id: undefined, set() {}, end() {}, [Symbol.dispose]() {} };

/** TC1: for processes that are not traced. */
class InertTracer implements Tracer {
  readonly enabled = false;
  readonly #batch: SpanBatch;

  constructor(worker: string, pid: number) {
    this.#batch = { worker, pid, dropped: 0, records: [] };
  }

  setStep(): void {}
  setDevices(): void {}
  span(): Span {
    return inertSpan;
  }
  complete(): void {}
  instant(): void {}
  counter(): void {}
  now(): number {
    return traceNow();
  }
  drain(): SpanBatch {
    return { ...this.#batch, records: [] };
  }
  open(): OpenSpan[] {
    return [];
  }
}

type SpanIdentity = { readonly id: string; readonly parent: string | undefined };

class RingTracer implements Tracer {
  readonly enabled = true;
  readonly now: () => number;
  readonly openSpans = new Set<RingSpan>();
  readonly #worker: string;
  readonly #pid: number;
  readonly #capacity: number;
  readonly #idPrefix: string | undefined;
  readonly #parent: () => string | undefined;
  #numIds = 0;
  #ring: TraceRecord[] = [];
  /** where the oldest record is once the ring has filled up; 0 until then */
  #oldest = 0;
  #dropped = 0;
  #step: number | undefined;
  #devices: string[] | undefined;

  constructor(options: TracerOptions, pid: number) {
    this.#worker = options.worker;
    this.#pid = pid;
    this.#capacity = Math.max(1, options.capacity ?? 16_384);
    this.#idPrefix = options.spanIds === true ? randomBytes(4).toString("hex") : undefined;
    this.#parent = options.parent ?? (() => undefined);
    this.now = options.now ?? traceNow;
    this.setDevices(options.devices ?? []);
  }

  setStep(step: number | undefined): void {
    this.#step = step;
  }

  setDevices(devices: readonly string[]): void {
    this.#devices = devices.length === 0 ? undefined : [...devices];
  }

  span(name: string, category: SpanCategory, options?: SpanOptions): Span {
    const step = options?.step ?? this.#step;
    const identity = this.#identify(options);
    const span = new RingSpan(this, name, category, options, step, this.#devices, identity, this.now());
    this.openSpans.add(span);
    return span;
  }

  complete(name: string, category: SpanCategory, startMs: number, endMs: number, options?: SpanOptions): void {
    const step = options?.step ?? this.#step;
    const identity = this.#identify(options);
    this.record(name, category, startMs, endMs, options, step, this.#devices, identity, options?.attributes);
  }

  instant(name: string, category: SpanCategory, options?: SpanOptions): void {
    this.#push({
      kind: "instant",
      name,
      category,
      startMs: this.now(),
      step: options?.step ?? this.#step,
      devices: options?.devices ? [...options.devices] : this.#devices,
      parent: this.#idPrefix === undefined ? undefined : (options?.parent ?? this.#parent()),
      attributes: options?.attributes,
    });
  }

  counter(name: string, values: number | Readonly<Record<string, number>>): void {
    this.#push({
      kind: "counter",
      name,
      startMs: this.now(),
      values: typeof values === "number" ? { [name]: values } : { ...values },
    });
  }

  drain(): SpanBatch {
    const ring = this.#ring;
    const records = this.#oldest === 0 ? ring : [...ring.slice(this.#oldest), ...ring.slice(0, this.#oldest)];
    const batch = { worker: this.#worker, pid: this.#pid, dropped: this.#dropped, records };
    this.#ring = [];
    this.#oldest = 0;
    this.#dropped = 0;
    return batch;
  }

  open(): OpenSpan[] {
    const spans = [...this.openSpans].map(({ name, category, startMs }) => ({ name, category, startMs }));
    return spans.sort((a, b) => a.startMs - b.startMs);
  }

  record(
    name: string,
    category: SpanCategory,
    startMs: number,
    endMs: number,
    options: SpanOptions | undefined,
    step: number | undefined,
    devices: string[] | undefined,
    identity: SpanIdentity | undefined,
    attributes: Attributes | undefined,
  ): void {
    this.#push({
      kind: "span",
      name,
      category,
      startMs,
      durationMs: endMs > startMs ? endMs - startMs : 0,
      step,
      devices: options?.devices ? [...options.devices] : devices,
      flowOut: options?.flowOut,
      flowIn: options?.flowIn,
      id: identity?.id,
      parent: identity?.parent,
      attributes,
    });
  }

  #identify(options: SpanOptions | undefined): SpanIdentity | undefined {
    if (this.#idPrefix === undefined) return undefined;
    const number = (++this.#numIds >>> 0).toString(16).padStart(8, "0");
    return { id: this.#idPrefix + number, parent: options?.parent ?? this.#parent() };
  }

  #push(record: TraceRecord): void {
    if (this.#ring.length < this.#capacity) {
      this.#ring.push(record);
      return;
    }
    this.#ring[this.#oldest] = record; // TC2
    this.#oldest = this.#oldest + 1 === this.#capacity ? 0 : this.#oldest + 1;
    this.#dropped++;
  }
}

class RingSpan implements Span {
  readonly name: string;
  readonly category: SpanCategory;
  readonly startMs: number;
  readonly #options: SpanOptions | undefined;
  readonly #step: number | undefined;
  readonly #devices: string[] | undefined;
  readonly #identity: SpanIdentity | undefined;
  #tracer: RingTracer | undefined;
  #attributes: Attributes | undefined;

  constructor(
    tracer: RingTracer,
    name: string,
    category: SpanCategory,
    options: SpanOptions | undefined,
    step: number | undefined,
    devices: string[] | undefined,
    identity: SpanIdentity | undefined,
    startMs: number,
  ) {
    this.#tracer = tracer;
    this.name = name;
    this.category = category;
    this.startMs = startMs;
    this.#options = options;
    this.#step = step;
    this.#devices = devices;
    this.#identity = identity;
    this.#attributes = options?.attributes;
  }

  get id(): string | undefined {
    return this.#identity?.id;
  }

  set(attributes: Attributes): void {
    if (this.#tracer) this.#attributes = { ...this.#attributes, ...attributes };
  }

  end(attributes?: Attributes): void {
    const tracer = this.#tracer;
    if (tracer === undefined) return; // TC3
    if (attributes) this.set(attributes);
    this.#tracer = undefined;
    tracer.openSpans.delete(this);
    const { name, category, startMs } = this;
    const options = this.#options;
    tracer.record(
      name,
      category,
      startMs,
      tracer.now(),
      options,
      this.#step,
      this.#devices,
      this.#identity,
      this.#attributes,
    );
  }

  [Symbol.dispose](): void {
    this.end();
  }
}

/** A tracer that records, or with `enabled: false` an inert one; call sites need not know which. */
export function createTracer(options: TracerOptions): Tracer {
  const pid = options.pid ?? process.pid;
  return options.enabled === false ? new InertTracer(options.worker, pid) : new RingTracer(options, pid);
}
