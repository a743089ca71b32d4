import type { Link } from "@treadle/contracts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";

export type LinkPair = { readonly left: Link; readonly right: Link; dispose(): Promise<void> };

const mebibyte = 1024 * 1024;

/** Collects what arrives on a link and waits for a number of messages. */
export function inbox(link: Link) {
  const messages: unknown[] = [];
  let wake = () => {};
  link.onMessage((message) => {
    messages.push(message);
    wake();
  });
  return {
    messages,
    async atLeast(count: number): Promise<unknown[]> {
      while (messages.length < count) await new Promise<void>((resolve) => (wake = resolve));
      return messages;
    },
  };
}

export function closed(link: Link): Promise<Error | undefined> {
  return new Promise((resolve) => link.onClose(resolve));
}

export type LinkTraits = {
  /** Messages are copied on the way, so values that cannot be are refused. */
  readonly copies: boolean;
};

/** What every implementation of `Link` promises. */
export function linkContract(name: string, open: () => Promise<LinkPair>, traits: LinkTraits): void {
  describe(`link contract: ${name}`, () => {
    let pair: LinkPair;
    beforeEach(async () => {
      pair = await open();
    });
    afterEach(() => pair.dispose());

    it("delivers every kind of value as it was", async () => {
      const received = inbox(pair.right);
      const message = {
        plain: { nested: [1, -2.5, "text", true, null, undefined, { deep: [[]] }] },
        numbers: [Number.NaN, Number.POSITIVE_INFINITY, -0, 2 ** 53, 2 ** 32, -(2 ** 31) - 1],
        bigints: [0n, -1n, 2n ** 64n, -(2n ** 100n)],
        date: new Date(1_700_000_000_123),
        map: new Map<unknown, unknown>([
          ["key", new Set([1, "two"])],
          [3, { four: 4 }],
        ]),
        arrays: [
          new Float32Array([1.5, -2]),
          new BigInt64Array([5n]),
          new Uint8ClampedArray([255]),
          Buffer.from("bytes"),
          new Uint8Array([1, 2, 3]).buffer,
          new DataView(new Uint8Array([9, 8]).buffer),
        ],
        empty: new Float64Array(0),
      };
      pair.left.send(message);
      const [arrived] = await received.atLeast(1);
      expect(arrived).toEqual(message);
      expect(Object.is((arrived as typeof message).numbers[2], -0)).toBe(true);
    });

    it("carries typed arrays of every size, alone and among others", async () => {
      const received = inbox(pair.right);
      const sizes = [1, 1000, 20_000, 300_000, 2 * mebibyte];
      for (const size of sizes) pair.left.send({ size, data: Float32Array.from({ length: size }, (_, i) => i % 1000) });
      pair.left.send(sizes.map((size) => new Uint16Array(size).fill(size % 60_000)));
      const arrived = await received.atLeast(sizes.length + 1);
      for (const [index, size] of sizes.entries()) {
        const { data } = arrived[index] as { data: Float32Array };
        expect(data).toBeInstanceOf(Float32Array);
        expect(data.length).toBe(size);
        expect(data.every((value, i) => value === i % 1000)).toBe(true);
      }
      for (const [index, array] of (arrived[sizes.length] as Uint16Array[]).entries()) {
        expect(array.length).toBe(sizes[index]);
        expect(array.every((value) => value === sizes[index]! % 60_000)).toBe(true);
      }
    });

    it("keeps the order of small and large messages (SK1, MM1)", async () => {
      const received = inbox(pair.right);
      for (let index = 0; index < 200; index++) {
        pair.left.send(index % 20 === 7 ? { index, bulk: new Uint8Array(400_000) } : { index });
      }
      const arrived = await received.atLeast(200);
      expect(arrived.map((message) => (message as { index: number }).index)).toEqual([...Array(200).keys()]);
    });

    it("delivers after send has returned, and holds messages until somebody listens", async () => {
      pair.left.send("early");
      await new Promise((resolve) => setTimeout(resolve, 20));
      const received = inbox(pair.right);
      pair.left.send("late");
      expect(received.messages).toEqual([]);
      expect(await received.atLeast(2)).toEqual(["early", "late"]);
    });

    it("carries both directions at once", async () => {
      const [atLeft, atRight] = [inbox(pair.left), inbox(pair.right)];
      for (let index = 0; index < 50; index++) {
        pair.left.send({ from: "left", index, data: new Float64Array(30_000) });
        pair.right.send({ from: "right", index });
      }
      expect((await atLeft.atLeast(50)).length).toBe(50);
      expect((await atRight.atLeast(50)).length).toBe(50);
    });

    it("drains what is queued", async () => {
      const received = inbox(pair.right);
      for (let index = 0; index < 20; index++) pair.left.send(new Uint8Array(mebibyte));
      await pair.left.drained();
      expect(pair.left.queuedBytes).toBeLessThanOrEqual(mebibyte);
      await received.atLeast(20);
    });

    it("delivers what was sent before a close, tells both ends once, and then refuses to send (SK3, MM2)", async () => {
      const received = inbox(pair.right);
      const events: string[] = [];
      pair.right.onClose((cause) => events.push(`right ${cause}`));
      pair.left.onClose((cause) => events.push(`left ${cause}`));
      for (let index = 0; index < 100; index++) pair.left.send({ index, data: new Uint8Array(50_000) });
      await pair.left.close();
      await closed(pair.right);
      expect(received.messages.length).toBe(100);
      expect(events.sort()).toEqual(["left undefined", "right undefined"]);
      expect(() => pair.left.send(1)).toThrow(expect.objectContaining({ code: "link.closed" }));
      expect(() => pair.right.send(1)).toThrow(expect.objectContaining({ code: "link.closed" }));
      await expect(pair.left.drained()).rejects.toMatchObject({ code: "link.closed" });
      expect(await closed(pair.left)).toBeUndefined();
    });

    it("tears down at once when closed with a cause, which the closer's listeners get", async () => {
      const cause = new Error("enough");
      inbox(pair.right);
      const atRight = closed(pair.right);
      await pair.left.close(cause);
      expect(await closed(pair.left)).toBe(cause);
      expect(await atRight).toBeInstanceOf(Error);
    });

    it("goes on after a listener threw", async () => {
      const uncaught: unknown[] = [];
      const existing = process.listeners("uncaughtException");
      process.removeAllListeners("uncaughtException");
      process.on("uncaughtException", (error) => uncaught.push(error));
      try {
        const seen: unknown[] = [];
        const last = new Promise<void>((resolve) => {
          pair.right.onMessage((message) => {
            seen.push(message);
            if (message === 1) throw new Error("listener's own");
            if (message === 2) resolve();
          });
        });
        pair.left.send(1);
        pair.left.send(2);
        await last;
        await new Promise((resolve) => setTimeout(resolve, 5));
        expect(seen).toEqual([1, 2]);
        expect(uncaught).toMatchObject([{ message: "listener's own" }]);
      } finally {
        process.removeAllListeners("uncaughtException");
        for (const listener of existing) process.on("uncaughtException", listener);
      }
    });

    if (traits.copies) {
      it("refuses what cannot leave the process, and goes on (the shapes of a refused message are forgotten)", async () => {
        const received = inbox(pair.right);
        const cyclic: { self?: unknown } = {};
        cyclic.self = cyclic;
        for (const bad of [
          () => 1,
          Symbol("s"),
          { a: { b: Promise.resolve() } },
          cyclic,
          new Error("e"),
          new WeakMap(),
        ]) {
          expect(() => pair.left.send({ bad })).toThrow(expect.objectContaining({ code: "link.unsupported-value" }));
        }
        const text = "x".repeat(2 * mebibyte);
        expect(() => pair.left.send({ aShape: 1, ofItsOwn: text })).toThrow(
          expect.objectContaining({ code: "link.frame-too-large", message: expect.stringMatching(/maxFrameBytes/) }),
        );
        pair.left.send({ aShape: 2, ofItsOwn: "short" });
        pair.left.send({ aShape: 3, ofItsOwn: "short" });
        expect(await received.atLeast(2)).toEqual([
          { aShape: 2, ofItsOwn: "short" },
          { aShape: 3, ofItsOwn: "short" },
        ]);
      });
    }
  });
}
