/** Bytes over a stream of gRPC messages, whose size users commonly choose: 1 MiB. */
import * as grpc from "@grpc/grpc-js";

const chunkBytes = 1024 * 1024;
const bytes = (value: Buffer): Buffer => value;
const put = {
  path: "/bench.Bytes/Put",
  requestStream: true,
  responseStream: true,
  requestSerialize: bytes,
  requestDeserialize: bytes,
  responseSerialize: bytes,
  responseDeserialize: bytes,
} as const;
const limits = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };

/** Copies what comes into `target`; a message of eight bytes says how many are to be acknowledged. */
export async function openGrpcSink(host: string, target: Buffer): Promise<number> {
  const server = new grpc.Server(limits);
  server.addService(
    { put },
    {
      put: (call: grpc.ServerDuplexStream<Buffer, Buffer>) => {
        let left = 0;
        let at = 0;
        call.on("error", () => {});
        call.on("data", (message: Buffer) => {
          if (left === 0) {
            left = Number(message.readBigUInt64LE(0));
            at = 0;
            return;
          }
          message.copy(target, at);
          at += message.length;
          left -= message.length;
          if (left === 0) call.write(Buffer.alloc(1));
        });
        call.on("end", () => call.end());
      },
    },
  );
  return new Promise((resolve, reject) => {
    server.bindAsync(`${host}:0`, grpc.ServerCredentials.createInsecure(), (error, port) =>
      error ? reject(error) : resolve(port),
    );
  });
}

export type Sender = { send(data: Buffer): Promise<void>; close(): void };

export function openGrpcSender(address: string): Sender {
  const client = new grpc.Client(address, grpc.credentials.createInsecure(), limits);
  const call = client.makeBidiStreamRequest(put.path, bytes, bytes);
  call.on("error", () => {});
  return {
    async send(data) {
      const acknowledged = new Promise((resolve) => call.once("data", resolve));
      const head = Buffer.alloc(8);
      head.writeBigUInt64LE(BigInt(data.length));
      call.write(head);
      for (let at = 0; at < data.length; at += chunkBytes) {
        const isRoom = call.write(data.subarray(at, at + chunkBytes));
        if (!isRoom) await new Promise((resolve) => call.once("drain", resolve));
      }
      await acknowledged;
    },
    close() {
      call.cancel();
      client.close();
    },
  };
}
