import * as grpc from "@grpc/grpc-js";
import { serviceDefinition } from "../../src/grpc/service-definition.ts";

type Event = {
  event: string;
  queued?: { action: string };
  started?: { allocation: Record<string, number>; cores: number[]; why: string };
  output?: { stdout: Buffer };
  finished?: Record<string, number | string>;
};
type Reply = Record<string, unknown>;

const Client = grpc.makeClientConstructor(serviceDefinition(), "Actions");

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
  return { call, submit, acquire, close: () => client.close() };
}
