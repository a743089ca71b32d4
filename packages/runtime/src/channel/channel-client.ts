/**
 * Both ends of a channel on the side of whoever uses it. Items are validated and encoded once here; the home keeps them
 * as opaque bytes. No await per item: a `put` of many items is one message, a batch is one message.
 */
import {
  type ChannelRef,
  type PackedItems,
  type PutRequest,
  TakeReply,
  type TakeRequest,
  TreadleError,
} from "@treadle/contracts";
import { decodeItem, encodeItem } from "@treadle/transport";
import type { z } from "zod";
import type { BatchOptions, Sink, Source } from "./channel.ts";

/** How a client reaches the home: over the runner's link from a worker, directly within the runner. */
export type HomePort = {
  put(request: z.infer<typeof PutRequest>): Promise<unknown>;
  take(request: z.infer<typeof TakeRequest>): Promise<unknown>;
};

export class SinkClient<T> implements Sink<T> {
  readonly name: string;
  readonly #ref: ChannelRef;
  readonly #schema: z.ZodType<T> | undefined;
  readonly #port: HomePort;
  readonly #call: () => string;

  constructor(ref: ChannelRef, schema: z.ZodType<T> | undefined, port: HomePort, call: () => string) {
    this.name = ref.$channel;
    this.#ref = ref;
    this.#schema = schema;
    this.#port = port;
    this.#call = call;
  }

  async put(...items: readonly T[]): Promise<void> {
    if (items.length === 0) return;
    const packed = packItems(items, this.#ref, this.#schema);
    await this.#port.put({ channel: this.name, call: this.#call(), items: packed });
  }
}

export class SourceClient<T> implements Source<T> {
  readonly name: string;
  readonly #ref: ChannelRef;
  readonly #port: HomePort;
  readonly #call: () => string;
  readonly #waiting: () => Disposable;

  constructor(ref: ChannelRef, port: HomePort, call: () => string, waiting: () => Disposable) {
    this.name = ref.$channel;
    this.#ref = ref;
    this.#port = port;
    this.#call = call;
    this.#waiting = waiting;
  }

  async take(options: BatchOptions = {}): Promise<T[] | undefined> {
    const items = options.items ?? (this.#ref.granularity === "all" ? undefined : this.#ref.granularity);
    using _ = this.#waiting();
    const reply = TakeReply.parse(
      await this.#port.take({
        channel: this.name,
        call: this.#call(),
        acknowledge: options.acknowledge !== "call",
        ...(items === undefined ? {} : { maxItems: items, minItems: items }),
        ...(options.weight === undefined ? {} : { maxWeight: options.weight }),
      }),
    );
    return reply === null ? undefined : unpackItems<T>(reply);
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

/** Validates and encodes; throws `channel.invalid-item` that names the item, the path and what was allowed. */
export function packItems<T>(items: readonly T[], ref: ChannelRef, schema: z.ZodType<T> | undefined): PackedItems {
  const encodings = new Array<Uint8Array>(items.length);
  const lengths = new Uint32Array(items.length);
  const keys = ref.key === undefined ? undefined : new Array<string>(items.length);
  const weights = ref.weight === undefined ? undefined : new Float64Array(items.length);
  const priorities = ref.priority === undefined ? undefined : new Float64Array(items.length);
  let sizeBytes = 0;
  for (let i = 0; i < items.length; i++) {
    const item = schema ? validateItem(items[i], schema, ref.$channel, i) : (items[i] as T);
    const encoding = encodeItem(item);
    encodings[i] = encoding;
    lengths[i] = encoding.byteLength;
    sizeBytes += encoding.byteLength;
    const fields = item as Record<string, unknown>;
    if (keys) keys[i] = String(fields[ref.key as string]);
    if (weights) weights[i] = numberField(fields, ref.weight as string, ref.$channel, i);
    if (priorities) priorities[i] = numberField(fields, ref.priority as string, ref.$channel, i);
  }
  const data = new Uint8Array(sizeBytes);
  let offset = 0;
  for (const encoding of encodings) {
    data.set(encoding, offset);
    offset += encoding.byteLength;
  }
  return {
    data,
    lengths,
    ...(keys ? { keys } : {}),
    ...(weights ? { weights } : {}),
    ...(priorities ? { priorities } : {}),
  };
}

export function validateItem<T>(item: unknown, schema: z.ZodType<T>, channel: string, index: number): T {
  const parsed = schema.safeParse(item);
  if (parsed.success) return parsed.data;
  const issues = parsed.error.issues.map(
    (issue) => `${issue.path.join(".") || "(item)"}: ${issue.message.toLowerCase()}`,
  );
  throw new TreadleError(
    "channel.invalid-item",
    `item '${index}' put into channel '${channel}' does not fit its schema: ${issues.join("; ")}`,
    { details: { channel, index, issues } },
  );
}

function numberField(fields: Record<string, unknown>, field: string, channel: string, index: number): number {
  const value = fields[field];
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new TreadleError(
    "channel.invalid-item",
    `item '${index}' put into channel '${channel}' has '${String(value)}' in '${field}'; a finite number was expected`,
  );
}

export function unpackItems<T>(packed: { data: Uint8Array; lengths: Uint32Array }): T[] {
  const items = new Array<T>(packed.lengths.length);
  let offset = 0;
  for (let i = 0; i < items.length; i++) {
    const end = offset + (packed.lengths[i] as number);
    items[i] = decodeItem(packed.data.subarray(offset, end)) as T;
    offset = end;
  }
  return items;
}
