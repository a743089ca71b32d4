/** The process on the other side of the cable: takes bytes in every way that is compared, and says when it has them. */
import net from "node:net";
import { createPeer, openEndpoint, releaseArrays } from "@treadle/transport";
import { z } from "zod";
import { farWords } from "./far-words.ts";
import { openGrpcSink } from "./grpc-stream.ts";
import { openNatsSink } from "./nats-chunks.ts";

const Boot = z.object({
  host: z.string(),
  runId: z.string(),
  token: z.string(),
  nats: z.string(),
  largestBytes: z.int(),
});
const boot = Boot.parse(JSON.parse(process.argv[2] as string));

/** In memory that is in use already, as by whoever reuses what it has. */
const target = Buffer.alloc(boot.largestBytes);
const one = Buffer.alloc(1);
/** What it sends when it is asked. */
const given = new Float32Array(boot.largestBytes / 4).fill(1);

/** Bare: eight bytes say how many follow, which are copied into place and acknowledged with one; zero of them are echoed. */
const bare = net.createServer({ noDelay: true }, (socket) => {
  let left = 0;
  let at = 0;
  socket.on("error", () => {});
  socket.on("data", (bytes) => {
    let from = 0;
    while (from < bytes.length) {
      if (left === 0) {
        left = Number(bytes.readBigUInt64LE(from)); // heads are written alone, and come so
        at = 0;
        from += 8;
        if (left === 0) socket.write(one);
        continue;
      }
      const take = Math.min(left, bytes.length - from);
      bytes.copy(target, at, from, from + take);
      at += take;
      left -= take;
      from += take;
      if (left === 0) socket.write(one);
    }
  });
});
await new Promise<void>((resolve) => bare.listen(0, boot.host, resolve));

const endpoint = await openEndpoint({
  name: "far",
  runId: boot.runId,
  token: boot.token,
  tcp: { host: boot.host, port: 0 },
  segments: false,
});
endpoint.onLink((link) => {
  const peer = createPeer(link, farWords);
  let received = 0;
  peer.handle("echo", (body) => body);
  peer.handle("notice", () => {
    received++;
  });
  peer.handle("received", () => received);
  peer.handle("give", () => given);
  peer.handle("cpu", () => {
    const { user, system } = process.cpuUsage();
    return user + system;
  });
  peer.handle("take", (body) => {
    const { length } = body as Float32Array;
    releaseArrays(body);
    return length;
  });
});

const grpcPort = await openGrpcSink(boot.host, target);
await openNatsSink(boot.nats, target);
const { port } = bare.address() as net.AddressInfo;
process.stdout.write(`${JSON.stringify({ barePort: port, grpcPort, address: endpoint.addresses[0] })}\n`);
// Ends with whoever started it.
process.stdin.on("end", () => process.exit(0)).resume();
