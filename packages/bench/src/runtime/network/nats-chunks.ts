/** Bytes over NATS: messages of at most the server's limit, so many under way at once, acknowledged as a whole. */
import { connect } from "@nats-io/transport-node";
import type { Sender } from "./grpc-stream.ts";

/** NATS takes messages of up to 1 MiB unless configured otherwise. */
const chunkBytes = 512 * 1024;
/** More would pile up at the server until it cuts the receiver off. */
const chunksUnderWay = 16;

/** Copies what comes into `target`; every chunk is answered, which is what holds the sender back. */
export async function openNatsSink(server: string, target: Buffer): Promise<void> {
  const connection = await connect({ servers: server });
  connection.subscribe("bench.chunk.*", {
    callback: (error, message) => {
      if (error) return;
      target.set(message.data, Number(message.subject.slice("bench.chunk.".length)));
      message.respond();
    },
  });
  await connection.flush();
}

export async function openNatsSender(server: string): Promise<Sender> {
  const connection = await connect({ servers: server });
  return {
    async send(data) {
      let next = 0;
      const lane = async () => {
        while (next < data.length) {
          const at = next;
          next += chunkBytes;
          await connection.request(`bench.chunk.${at}`, data.subarray(at, at + chunkBytes), { timeout: 30_000 });
        }
      };
      await Promise.all(Array.from({ length: chunksUnderWay }, lane));
    },
    close: () => void connection.close(),
  };
}
