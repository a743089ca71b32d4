import { describe, expect, it } from "vitest";
import { memoryLinkPair } from "../src/index.ts";
import { joined } from "./support/endpoints.ts";
import { inbox, type LinkPair, linkContract } from "./support/link-contract.ts";

const limits = { maxFrameBytes: 1024 * 1024 };

linkContract(
  "memory",
  async () => {
    const [left, right] = memoryLinkPair();
    return { left, right, dispose: async () => void (await Promise.all([left.close(), right.close()])) };
  },
  { copies: false },
);
linkContract("unix socket with shared memory", () => joined("unix", { limits }), { copies: true });
linkContract("unix socket", () => joined("unix", { limits, segments: false }), { copies: true });
linkContract("TCP on loopback", () => joined("tcp", { limits, segments: false }), { copies: true });
linkContract(
  "TCP, seen from the side that dialled",
  async () => {
    const pair = await joined("tcp", { limits, segments: false });
    return { ...pair, left: pair.right, right: pair.left };
  },
  { copies: true },
);

describe("socket link", () => {
  async function withPair(run: (pair: LinkPair) => Promise<void>): Promise<void> {
    const pair = await joined("unix", { segments: false });
    try {
      await run(pair);
    } finally {
      await pair.dispose();
    }
  }

  it("lets urgent messages overtake a streaming array, in their own order (OB1, OB3)", () =>
    withPair(async ({ left, right }) => {
      const received = inbox(right);
      left.send({ bulk: new Uint8Array(64 * 1024 * 1024) });
      left.send("after the bulk");
      await new Promise((resolve) => setImmediate(resolve));
      left.send({ urgent: 1 }, { urgent: true });
      left.send({ urgent: 2 }, { urgent: true });
      const arrived = await received.atLeast(4);
      expect(arrived.slice(0, 2)).toEqual([{ urgent: 1 }, { urgent: 2 }]);
      expect(arrived[3]).toBe("after the bulk");
    }));

  it("refuses bulk in an urgent message, and says what to do", () =>
    withPair(async ({ left }) => {
      expect(() => left.send(new Uint8Array(100_000), { urgent: true })).toThrow(/send it without urgent/);
    }));

  it("queues what a stalled receiver does not read, and reports it", () =>
    withPair(async ({ left, right }) => {
      // Nobody listens at the right, so it stops reading.
      for (let index = 0; index < 64; index++) left.send({ index, data: new Uint8Array(mebibyte) });
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(left.queuedBytes).toBeGreaterThan(32 * mebibyte);
      const drained = left.drained();
      const received = inbox(right);
      await drained;
      expect((await received.atLeast(64)).length).toBe(64);
    }));
});

const mebibyte = 1024 * 1024;
