import { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { PassThrough } from "node:stream";
import fc from "fast-check";
import { expect, it } from "vitest";
import { Outbox } from "../src/link/outbox.ts";
import { Tunnel } from "../src/relay/tunnel.ts";

const turn = () => new Promise((resolve) => setImmediate(resolve));

it("OB2: what is added in one turn leaves in one write, in its order", async () => {
  const frame = fc.uint8Array({ minLength: 1, maxLength: 300 });
  const turns = fc.array(fc.array(frame, { minLength: 1, maxLength: 8 }), { maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(turns, async (all) => {
      const writes: Buffer[] = [];
      const socket = Object.assign(new EventEmitter(), {
        writableNeedDrain: false,
        writableLength: 0,
        cork() {},
        uncork() {},
        write: (bytes: Uint8Array) => writes.push(Buffer.from(bytes)),
      });
      const outbox = new Outbox(socket as unknown as Socket);
      for (const frames of all) {
        for (const each of frames) outbox.add(each, false);
        expect(writes.length).toBeLessThan(all.length);
        await turn();
      }
      expect(writes).toEqual(all.map((frames) => Buffer.concat(frames)));
    }),
    { numRuns: 30 },
  );
});

it("TU3: however much comes at once, no message is larger than the server takes, and none of it is lost", async () => {
  const headBytes = 9;
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: headBytes + 1, max: 2 ** 19 }),
      fc.array(fc.integer({ min: 1, max: 60_000 }), { maxLength: 5 }),
      async (maxBytes, sizes) => {
        const socket = new PassThrough();
        const messages: Uint8Array[] = [];
        const wire = { publish: (message: Uint8Array) => void messages.push(message), maxBytes, ended: () => {} };
        const tunnel = new Tunnel(socket as unknown as Socket, wire);
        const sent = Buffer.concat(sizes.map((size, i) => Buffer.alloc(Math.min(size, 200 * maxBytes), i + 1)));
        socket.write(sent.subarray(0, sent.length / 2));
        socket.write(sent.subarray(sent.length / 2));
        await turn();
        for (const { byteLength } of messages) expect(byteLength).toBeLessThanOrEqual(maxBytes);
        expect(Buffer.concat(messages.map((each) => each.subarray(headBytes))).equals(sent)).toBe(true);
        tunnel.close();
      },
    ),
    { numRuns: 30 },
  );
});
