/**
 * Both ends of a channel on the side of whoever uses it. Items are parsed and encoded once here, and nowhere else; the home keeps them
 * as opaque bytes, and of large ones only where they are. No await per item: a `put` of many items is one message, a
 * batch is one message.
 */
import {
  type ChannelRef,
  type CommitRequest,
  type Granularity,
  type ItemBlock,
  lowerFirst,
  type PackedItems,
  type PutRequest,
  type TakeReply,
  type TakeRequest,
  TreadleError,
} from "@treadle/contracts";
import {
  decodeItems,
  giveMemory,
  ItemEncoder,
  locateUnsupported,
  type PayloadReader,
  type PayloadStore,
  type PlacedItem,
  releaseArrays,
} from "@treadle/transport";
import type { z } from "zod";
import type { ChannelWait } from "../call/call-meter.ts";
import { WhenAwaited } from "../call/when-awaited.ts";
import type { BatchOptions, InFlight, ItemBatchOptions, Sink, Source, StreamItem } from "./channel.ts";
import type { DistantPayloads, ReadKept } from "./distant-payloads.ts";

/** How a client reaches the home: over the runner's link from a worker, directly within the runner. */
export type HomePort = {
  put(request: PutRequest): Promise<void>;
  take(request: TakeRequest): Promise<TakeReply>;
  /** absent where no call commits: in the workflow itself */
  commit?(request: CommitRequest): Promise<void>;
  /** what is put travels as a copy, so that its memory is free once the put is answered */
  readonly isRemote?: boolean | undefined;
  /** where this process keeps large items; without it all of them travel through the home */
  readonly payloads?: Payloads | undefined;
};

/** Large items of one process: those that it put, and those that it takes. */
export type Payloads = {
  /** absent in a process that keeps nothing, such as a runner without a node */
  readonly store?: PayloadStore | undefined;
  readonly reader?: PayloadReader | undefined;
  /** where processes do not all share memory */
  readonly distant?: DistantPayloads | undefined;
};

export class SinkClient<T> implements Sink<T> {
  readonly name: string;
  readonly #ref: ChannelRef;
  readonly #schema: z.ZodType<T>;
  readonly #port: HomePort;
  readonly #call: () => string;
  readonly #waiting: () => ChannelWait;
  readonly #encoder = new ItemEncoder();
  /** of this turn */
  #commits: Commit<T>[] = [];
  /** the last put whose items had to be copied to another node first */
  #copying: Promise<PackedItems> | undefined;

  constructor(
    ref: ChannelRef,
    schema: z.ZodType<T>,
    port: HomePort,
    call: () => string,
    waiting: () => ChannelWait = unwatched,
  ) {
    this.name = ref.$channel;
    this.#ref = ref;
    this.#schema = schema;
    this.#port = port;
    this.#call = call;
    this.#waiting = waiting;
  }

  put(...items: readonly T[]): Promise<void> {
    if (items.length === 0) return Promise.resolve();
    this.#commitAll(); // what was committed before goes before
    const wait = this.#waiting();
    const sent = this.#send(() => this.#pack(items), wait);
    return new WhenAwaited(sent, () => wait.awaited());
  }

