/** The calls of `protos/engines/v1`, with deadlines, and errors as Treadle has them. */
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type * as grpc from "@grpc/grpc-js";
import { type ErrorCode, errorCatalogue, TreadleError } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import type { TorchProcess } from "./torch-process.ts";

const protoPath = join(packageFolder(import.meta.url), "protos/engines/v1/engine.proto");

const chunkBytes = 2 ** 20;
/** within which the end of a process is known after its socket has closed */
const endingMs = 2_000;

export type Turn = { readonly epoch: string; readonly sequence: number };

type Reply = { readonly on: grpc.ClientReadableStream<Message>["on"] };
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

export class TorchClient {
  readonly #client: grpc.Client;
  readonly #metadata: grpc.Metadata;
  readonly #status: typeof grpc.status;
  readonly #process: TorchProcess;
  readonly #timeoutMs: number;

  private constructor(
    { Metadata, status }: typeof grpc,
    client: grpc.Client,
    process: TorchProcess,
    timeoutMs: number,
  ) {
    this.#client = client;
    this.#metadata = new Metadata();
    this.#metadata.set("authorization", `Bearer ${process.token}`);
    this.#status = status;
    this.#process = process;
    this.#timeoutMs = timeoutMs;
  }

  /** gRPC is imported here: every worker has engines, few have this one. */
  static async create(process: TorchProcess, timeoutMs: number): Promise<TorchClient> {
    const [grpc, { loadSync }] = await Promise.all([import("@grpc/grpc-js"), import("@grpc/proto-loader")]);
    const loaded = loadSync(protoPath, { keepCase: true, longs: Number, defaults: true, oneofs: true });
    const definition = loaded["treadle.engines.v1.Engine"] as unknown as grpc.ServiceDefinition;
    const Client = grpc.makeGenericClientConstructor(definition, "Engine");
    const client = new Client(process.address, grpc.credentials.createInsecure(), {
      "grpc.max_receive_message_length": -1,
      "grpc.keepalive_time_ms": 20_000,
      // A process that is stopped answers no ping; one that is merely slow does, by a thread of its own.
      "grpc.keepalive_timeout_ms": 60_000,
    });
    return new TorchClient(grpc, client, process, timeoutMs);
  }

  unary(method: string, request: Message): Promise<Message> {
    return this.#told(method, (done) => {
      (this.#client as unknown as Methods)[method]!(request, this.#metadata, this.#options(), done);
    });
  }

  /** A header, and then numbers. */
  upload(method: string, header: Message, data: Uint8Array): Promise<Message> {
    return this.#told(method, (done) => {
      const call = (this.#client as unknown as Uploads)[method]!(this.#metadata, this.#options(), done);
      call.on("error", () => {}); // `done` has it, too
      void send(call, header, data);
    });
  }

  async download(method: string, request: Message): Promise<Uint8Array> {
    return this.#collect(
      method,
      (this.#client as unknown as Downloads)[method]!(request, this.#metadata, this.#options()),
    );
  }

  /** Up and down. */
  async exchange(method: string, header: Message, data: Uint8Array): Promise<Uint8Array> {
    const call = (this.#client as unknown as Duplexes)[method]!(this.#metadata, this.#options());
    const result = this.#collect(method, call);
    void send(call, header, data);
    return result;
  }

  generate(): GenerateCall {
    return (this.#client as unknown as Duplexes)["Generate"]!(this.#metadata, {});
  }

  close(): void {
    this.#client.close();
  }

  /** As whoever called is told. The end of the process is the first cause of what its connection says. */
  async failure(method: string, error: grpc.ServiceError): Promise<TreadleError> {
    const [code] = error.metadata?.get("treadle-code") ?? [];
    if (typeof code === "string" && code in errorCatalogue) return new TreadleError(code as ErrorCode, error.details);
    if (error.code === this.#status.UNAVAILABLE || error.code === this.#status.CANCELLED) {
      const ended = await Promise.race([this.#process.ended, delay(endingMs, undefined, { ref: false })]);
      if (ended)
        return new TreadleError("service.failed", `'${method}' has no answer: ${ended.message}`, { cause: ended });
    }
    const late = error.code === this.#status.DEADLINE_EXCEEDED;
    return new TreadleError(
      "service.failed",
      late
        ? `the engine did not answer '${method}' within ${this.#timeoutMs} ms; raise engine.callTimeoutMs, or see whether its process is stopped`
        : `'${method}' failed in the engine's process: ${error.details}`,
      { cause: error },
    );
  }

  async #told(
    method: string,
    call: (done: (error: grpc.ServiceError | null, reply?: Message) => void) => void,
  ): Promise<Message> {
    try {
      return await new Promise<Message>((resolve, reject) => {
        call((error, reply) => (error ? reject(error) : resolve(reply!)));
      });
    } catch (error) {
      throw await this.failure(method, error as grpc.ServiceError);
    }
  }

  async #collect(method: string, call: Reply): Promise<Uint8Array> {
    const parts: Uint8Array[] = [];
    try {
      await new Promise<void>((resolve, reject) => {
        call.on("data", (chunk: Message) => parts.push(chunk["bytes"] as Uint8Array));
        call.on("end", resolve);
        call.on("error", reject);
      });
    } catch (error) {
      throw await this.failure(method, error as grpc.ServiceError);
    }
    return Buffer.concat(parts);
  }

  #options(): grpc.CallOptions {
    return { deadline: Date.now() + this.#timeoutMs };
  }
}

type Sender = Pick<grpc.ClientWritableStream<Message>, "write" | "end" | "once" | "destroyed" | "on" | "off"> &
  NodeJS.EventEmitter;

/** Waits where the other side is slower. */
async function send(call: Sender, header: Message, data: Uint8Array): Promise<void> {
  try {
    await write(call, { header });
    for (let at = 0; at < data.length; at += chunkBytes)
      await write(call, { bytes: data.subarray(at, at + chunkBytes) });
    call.end();
  } catch {
    // The call has failed, and whoever made it is told.
  }
}

export async function write(call: Sender, message: Message): Promise<void> {
  if (!call.write(message)) await once(call, "drain");
}
