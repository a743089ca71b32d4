/** The calls of `protos/engines/v1`, with deadlines, and errors as Treadle has them. */
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type * as grpc from "@grpc/grpc-js";
import { type ErrorCode, errorCatalogue, TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import { type Pieces, piecesOf } from "../pieces.ts";
import type { TorchConfig } from "./torch-config.ts";
import { Watch } from "./watch.ts";

const protoPath = join(packageFolder(import.meta.url), "protos/engines/v1/engine.proto");

const chunkBytes = 2 ** 20;
/** within which the end of a process is known after its socket has closed */
const endingMs = 2_000;

/** The process that answers, as a client of it knows it. */
export type TorchPeer = {
  readonly address: string;
  readonly token: string;
  /** as which this engine has attached to another's process; absent where the process is its own */
  readonly client?: string;
  /** resolves when it can be called no more */
  readonly ended: Promise<TreadleError>;
  /** ends it, or what this engine has of another's, with the reason */
  end(why: string): unknown;
};

export type Turn = { readonly epoch: string; readonly sequence: number };

export type Message = { readonly [field: string]: unknown };
export type GenerateCall = grpc.ClientDuplexStream<Message, Message>;

type Methods = {
  [unary: string]: (
    request: Message,
    metadata: grpc.Metadata,
    options: grpc.CallOptions,
    done: (error: grpc.ServiceError | null, reply?: Message) => void,
  ) => grpc.ClientUnaryCall;
};
type Uploads = {
  [upload: string]: (
    metadata: grpc.Metadata,
    options: grpc.CallOptions,
    done: (error: grpc.ServiceError | null, reply?: Message) => void,
  ) => grpc.ClientWritableStream<Message>;
};
type Downloads = {
  [download: string]: (
    request: Message,
    metadata: grpc.Metadata,
    options: grpc.CallOptions,
  ) => grpc.ClientReadableStream<Message>;
};
type Duplexes = { [duplex: string]: (metadata: grpc.Metadata, options: grpc.CallOptions) => GenerateCall };

/** Bytes a second, below which a file takes too long. */
const slowestDisk = 8e6;

export class TorchClient {
  readonly #client: grpc.Client;
  readonly #metadata: grpc.Metadata;
  readonly #status: typeof grpc.status;
  readonly #process: TorchPeer;
  readonly #timeoutMs: number;
  readonly #watch: Watch;
  #unwatch = () => {};

  private constructor(
    { Metadata, status }: typeof grpc,
    client: grpc.Client,
    process: TorchPeer,
    timeoutMs: number,
    silenceMs: number,
  ) {
    this.#client = client;
    this.#metadata = new Metadata();
    this.#metadata.set("authorization", `Bearer ${process.token}`);
    if (process.client !== undefined) this.#metadata.set("treadle-client", process.client);
    this.#status = status;
    this.#process = process;
    this.#timeoutMs = timeoutMs;
    this.#watch = new Watch({
      ask: (answerMs) => this.#isAlive(answerMs),
      silenceMs,
      frozen: () =>
        void process.end(
          `it answered no health check for ${silenceMs} ms, so it is stopped or frozen; see what has stopped it, or raise engine.healthTimeoutMs`,
        ),
    });
  }

  /** gRPC is imported here: every worker has engines, few have this one. */
  static async create(
    process: TorchPeer,
    { callTimeoutMs, healthTimeoutMs }: Pick<TorchConfig, "callTimeoutMs" | "healthTimeoutMs">,
  ): Promise<TorchClient> {
    const [grpc, { loadSync }] = await Promise.all([import("@grpc/grpc-js"), import("@grpc/proto-loader")]);
    const loaded = loadSync(protoPath, { keepCase: true, longs: Number, defaults: true, oneofs: true });
    const definition = loaded["treadle.engines.v1.Engine"] as unknown as grpc.ServiceDefinition;
    const Client = grpc.makeGenericClientConstructor(definition, "Engine");
    const client = new Client(process.address, grpc.credentials.createInsecure(), {
      "grpc.max_receive_message_length": -1,
    });
    return new TorchClient(grpc, client, process, callTimeoutMs, healthTimeoutMs);
  }

  /** `numBytes`: that it reads or writes before it answers. */
  unary(method: string, request: Message, numBytes = 0): Promise<Message> {
    return this.#told(method, (done) => {
      const options = this.#options((1000 * numBytes) / slowestDisk);
      (this.#client as unknown as Methods)[method]!(request, this.#metadata, options, done);
    });
  }

  /** A header, and then numbers; what their source throws, this throws. */
  async upload(method: string, header: Message, data: Pieces): Promise<Message> {
    const stall = new Stall(this.#timeoutMs);
    const end = this.#watch.begin();
    let call!: ReturnType<Uploads[string]>;
    const told = new Promise<Message>((resolve, reject) => {
      call = (this.#client as unknown as Uploads)[method]!(this.#metadata, {}, (error, reply) =>
        error ? reject(error) : resolve(reply!),
      );
      call.on("error", () => {}); // `told` has it, too
    });
    stall.watch(call);
    const source = await send({ call, header, data, stall, over: settled(told) });
    try {
      const reply = await told;
      if (!source) return reply;
    } catch (error) {
      if (!source) throw await this.failure(method, error as grpc.ServiceError, stall.isOver);
    } finally {
      stall.end();
      end();
    }
    throw source.error;
  }

  /** Pieces as they come: no more than a few are on their way to a reader that takes its time. */
  async *download(method: string, request: Message): AsyncGenerator<Uint8Array> {
    const call = (this.#client as unknown as Downloads)[method]!(request, this.#metadata, {});
    yield* this.#pieces(method, call, new Stall(this.#timeoutMs));
  }

  /** Up and down. */
  async *exchange(method: string, header: Message, data: Uint8Array): AsyncGenerator<Uint8Array> {
    const call = (this.#client as unknown as Duplexes)[method]!(this.#metadata, {});
    const stall = new Stall(this.#timeoutMs);
    const over = new Promise<void>((resolve) => {
      call.once("error", () => resolve()).once("end", resolve);
    });
    void send({ call, header, data: [data], stall, over });
    yield* this.#pieces(method, call, stall);
  }

  /** Answers, and lasts as long as the process and this client do; it is a call that waits (HW1). */
  attach(client: string): grpc.ClientReadableStream<Message> {
    const call = (this.#client as unknown as Downloads)["Attach"]!({ client }, this.#metadata, {});
    const end = this.#watch.begin();
    return call.once("end", end).once("error", end);
  }

  /** Until it is closed, as if a call waited (HW1): others wait for the process, and this client alone can end it. */
  watch(): void {
    this.#unwatch = this.#watch.begin();
  }

  generate(): GenerateCall {
    const call = (this.#client as unknown as Duplexes)["Generate"]!(this.#metadata, {});
    const end = this.#watch.begin();
    return call.once("end", end).once("error", end);
  }

  close(): void {
    this.#unwatch();
    this.#client.close();
  }

  /** As whoever called is told. The end of the process is the first cause of what its connection says. */
  async failure(method: string, error: grpc.ServiceError, hasStalled = false): Promise<TreadleError> {
    const [code] = error.metadata?.get("treadle-code") ?? [];
    if (typeof code === "string" && code in errorCatalogue) return new TreadleError(code as ErrorCode, error.details);
    const late = hasStalled || error.code === this.#status.DEADLINE_EXCEEDED;
    if (late) {
      return new TreadleError(
        "service.failed",
        `the engine did not answer '${method}' within ${this.#timeoutMs} ms; raise engine.callTimeoutMs, or see whether its process is stopped`,
        { cause: error },
      );
    }
    if (error.code === this.#status.UNAVAILABLE || error.code === this.#status.CANCELLED) {
      const ended = await Promise.race([this.#process.ended, delay(endingMs, undefined, { ref: false })]);
      if (ended)
        return new TreadleError("service.failed", `'${method}' has no answer: ${ended.message}`, { cause: ended });
    }
    return new TreadleError("service.failed", `'${method}' failed in the engine's process: ${error.details}`, {
      cause: error,
    });
  }

  async #told(
    method: string,
    call: (done: (error: grpc.ServiceError | null, reply?: Message) => void) => void,
  ): Promise<Message> {
    const end = this.#watch.begin();
    try {
      return await new Promise<Message>((resolve, reject) => {
        call((error, reply) => (error ? reject(error) : resolve(reply!)));
      });
    } catch (error) {
      throw await this.failure(method, error as grpc.ServiceError);
    } finally {
      end();
    }
  }

  /** Also one that is gone: its end is told apart. */
  #isAlive(timeoutMs: number): Promise<boolean> {
    const asked = new Promise<boolean>((resolve) => {
      const options = { deadline: Date.now() + timeoutMs };
      (this.#client as unknown as Methods)["Health"]!({}, this.#metadata, options, (error) =>
        resolve(error?.code !== this.#status.DEADLINE_EXCEEDED),
      );
    });
    return asked.catch(() => true); // a client that is closed asks nothing
  }

  async *#pieces(
    method: string,
    call: grpc.ClientReadableStream<Message> | GenerateCall,
    stall: Stall,
  ): AsyncGenerator<Uint8Array> {
    call.on("error", () => {}); // also after the reader has left
    const end = this.#watch.begin();
    try {
      stall.watch(call);
      for await (const chunk of call as AsyncIterable<Message>) {
        stall.end(); // its reader may take its time
        yield chunk["bytes"] as Uint8Array;
        stall.watch(call);
      }
    } catch (error) {
      throw await this.failure(method, error as grpc.ServiceError, stall.isOver);
    } finally {
      stall.end();
      end();
      call.cancel();
    }
  }

  #options(moreMs = 0): grpc.CallOptions {
    return { deadline: Date.now() + this.#timeoutMs + moreMs };
  }
}

/** Cancels a call in which nothing moves for that long; one that moves may last as its bytes do. */
class Stall {
  isOver = false;
  readonly #afterMs: number;
  #timer: NodeJS.Timeout | undefined;

  constructor(afterMs: number) {
    this.#afterMs = afterMs;
  }

  /** From now on. */
  watch(call: { cancel(): void }): void {
    this.end();
    this.#timer = setTimeout(() => {
      this.isOver = true;
      call.cancel();
    }, this.#afterMs);
  }

  end(): void {
    clearTimeout(this.#timer);
  }
}

type Sender = Pick<grpc.ClientWritableStream<Message>, "write" | "end" | "once" | "destroyed" | "on" | "off"> &
  NodeJS.EventEmitter;

type Sending = {
  readonly call: Sender & { cancel(): void };
  readonly header: Message;
  readonly data: Pieces;
  readonly stall: Stall;
  /** resolves when the call has ended: nobody reads any more */
  readonly over: Promise<void>;
};

/** Waits where the other side is slower. Resolves with what the source of the data threw; then the call is cancelled. */
async function send({ call, header, data, stall, over }: Sending): Promise<{ readonly error: unknown } | undefined> {
  let isOver = false;
  const ended = over.then(() => {
    isOver = true;
  });
  const put = async (message: Message) => {
    await Promise.race([write(call, message).catch(() => {}), ended]);
    if (!isOver) stall.watch(call);
  };
  try {
    await put({ header });
    for await (const piece of data) {
      for (const bytes of piecesOf(piece, chunkBytes)) {
        if (isOver) return undefined;
        await put({ bytes });
      }
    }
  } catch (error) {
    call.cancel();
    return { error };
  }
  if (!isOver) call.end();
  return undefined;
}

const settled = (call: Promise<unknown>): Promise<void> =>
  call.then(
    () => {},
    () => {},
  );

export async function write(call: Sender, message: Message): Promise<void> {
  if (!call.write(message)) await once(call, "drain");
}