  /**
   * Puts what was made of items of the same call, and says with it that these are done. What is committed in one turn travels as one
   * request: many groups end in one step of an engine.
   */
  commit(request: Omit<CommitRequest, "outputs">, items: readonly T[]): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#commits.length === 0) queueMicrotask(() => this.#commitAll());
      this.#commits.push({ request, items, resolve, reject });
    });
  }

  #commitAll(): void {
    const commits = this.#commits;
    this.#commits = [];
    for (let from = 0; from < commits.length; ) {
      const { channel, call } = (commits[from] as Commit<T>).request;
      const others = commits.findIndex(
        ({ request }, at) => at > from && (request.channel !== channel || request.call !== call),
      );
      const together = commits.slice(from, others < 0 ? undefined : others);
      this.#commitTogether(together);
      from += together.length;
    }
  }

  /** In this turn, so that nothing that comes later goes before (C2). */
  #commitTogether(commits: readonly Commit<T>[]): void {
    const [{ request }] = commits as readonly [Commit<T>];
    const deliveries = commits.flatMap((each) => each.request.deliveries);
    let packed: PackedItems | Promise<PackedItems>;
    try {
      packed = this.#pack(commits.flatMap((each) => each.items));
    } catch (error) {
      const able = this.#failUnable(commits, error);
      if (able.length > 0) this.#commitTogether(able);
      return;
    }
    this.#send(() => packed, this.#waiting(), { ...request, deliveries }).then(
      () => {
        for (const { resolve } of commits) resolve();
      },
      (error) => {
        for (const { reject } of commits) reject(error);
      },
    );
  }

  /** Nothing of them has left: what cannot leave fails its own commit, at once, and no other. Returns fewer than it gets. */
  #failUnable(commits: readonly Commit<T>[], error: unknown): readonly Commit<T>[] {
    const able = commits.length === 1 ? commits : commits.filter((each) => this.#canLeave(each));
    if (able.length < commits.length) return able;
    for (const { reject } of commits) reject(error);
    return [];
  }

  #canLeave({ items, reject }: Commit<T>): boolean {
    try {
      giveMemory(packItems(items, this.#ref, this.#schema, this.#encoder).data);
      return true;
    } catch (error) {
      reject(error);
      return false;
    }
  }

  async #send(
    pack: () => PackedItems | Promise<PackedItems>,
    asked: ChannelWait,
    commit?: Omit<CommitRequest, "outputs">,
  ): Promise<void> {
    using wait = asked;
    const packing = pack();
    const packed = packing instanceof Promise ? await packing : packing;
    if (this.#copying === packing) this.#copying = undefined; // not before: what is packed from now on leaves behind this
    if (commit) await this.#port.commit?.({ ...commit, outputs: { channel: this.name, items: packed } });
    else await this.#port.put({ channel: this.name, call: this.#call(), items: packed });
    wait.moved([packed]);
    if (this.#port.isRemote) giveMemory(packed.data);
  }

  /** At once, except where items go to another node first: then after all puts before, so that their order is kept (C2). */
  #pack(items: readonly T[]): PackedItems | Promise<PackedItems> {
    const { store, distant } = this.#port.payloads ?? {};
    const packed = packItems(items, this.#ref, this.#schema, this.#encoder, store);
    const before = this.#copying;
    if (!distant || (before === undefined && !packed.kept)) return packed;
    this.#copying = this.#copyKept(items, packed, before);
    return this.#copying;
  }

  async #copyKept(
    items: readonly T[],
    packed: PackedItems,
    before: Promise<unknown> | undefined,
  ): Promise<PackedItems> {
    const { store, distant } = this.#port.payloads as Required<Payloads>;
    const copying = packed.kept ? distant?.copy(this.name, packed.kept, store as PayloadStore) : undefined;
    const [copied] = await Promise.allSettled([copying, before]);
    if (copied.status === "rejected") throw copied.reason;
    if (!packed.kept) return packed;
    if (copied.value) return { ...packed, kept: copied.value };
    // No other node can have them: the home keeps them, whoever dies.
    store?.reuse(packed.kept.map(({ segment }) => segment));
    return packItems(items, this.#ref, this.#schema, this.#encoder);
  }
}

export class SourceClient<T> implements Source<T> {
  readonly name: string;
  readonly #ref: ChannelRef;
  readonly #port: HomePort;
  readonly #call: () => string;
  readonly #waiting: (inFlight?: number) => ChannelWait;

  constructor(
    ref: ChannelRef,
    port: HomePort,
    call: () => string,
    waiting: (inFlight?: number) => ChannelWait = unwatched,
  ) {
    this.name = ref.$channel;
    this.#ref = ref;
    this.#port = port;
    this.#call = call;
    this.#waiting = waiting;
  }

  take(options: BatchOptions = {}): Promise<T[] | undefined> {
    const wait = this.#waiting();
    return new WhenAwaited(this.#take(options, wait), () => wait.awaited());
  }

  get granularity(): Granularity {
    return this.#ref.granularity;
  }

  async *items(options: { readonly inFlight?: InFlight | undefined } = {}): AsyncGenerator<StreamItem<T>> {
    for await (const arrived of this.#arriving(options.inFlight ?? this.granularity)) yield* arrived;
  }

  /** What comes at a time. */
  async *#arriving(wanted: InFlight): AsyncGenerator<StreamItem<T>[]> {
    const { granularity } = this;
    const inFlight = wanted === "all" ? undefined : wanted;
    const isPaced = typeof inFlight === "function";
    const atOnce = isPaced ? (granularity === "all" ? undefined : granularity) : inFlight;
    let numOpen = 0;
    let room = newRoom();
    let asked: ChannelWait | undefined;
    const done = () => {
      numOpen--;
      if (numOpen === 0) asked?.awaited();
      room.resolve();
      room = newRoom();
    };
    if (!isPaced && inFlight !== undefined) this.#checkInFlight(inFlight);
    for (;;) {
      while (!isPaced && inFlight !== undefined && numOpen >= inFlight) await room.promise;
      const most = isPaced ? this.#checkInFlight(inFlight()) : inFlight && inFlight - numOpen;
      const deliveries: number[] = [];
      const wait = this.#waiting(atOnce ?? Number.POSITIVE_INFINITY);
      // What is in flight is worked on meanwhile.
      if (numOpen === 0) wait.awaited();
      asked = wait;
      const values = await this.#take(most === undefined ? {} : { items: most }, wait, { deliveries, minItems: 1 });
      if (!values) return; // it is over once the last in flight is done
      asked = undefined;
      numOpen += values.length;
      yield values.map((value, index) => this.#streamItem(value, deliveries[index] as number, done));
    }
  }

  #checkInFlight(inFlight: number): number {
    if (Number.isInteger(inFlight) && inFlight > 0) return inFlight;
    const message = `'${this.name}' was asked for '${inFlight}' items in flight; give a positive integer`;
    throw new TreadleError("workflow.invalid", message);
  }

  async *itemBatches(options: ItemBatchOptions = {}): AsyncGenerator<StreamItem<T>[]> {
    if (options.inFlight !== undefined) {
      yield* this.#arriving(options.inFlight);
      return;
    }
    for (;;) {
      const deliveries: number[] = [];
      const wait = this.#waiting();
      wait.awaited();
      const values = await this.#take(options, wait, { deliveries });
      if (!values) return;
      yield values.map((value, index) => this.#streamItem(value, deliveries[index] as number));
    }
  }

  #streamItem(value: T, delivery: number, done = () => {}): StreamItem<T> {
    let isCommitted = false;
    let isInFlight = true;
    const leave = () => {
      if (isInFlight) done();
      isInFlight = false;
    };
    const commit = async <O>(sink?: Sink<O>, ...outputs: readonly O[]): Promise<void> => {
      if (isCommitted) {
        const message = `an item of '${this.name}' was committed twice; put all that was made of it in one commit`;
        throw new TreadleError("workflow.invalid", message);
      }
      isCommitted = true;
      try {
        const request = { channel: this.name, call: this.#call(), deliveries: [delivery] };
        if (sink && outputs.length > 0) await (sink as SinkClient<O>).commit(request, outputs);
        else await this.#port.commit?.(request);
      } catch (error) {
        isCommitted = false; // refused whole: it may be committed with other outputs
        throw error;
      } finally {
        leave();
      }
    };
    return { value, commit };
  }

  /** With `streamed` the items are committed one by one: it gets their deliveries. */
  async #take(options: BatchOptions, asked: ChannelWait, streamed?: Streamed): Promise<T[] | undefined> {
    using wait = asked;
    this.#checkOptions(options);
    const { asTheyCome = false } = options;
    const planned = this.#ref.granularity === "all" ? undefined : this.#ref.granularity;
    const most = asTheyCome ? Number.MAX_SAFE_INTEGER : (options.items ?? planned);
    const reply = await this.#port.take({
      channel: this.name,
      call: this.#call(),
      acknowledge: !streamed && options.acknowledge !== "call",
      ...(most === undefined ? {} : { maxItems: most }),
      ...(options.gang
        ? { inGang: true }
        : most === undefined
          ? {}
          : { minItems: asTheyCome ? 1 : (streamed?.minItems ?? most) }),
      ...(streamed ? { streams: true } : {}),
      ...(options.weight === undefined ? {} : { maxWeight: options.weight }),
      ...(options.key === undefined ? {} : { key: options.key }),
    });
    if (reply === null) return undefined;
    streamed?.deliveries.push(...(reply.deliveries ?? []));
    const { reader, distant } = this.#port.payloads ?? {};
    const kept = reply.blocks.flatMap((block) => block.kept ?? []);
    const read = distant && kept.length > 0 ? await distant.locate(this.name, kept, reader) : readWith(reader);
    wait.moved(reply.blocks);
    const items = unpackItems<T>(reply, read);
    // Nothing that was decoded with shapes points into its block.
    if (this.#port.isRemote) for (const block of reply.blocks) if (block.shapes) releaseArrays(block.data);
    return items;
  }

  /** A round is dealt by weight alone, and what has come to whoever asks. */
  #checkOptions({ gang, weight, items, asTheyCome, key = this.#ref.key }: BatchOptions): void {
    if (asTheyCome && (gang || items !== undefined)) {
      const other = gang ? "'gang'" : `the items '${items}'`;
      const message = `a take of '${this.name}' has 'asTheyCome' and ${other}; what has come is of any number, and one rank's`;
      throw new TreadleError("workflow.invalid", message);
    }
    if (!gang || (weight === undefined && key === undefined)) return;
    const what = weight === undefined ? `key '${key}'` : `weight '${weight}'`;
    const message = `a take of '${this.name}' has 'gang' and the ${what}; ranks that take together are bounded by 'items', from a channel without a key`;
    throw new TreadleError("workflow.invalid", message);
  }

  async *batches(options: BatchOptions = {}): AsyncGenerator<T[]> {
    for (;;) {
      const batch = await this.take(options);
      if (!batch) return;
      yield batch;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    for await (const batch of this.batches()) yield* batch;
  }
}

/** What waits for the end of its turn. */
type Commit<T> = {
  readonly request: Omit<CommitRequest, "outputs">;
  readonly items: readonly T[];
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
};

type Streamed = { readonly deliveries: number[]; readonly minItems?: number };

/** What those who wait for room wait for. */
function newRoom(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve!: () => void;
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

const unwatched = (): ChannelWait => ({ awaited() {}, moved() {}, [Symbol.dispose]() {} });

/** Parses and encodes what came out; throws `channel.invalid-item` that names the item, the path and what was allowed. */
export function packItems<T>(
  items: readonly T[],
  ref: ChannelRef,
  schema: z.ZodType<T>,
  encoder = new ItemEncoder(),
  store?: PayloadStore,
): PackedItems {
  const checked = items.map((item, i) => parseItem(item, schema, ref.$channel, i));
  const fields = checked as readonly Record<string, unknown>[];
  const { key, weight, priority, $channel } = ref;
  const numbers = (field: string) => Float64Array.from(fields, (item, i) => numberField(item, field, $channel, i));
  const looks = {
    ...(key === undefined ? {} : { keys: fields.map((item) => String(item[key])) }),
    ...(weight === undefined ? {} : { weights: numbers(weight) }),
    ...(priority === undefined ? {} : { priorities: numbers(priority) }),
  };
  // Last, because what it keeps outside of the block is owned by the home from the put on, and lost without one.
  const written = new Set<string>(); // and in no block
  const keep = store && {
    aboveBytes: ref.inlineLimitBytes ?? defaultInlineLimitBytes,
    write: (item: PlacedItem) => {
      const segment = store.write(item);
      if (segment !== undefined) written.add(segment);
      return segment;
    },
  };
  try {
    const block = encoder.encode(checked, keep);
    for (const { segment } of block.kept ?? []) written.delete(segment);
    return { ...(block as ItemBlock), ...looks };
  } catch (error) {
    throw ofItem(locateUnsupported(checked, error), $channel);
  } finally {
    if (written.size > 0) store?.reuse([...written]);
  }
}

/** A value that cannot leave its process, with the item that holds it. */
function ofItem(error: unknown, channel: string): unknown {
  if (!(error instanceof TreadleError) || error.code !== "link.unsupported-value") return error;
  const { what, remedy, path } = error.details;
  if (typeof path !== "string") return error;
  const [index, ...fields] = path.split(".");
  const where = fields.length === 0 ? "" : ` in '${fields.join(".")}'`;
  const text = `item '${index}' put into channel '${channel}' holds ${what}${where}, which cannot leave its process; ${remedy}`;
  return new TreadleError(error.code, text, { details: { ...error.details, channel } });
}

const defaultInlineLimitBytes = 64 * 1024;

function parseItem<T>(item: unknown, schema: z.ZodType<T>, channel: string, index: number): T {
  const parsed = schema.safeParse(item);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map(
    (issue) => `${issue.path.join(".") || "(item)"}: ${lowerFirst(issue.message)}`,
  );
  throw new TreadleError(
    "channel.invalid-item",
    `item '${index}' put into channel '${channel}' does not fit its schema: ${problems.join("; ")}`,
    { details: { channel, index, problems } },
  );
}

function numberField(fields: Record<string, unknown>, field: string, channel: string, index: number): number {
  const value = numberAt(fields, field);
  if (value !== undefined) return value;
  throw new TreadleError(
    "channel.invalid-item",
    `item '${index}' put into channel '${channel}' has '${String(fields[field])}' in '${field}'; a finite number or an array was expected`,
  );
}

/** A number, an array's length, or, behind the name of an array of objects, the sum over these. */
function numberAt(fields: Record<string, unknown>, field: string): number | undefined {
  const dot = field.indexOf(".");
  const value = fields[dot < 0 ? field : field.slice(0, dot)];
  if (dot < 0) {
    if (typeof value === "number" && Number.isFinite(value)) return value;
    return Array.isArray(value) || (ArrayBuffer.isView(value) && "length" in value) ? Number(value.length) : undefined;
  }
  if (!Array.isArray(value)) return undefined;
  let sum = 0;
  for (const each of value) {
    const part = numberAt(each as Record<string, unknown>, field.slice(dot + 1));
    if (part === undefined) return undefined;
    sum += part;
  }
  return sum;
}

/** Of a process that shares memory with those that keep items. */
export function readWith(reader: PayloadReader | undefined): ReadKept | undefined {
  return reader && (({ segment, sizeBytes }) => reader.read(segment, sizeBytes));
}

export function unpackItems<T>(batch: { readonly blocks: readonly ItemBlock[] }, read?: ReadKept): T[] {
  const { blocks } = batch;
  if (blocks.length === 1) return decodeItems(blocks[0] as ItemBlock, read) as T[];
  return blocks.flatMap((block) => decodeItems(block, read)) as T[];
}
