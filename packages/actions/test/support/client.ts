import { Readable, type Writable } from "node:stream";
import * as grpc from "@grpc/grpc-js";
import { serviceDefinition } from "../../src/grpc/service-definition.ts";

type Event = {
  event: string;
  queued?: { action: string };
  started?: { allocation: Record<string, number>; cores: number[]; why: string; host: string };
  output?: { stdout: Buffer };
  finished?: Record<string, number | string>;
};
type Reply = Record<string, unknown>;

const Client = grpc.makeClientConstructor(serviceDefinition(), "Actions");

/** What a command printed. */
export const outputOf = ({ events }: { readonly events: readonly Event[] }): string =>
  Buffer.concat(events.flatMap(({ output }) => (output === undefined ? [] : [output.stdout]))).toString();

/** A client in another language would be made from the same file. */
export function connectActions(
  address: string,
  credentials: grpc.ChannelCredentials = grpc.credentials.createInsecure(),
  token?: string,
) {
  const client = new Client(address, credentials);
  const metadata = new grpc.Metadata();
  if (token !== undefined) metadata.set("authorization", `Bearer ${token}`);
  const call = (method: string, message: object): Promise<Reply> =>
    new Promise((resolve, reject) => {
      (client[method] as (m: object, md: grpc.Metadata, cb: (e: Error | null, r: Reply) => void) => void).call(
        client,
        message,
        metadata,
        (error, reply) => (error === null ? resolve(reply) : reject(error)),
      );
    });
  type LeaseEvent = { event: string; granted?: { allocation: Record<string, number>; url: string; why: string } };
  const acquire = (message: object) => {
    const stream = (client.Acquire as (m: object, md: grpc.Metadata) => grpc.ClientReadableStream<LeaseEvent>).call(
      client,
      { kind: "call", ...message },
      metadata,
    );
    let granted: (event: LeaseEvent["granted"]) => void = () => {};
    const grant = new Promise<LeaseEvent["granted"]>((resolve) => {
      granted = resolve;
    });
    const ended = new Promise<grpc.ServiceError | undefined>((resolve) => {
      stream.on("data", (event: LeaseEvent) => {
        if (event.event === "granted") granted(event.granted);
      });
      stream.on("end", () => resolve(undefined));
      stream.on("error", (error: grpc.ServiceError) => resolve(error));
    });
    return { stream, grant, ended };
  };
  type Sending = grpc.ClientWritableStream<object>;
  /** `pieces` follow one another as fast as the server takes them. */
  const upload = (
    message: object,
    pieces: Iterable<Uint8Array> | AsyncIterable<Uint8Array>,
  ): { stream: Sending; reply: Promise<Reply> } => {
    let stream!: Sending;
    const reply = new Promise<Reply>((resolve, reject) => {
      stream = (client.Upload as (md: grpc.Metadata, cb: (e: Error | null, r: Reply) => void) => Sending).call(
        client,
        metadata,
        (error, answer) => (error === null ? resolve(answer) : reject(error)),
      );
    });
    stream.on("error", () => {});
    stream.write({ ...message, data: Buffer.alloc(0) });
    const messages = async function* () {
      for await (const data of pieces) yield { data };
    };
    Readable.from(messages()).pipe(stream as Writable);
    return { stream, reply };
  };
  const download = (message: object) =>
    (client.Download as (m: object, md: grpc.Metadata) => grpc.ClientReadableStream<{ data: Buffer }>).call(
      client,
      message,
      metadata,
    );
  const downloaded = async (message: object): Promise<Buffer> => {
    const pieces: Buffer[] = [];
    for await (const { data } of download(message)) pieces.push(data);
    return Buffer.concat(pieces);
  };
  const submit = (message: object, options: grpc.CallOptions = {}) => {
    const stream = (
      client.Submit as (m: object, md: grpc.Metadata, o: grpc.CallOptions) => grpc.ClientReadableStream<Event>
    ).call(client, { kind: "tool", cost: { cpu: { fixed: 1 } }, ...message }, metadata, options);
    const events: Event[] = [];
    const ended = new Promise<grpc.ServiceError | undefined>((resolve) => {
      stream.on("data", (event: Event) => events.push(event));
      stream.on("end", () => resolve(undefined));
      stream.on("error", (error: grpc.ServiceError) => resolve(error));
    });
    const until = async (kind: string): Promise<void> => {
      while (!events.some((e) => e.event === kind)) await new Promise((resolve) => setTimeout(resolve, 10));
    };
    return { stream, events, ended, until };
  };
  return { call, submit, acquire, upload, download, downloaded, close: () => client.close() };
}
