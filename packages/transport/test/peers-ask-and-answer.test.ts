import { CallReply, type Link, type Peer, runProtocol, TreadleError } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { createPeer, memoryLinkPair } from "../src/index.ts";
import { openProtocol } from "../src/testing/index.ts";
import { joined } from "./support/endpoints.ts";

const words = openProtocol(
  [
    "bad details",
    "echo",
    "fine",
    "function",
    "hang",
    "large",
    "later",
    "m",
    "now",
    "rejects",
    "slow",
    "throws",
    "unheard of",
    "wait",
  ],
  ["bad", "note", "nobody handles this"],
);
type Words = typeof words;

function peers(clock = new ManualClock()): {
  asker: Peer<Words>;
  answerer: Peer<Words>;
  clock: ManualClock;
  links: [Link, Link];
} {
  const links = memoryLinkPair(["asker", "answerer"]);
  return {
    asker: createPeer(links[0], words, { clock }),
    answerer: createPeer(links[1], words, { clock }),
    clock,
    links,
  };
}

const settle = () => new Promise((resolve) => setTimeout(resolve, 5));

describe("peer", () => {
  it("answers synchronously, asynchronously, and in any order", async () => {
    const { asker, answerer } = peers();
    const release: (() => void)[] = [];
    answerer.handle("now", (body) => ({ got: body }));
    answerer.handle("later", (body) => new Promise((resolve) => release.push(() => resolve(body))));
    const later = [asker.request("later", 1), asker.request("later", 2)];
    expect(await asker.request("now", "x")).toEqual({ got: "x" });
    release[1]!();
    expect(await later[1]).toBe(2);
    release[0]!();
    expect(await later[0]).toBe(1);
  });

  it("turns throws and rejections into errors with code, details and cause (PE3)", async () => {
    const { asker, answerer } = peers();
    answerer.handle("throws", () => {
      throw new TreadleError("engine.released", "no memory", { details: { device: 3 }, cause: new Error("deep") });
    });
    answerer.handle("rejects", async () => {
      throw new TypeError("plain");
    });
    await expect(asker.request("throws", 0)).rejects.toMatchObject({
      code: "engine.released",
      message: "no memory",
      details: { device: 3 },
      cause: { message: "deep" },
    });
    await expect(asker.request("rejects", 0)).rejects.toMatchObject({ code: "call.failed", message: "plain" });
    await expect(asker.request("unheard of", 0)).rejects.toMatchObject({
      code: "call.unknown-method",
      message: expect.stringMatching(/'unheard of'.*'throws', 'rejects'/),
    });
  });

  it("refuses a second handler of one method", () => {
    const { answerer } = peers();
    answerer.handle("m", () => 0);
    expect(() => answerer.handle("m", () => 0)).toThrow(/already has a handler/);
  });

  it("gives up at the deadline, tells the handler, and ignores the late answer (PE1, PE2)", async () => {
    const { asker, answerer, clock } = peers();
    let aborted: unknown;
    let answer = (_: number) => {};
    answerer.handle("slow", (_body, { signal }) => {
      signal.addEventListener("abort", () => (aborted = signal.reason));
      return new Promise<number>((resolve) => (answer = resolve));
    });
    const patient = asker.request("slow", 0, { timeoutMs: 5000 });
    const hasty = asker.request("slow", 0, { timeoutMs: 1000 });
    const failure = expect(hasty).rejects.toMatchObject({
      code: "call.timeout",
      message: expect.stringMatching(/'slow' on 'answerer' gave no answer within 1000 ms/),
    });
    await settle();
    await clock.advance(999);
    await settle();
    expect(aborted).toBeUndefined();
    await clock.advance(1);
    await failure;
    await settle();
    expect(aborted).toMatchObject({ code: "call.cancelled" });
    answer(7);
    await settle();
    const late = expect(patient).rejects.toMatchObject({ code: "call.timeout" });
    await clock.advance(4000);
    await late;
    expect(clock.armed).toBe(0);
  });

  it("arms one timer for any number of requests", async () => {
    const { asker, answerer, clock } = peers();
    answerer.handle("echo", (body) => body);
    for (let index = 0; index < 1000; index++) await asker.request("echo", index, { timeoutMs: 10_000 + index });
    expect(clock.armed).toBe(1);
  });

  it("cancels with the caller's signal (PE2)", async () => {
    const { asker, answerer } = peers();
    const aborted = new Promise((resolve) => {
      answerer.handle("wait", (_body, { signal }) => {
        signal.addEventListener("abort", () => resolve(signal.reason));
        return new Promise(() => {});
      });
    });
    const controller = new AbortController();
    const call = asker.request("wait", 0, { signal: controller.signal });
    await settle();
    controller.abort(new Error("not needed"));
    await expect(call).rejects.toMatchObject({ code: "call.cancelled", cause: { message: "not needed" } });
    expect(await aborted).toMatchObject({ code: "call.cancelled" });
    await expect(asker.request("wait", 0, { signal: controller.signal })).rejects.toMatchObject({
      code: "call.cancelled",
    });
  });

  it("shows an aborted signal to a handler that looks at it only afterwards", async () => {
    const { asker, answerer } = peers();
    let look: (() => boolean) | undefined;
    answerer.handle("wait", (_body, context) => {
      look = () => context.signal.aborted;
      return new Promise(() => {});
    });
    const controller = new AbortController();
    asker.request("wait", 0, { signal: controller.signal }).catch(() => {});
    await settle();
    controller.abort();
    await settle();
    expect(look?.()).toBe(true);
  });

  it("rejects every pending request and aborts every handler when the link ends (PE4)", async () => {
    const { asker, answerer, links } = peers();
    let aborted = 0;
    answerer.handle("hang", (_body, { signal }) => {
      signal.addEventListener("abort", () => aborted++);
      return new Promise(() => {});
    });
    const calls = [asker.request("hang", 1), asker.request("hang", 2)];
    const failures = calls.map((call) => expect(call).rejects.toMatchObject({ code: "link.closed" }));
    await settle();
    await links[1].close();
    await Promise.all(failures);
    expect(aborted).toBe(2);
    await expect(asker.request("hang", 3)).rejects.toMatchObject({ code: "link.closed" });
    expect(() => asker.notify("note", 3)).toThrow(expect.objectContaining({ code: "link.closed" }));
  });

  it("closes the link on any malformed envelope, and never throws into it (PE5)", async () => {
    const envelope = fc.oneof(
      fc.anything(),
      fc.tuple(fc.integer({ min: -1, max: 6 }), fc.anything(), fc.anything()),
      fc.tuple(fc.constantFrom(1, 2), fc.integer({ min: 1 }), fc.anything()),
      fc.tuple(fc.constant(0), fc.integer({ min: -3, max: 3 }), fc.anything(), fc.anything()),
      fc.constantFrom(
        [2, 1, { code: 1, message: "m" }],
        [2, 1, { code: "c", message: "m", cause: 3 }],
        [3, 0],
        [0, 1, 2, 3],
      ),
    );
    await fc.assert(
      fc.asyncProperty(envelope, async (message) => {
        const [left, right] = memoryLinkPair();
        createPeer(right, words).handle("m", () => 1);
        left.onMessage(() => {});
        let cause: Error | undefined;
        right.onClose((error) => (cause = error));
        left.send(message);
        await new Promise((resolve) => setImmediate(resolve));
        const wellFormed =
          Array.isArray(message) &&
          ((message[0] === 0 &&
            message.length === 4 &&
            Number.isSafeInteger(message[1]) &&
            message[1] > 0 &&
            typeof message[2] === "string") ||
            (message[0] === 3 && message.length === 2 && Number.isSafeInteger(message[1]) && message[1] > 0) ||
            (message[0] === 4 && message.length === 3 && typeof message[1] === "string"));
        if (wellFormed) expect(cause).toBeUndefined();
        else expect(cause).toMatchObject({ code: "link.protocol" });
      }),
      { numRuns: 300 },
    );
  });

  it("gives a handler nothing that does not fit its verb, whatever the verb (PE5)", async () => {
    const verbs = Object.keys(runProtocol) as (keyof typeof runProtocol)[];
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...verbs),
        fc.anything({ maxDepth: 2 }),
        fc.boolean(),
        async (verb, body, told) => {
          const [left, right] = memoryLinkPair();
          const reached: unknown[] = [];
          createPeer(right, runProtocol).handle(verb, (got) => {
            reached.push(got);
            throw new TreadleError("engine.released", "enough was seen");
          });
          left.onMessage(() => {});
          let cause: Error | undefined;
          right.onClose((error) => (cause = error));
          left.send(told ? [4, verb, body] : [0, 1, verb, body]);
          await new Promise((resolve) => setImmediate(resolve));
          const fits = runProtocol[verb].request.safeParse(body);
          expect(reached).toEqual(fits.success ? [fits.data] : []);
          if (!fits.success) expect(cause).toMatchObject({ code: "link.protocol" });
        },
      ),
      { numRuns: 400 },
    );
  });

  it("gives a caller no reply that does not fit its verb, and goes on (PE5)", async () => {
    const [left, right] = memoryLinkPair(["asker", "answerer"]);
    const asker = createPeer(left, runProtocol);
    const answers: unknown[] = [{ token: 0 }, null, "7", { token: 7, more: 1 }];
    const answerer = createPeer(right, openProtocol(["lock.acquire"]));
    answerer.handle("lock.acquire", () => answers.shift());
    for (let wrong = 0; wrong < 3; wrong++) {
      await expect(asker.request("lock.acquire", { call: "1/0" })).rejects.toMatchObject({
        code: "link.protocol",
        details: { verb: "lock.acquire" },
        message: expect.stringMatching(/^'answerer' answered 'lock.acquire' with what is no reply: /),
      });
    }
    expect(await asker.request("lock.acquire", { call: "1/0" })).toEqual({ token: 7 });
  });

  it("takes a call's reply at a look only when its schema would (PE5)", () => {
    const part = fc.constantFrom(undefined, null, 0, 1.5, Number.NaN, "x", {}, { a: 1 }, [], new Date());
    fc.assert(
      fc.property(
        fc.record({ value: part, durationMs: part, timers: part, saved: part, observation: part }),
        (reply) => {
          if (runProtocol.call.isPlainReply(reply)) expect(CallReply.safeParse(reply).success).toBe(true);
        },
      ),
      { numRuns: 2000 },
    );
  });

  it("answers with an error when the answer cannot be sent (PE3)", async () => {
    const pair = await joined("unix", { limits: { maxFrameBytes: 100_000 } });
    try {
      const [asker, answerer] = [createPeer(pair.left, words), createPeer(pair.right, words)];
      answerer.handle("function", () => ({ f: () => 1 }));
      answerer.handle("large", () => "x".repeat(200_000));
      answerer.handle("bad details", () => {
        throw new TreadleError("device.out-of-memory", "short", { details: { callback: () => 1 } });
      });
      answerer.handle("fine", () => "fine");
      await expect(asker.request("function", 0)).rejects.toMatchObject({ code: "link.unsupported-value" });
      await expect(asker.request("large", 0)).rejects.toMatchObject({ code: "link.frame-too-large" });
      await expect(asker.request("bad details", 0)).rejects.toMatchObject({
        code: "device.out-of-memory",
        message: "short",
      });
      await expect(asker.request("fine", { f: () => 1 })).rejects.toMatchObject({ code: "link.unsupported-value" });
      expect(await asker.request("fine", 0)).toBe("fine");
    } finally {
      await pair.dispose();
    }
  });

  it("delivers notifications, and reports the failure of their handler as a warning", async () => {
    const { asker, answerer } = peers();
    const seen: unknown[] = [];
    answerer.handle("note", (body) => seen.push(body));
    answerer.handle("bad", () => Promise.reject(new Error("in a notification")));
    const warned = new Promise<Error>((resolve) => process.once("warning", resolve));
    asker.notify("note", 1);
    asker.notify("nobody handles this", 2);
    asker.notify("bad", 3);
    asker.notify("note", 4);
    expect((await warned).message).toMatch(/in a notification/);
    expect(seen).toEqual([1, 4]);
  });
});
