/** A channel as the workflow holds it: its two ends to hand out, and put and take from the workflow itself. */
import type { ChannelRef } from "@treadle/contracts";
import type { z } from "zod";
import type { BatchOptions, Channel, Sink, Source } from "../../author/channel/channel.ts";
import { SinkClient, SourceClient } from "../../author/channel/channel-client.ts";
import type { ChannelDesk } from "./channel-desk.ts";

/** One end of a channel, to be passed to a worker's method. It works only there. */
export class ChannelEndpoint {
  readonly name: string;
  readonly #reference: () => ChannelRef;

  constructor(name: string, reference: () => ChannelRef) {
    this.name = name;
    this.#reference = reference;
  }

  reference(): ChannelRef {
    return this.#reference();
  }
}

export class RunnerChannel<T> implements Channel<T> {
  readonly name: string;
  readonly source: Source<T>;
  readonly sink: Sink<T>;
  readonly #schema: z.ZodType<T>;
  readonly #desk: ChannelDesk;
  readonly #reference: (role: "source" | "sink") => ChannelRef;
  readonly #stream: () => string;
  #numCalls = 0;

  constructor(
    name: string,
    schema: z.ZodType<T>,
    desk: ChannelDesk,
    reference: (role: "source" | "sink") => ChannelRef,
    stream: () => string,
  ) {
    this.name = name;
    this.#schema = schema;
    this.#desk = desk;
    this.#reference = reference;
    this.#stream = stream;
    // In the worker that receives an end there stands a client of that type in its place.
    this.source = new ChannelEndpoint(name, () => reference("source")) as unknown as Source<T>;
    this.sink = new ChannelEndpoint(name, () => reference("sink")) as unknown as Sink<T>;
  }

  /** A producer that ends with the put: consumers of the same step need not wait for the workflow. */
  async put(...items: readonly T[]): Promise<void> {
    const call = this.#open("sink");
    try {
      await new SinkClient(this.#reference("sink"), this.#schema, this.#desk, () => call).put(...items);
    } finally {
      this.#desk.close(call);
    }
  }

  async take(options: BatchOptions = {}): Promise<T[] | undefined> {
    for await (const batch of this.batches(options)) return batch;
    return undefined;
  }

  async *batches(options: BatchOptions = {}): AsyncGenerator<T[]> {
    const call = this.#open("source");
    const client = new SourceClient<T>(this.#reference("source"), this.#desk, () => call);
    try {
      yield* client.batches(options);
    } finally {
      this.#desk.close(call);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    for await (const batch of this.batches()) yield* batch;
  }

  #open(role: "source" | "sink"): string {
    const call = `runner:${this.name}:${++this.#numCalls}`;
    this.#desk.open(call, this.name, role, this.#stream());
    return call;
  }
}
