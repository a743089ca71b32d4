/**
 * A stretch of network in a process of its own, for kernels that cannot delay: takes connections and passes their bytes on,
 * each no sooner than `delayMs` after it came, and no faster than `mbits`, in either direction.
 *
 * What it does not have: loss, reordering, and a TCP that feels the delay; windows of both ends see this process only. Like
 * a router it holds what is under way and a little more, and then reads no further.
 */
import net from "node:net";
import { z } from "zod";

const Boot = z.object({
  listenOn: z.string(),
  to: z.object({ host: z.string(), ports: z.array(z.int()) }),
  delayMs: z.number(),
  mbits: z.number(),
});
const { listenOn, to, delayMs, mbits } = Boot.parse(JSON.parse(process.argv[2] as string));

const bytesAMs = (mbits * 1e6) / 8 / 1000;
/** held beyond what is under way */
const queueBytes = 256 * 1024;
const roomBytes = bytesAMs * delayMs + queueBytes;

function carry(from: net.Socket, into: net.Socket): void {
  const held: { readonly bytes: Buffer; readonly dueMs: number }[] = [];
  let heldBytes = 0;
  /** when the line has sent what it was given */
  let freeMs = 0;
  let isWaiting = false;
  let hasEnded = false;
  const wait = (waitMs: number): void => {
    isWaiting = true;
    setTimeout(passOn, Math.ceil(waitMs));
  };
  const passOn = (): void => {
    isWaiting = false;
    const nowMs = performance.now();
    while (held[0] !== undefined && held[0].dueMs <= nowMs) {
      const { bytes } = held.shift() as (typeof held)[number];
      heldBytes -= bytes.byteLength;
      into.write(bytes);
    }
    if (heldBytes < roomBytes) from.resume();
    if (held[0] !== undefined) wait(held[0].dueMs - nowMs);
    else if (hasEnded) into.end();
  };
  from.on("data", (bytes: Buffer) => {
    freeMs = Math.max(freeMs, performance.now()) + bytes.byteLength / bytesAMs;
    held.push({ bytes, dueMs: freeMs + delayMs });
    heldBytes += bytes.byteLength;
    if (heldBytes >= roomBytes) from.pause();
    if (!isWaiting) wait(freeMs + delayMs - performance.now());
  });
  from.on("end", () => {
    hasEnded = true;
    if (held.length === 0) into.end();
  });
  from.on("close", () => {
    if (!hasEnded) into.destroy();
  });
  from.on("error", () => {}); // "close" follows
}

const relayed = await Promise.all(
  to.ports.map(async (port) => {
    const server = net.createServer({ noDelay: true, allowHalfOpen: true }, (socket) => {
      const onward = net.connect({ host: to.host, port, noDelay: true, allowHalfOpen: true });
      carry(socket, onward);
      carry(onward, socket);
    });
    await new Promise<void>((resolve) => server.listen(0, listenOn, resolve));
    return (server.address() as net.AddressInfo).port;
  }),
);
process.stdout.write(`${JSON.stringify(relayed)}\n`);
// Ends with whoever started it.
process.stdin.on("end", () => process.exit(0)).resume();
