import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { ChannelEnd } from "../../src/runner/runner-messages.ts";
import { ExchangeWorld } from "./exchange-world.ts";

const stream = "step-1";
const source = (channel: string): ChannelEnd => ({ channel, role: "source", stream });
const sink = (channel: string): ChannelEnd => ({ channel, role: "sink", stream });
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

function channelsWith(...definitions: { name: string; capacity?: number }[]) {
  const world = new ExchangeWorld();
  for (const each of definitions) world.define(each);
  return {
    world,
    put: (call: string, channel: string, ...items: unknown[]) => world.put(call, channel, ...items),
    take: (call: string, channel: string, maxItems?: number, acknowledge = true) =>
      world.take(call, channel, maxItems, acknowledge),
  };
}
const ok = { ok: true } as const;

/** What has become of a promise by now. */
const outcomeOf = async (promise: Promise<unknown>) =>
  Promise.race([promise.catch((error: TreadleError) => error.code), turn().then(() => "waiting")]);

describe("waiting puts and takes", () => {
  test("who wants all of a stream that is full already gets what there is, to make room", async () => {
    const { world, put, take } = channelsWith({ name: "in", capacity: 1 });
    world.open("p", "source/0", [sink("in")]);
    world.open("c", "sink/0", [source("in")]);
    await put("p", "in", 1);
    const rest = put("p", "in", 2);
    expect(await outcomeOf(rest)).toBe("waiting");
    expect(await take("c", "in")).toEqual([1]);
    world.close("p", ok);
    expect(await take("c", "in")).toEqual([2]);
    await rest;
  });

  test("C3: the workflow puts all that it has before it calls who takes, and waits once somebody does", async () => {
    const { world, put } = channelsWith({ name: "in", capacity: 1 });
    world.open("runner:1", "runner", [sink("in")]);
    expect(await outcomeOf(put("runner:1", "in", 1, 2, 3))).toBe(undefined);
    world.open("c", "sink/0", [source("in")]);
    expect(await outcomeOf(put("runner:1", "in", 4))).toBe("waiting");
    world.fail(new TreadleError("run.stopped", "the test is over"));
  });

  test("C4: a consumer of a whole stream hears at once that one of its producers has failed", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("q", "source/1", [sink("in")]);
    world.open("c", "sink/0", [source("in")]);
    await put("p", "in", 1, 2);
    const all = take("c", "in");
    expect(await outcomeOf(all)).toBe("waiting");
    world.close("p", { ok: false, error: new TreadleError("call.failed", "the first cause") });
    await expect(all).rejects.toMatchObject({ code: "channel.producer-failed", cause: { message: "the first cause" } });
    world.close("q", ok);
  });

  test("are let go of when their call starts over, so that a process that died leaves nothing behind", async () => {
    const { world, put, take } = channelsWith({ name: "in" }, { name: "out", capacity: 1 });
    world.open("p", "source/0", [sink("in")]);
    world.open("m", "middle/0", [source("in"), sink("out")]);
    await put("m", "out", 1);
    const waiting = [take("m", "in", 1), take("m", "in"), put("m", "out", 2)];
    expect(await Promise.all(waiting.map(outcomeOf))).toEqual(["waiting", "waiting", "waiting"]);
    world.startOver("m", "middle/0");
    expect(await Promise.all(waiting.map(outcomeOf))).toEqual(Array(3).fill("call.cancelled"));
    // The call itself goes on in its next process.
    const again = take("m", "in", 1);
    await put("p", "in", "new");
    expect(await again).toEqual(["new"]);
  });

  test("a take that its call did not wait for ends with the call", async () => {
    const { world, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("c", "sink/0", [source("in")]);
    const forgotten = take("c", "in", 1);
    world.close("c", ok);
    expect(await outcomeOf(forgotten)).toBe("call.cancelled");
  });
});

describe("C6: a call's acknowledgement and its outputs are one", () => {
  test("EX2: outputs appear with the next take, on all channels at once", async () => {
    const { world, put, take } = channelsWith({ name: "in" }, { name: "out" }, { name: "log" });
    world.open("p", "source/0", [sink("in")]);
    world.open("m", "middle/0", [source("in"), sink("out"), sink("log")]);
    world.open("c", "sink/0", [source("out"), source("log")]);
    await put("p", "in", 1, 2);
    expect(await take("m", "in", 1)).toEqual([1]);
    await put("m", "out", "out of 1");
    await put("m", "log", "log of 1");
    const seen: unknown[] = [];
    void take("c", "out", 1).then((items) => seen.push(items));
    await turn();
    expect(seen).toEqual([]);
    expect(await take("m", "in", 1)).toEqual([2]);
    await turn();
    expect(seen).toEqual([["out of 1"]]);
    expect(await take("c", "log", 1)).toEqual(["log of 1"]);
  });

  test("a death between leaves neither: the input comes again and its outputs are made again", async () => {
    const { world, put, take } = channelsWith({ name: "in" }, { name: "out" });
    world.open("p", "source/0", [sink("in")]);
    world.open("m", "middle/0", [source("in"), sink("out")]);
    await put("p", "in", 1, 2);
    world.close("p", ok);
    expect(await take("m", "in", 1)).toEqual([1]);
    await put("m", "out", "lost");
    world.startOver("m", "middle/0");
    world.open("c", "sink/0", [source("out")]);
    expect(await take("m", "in", 1)).toEqual([1]);
    await put("m", "out", "kept");
    expect(await take("m", "in", 1)).toEqual([2]);
    world.close("m", ok);
    expect(await take("c", "out", 5)).toEqual(["kept"]);
    expect(await take("c", "out", 5)).toBeUndefined();
  });

  test("with acknowledge 'call' everything a call took comes back, and nothing after a good end", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    await put("p", "in", 1, 2, 3);
    world.close("p", ok);
    world.open("m", "middle/0", [source("in")]);
    for (const item of [1, 2, 3]) expect(await take("m", "in", 1, false)).toEqual([item]);
    world.startOver("m", "middle/0");
    for (const item of [1, 2, 3]) expect(await take("m", "in", 1, false)).toEqual([item]);
    world.close("m", ok);
    expect(world.depth("in")).toBe(0);
  });

  test("whenever a pipeline's middle dies, each input yields exactly one output", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 12 }),
        fc.array(fc.constantFrom("work", "work", "work", "die"), { maxLength: 60 }),
        fc.integer({ min: 1, max: 3 }),
        fc.integer({ min: 1, max: 4 }),
        async (num, script, size, capacity) => {
          const { world, put, take } = channelsWith({ name: "in" }, { name: "out", capacity });
          world.open("p", "source/0", [sink("in")]);
          world.open("m", "middle/0", [source("in"), sink("out")]);
          world.open("c", "sink/0", [source("out")]);
          await put("p", "in", ...Array.from({ length: num }, (_, i) => i));
          world.close("p", ok);
          const got: unknown[] = [];
          const consumer = (async () => {
            for (let items = await take("c", "out", 2); items; items = await take("c", "out", 2)) got.push(...items);
          })();
          let epoch = 0;
          const live = async (mine: number) => {
            for (let items = await take("m", "in", size); items; items = await take("m", "in", size)) {
              for (const item of items) {
                await turn();
                if (epoch !== mine) return;
                await put("m", "out", item);
                if (epoch !== mine) return;
              }
            }
            if (epoch === mine) world.close("m", ok);
          };
          void live(0).catch(() => {});
          for (const action of script) {
            await turn();
            if (action === "work") continue;
            epoch++;
            world.startOver("m", "middle/0");
            void live(epoch).catch(() => {});
          }
          await consumer;
          expect(got.toSorted((a, b) => (a as number) - (b as number))).toEqual(
            Array.from({ length: num }, (_, i) => i),
          );
        },
      ),
      { numRuns: 60 },
    );
  });
});

describe("shares of a whole stream", () => {
  const granularityAll = undefined;

  test("consumers that want all of it get equal shares, in put order, once it is complete", async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(20), fc.integer({ min: 1, max: 4 }), fc.nat(3), async (num, consumers, early) => {
        const { world, put, take } = channelsWith({ name: "in" });
        world.open("p", "source/0", [sink("in")]);
        const shares: unknown[][] = [];
        const calls = Array.from({ length: consumers }, (_, rank) => `7/${rank}`);
        for (const call of calls) world.open(call, `sink/${call}`, [source("in")]);
        const run = async (call: string) => {
          const mine: unknown[] = [];
          for (
            let items = await take(call, "in", granularityAll);
            items;
            items = await take(call, "in", granularityAll)
          )
            mine.push(...items);
          shares.push(mine);
        };
        const running = calls.slice(0, early).map(run);
        await put("p", "in", ...Array.from({ length: num }, (_, i) => i));
        await turn();
        expect(shares).toEqual([]);
        world.close("p", ok);
        await turn();
        running.push(...calls.slice(early).map(run));
        await Promise.all(running);
        expect(shares.flat().toSorted((a, b) => (a as number) - (b as number))).toEqual(
          Array.from({ length: num }, (_, i) => i),
        );
        const sizes = shares.map((share) => share.length);
        expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
      }),
      { numRuns: 60 },
    );
  });

  test("one that is early and asks again does not get the share of one that is late", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("7/0", "sink/0", [source("in")]);
    world.open("7/1", "sink/1", [source("in")]);
    await put("p", "in", 1, 2, 3, 4);
    world.close("p", ok);
    expect(await take("7/0", "in")).toEqual([1, 2]);
    const again = take("7/0", "in");
    await turn();
    expect(await take("7/1", "in")).toEqual([3, 4]);
    expect(await again).toBeUndefined();
    expect(await take("7/1", "in")).toBeUndefined();
  });

  test("the share of a consumer that ends without taking goes to the others", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("7/0", "sink/0", [source("in")]);
    world.open("7/1", "sink/1", [source("in")]);
    await put("p", "in", 1, 2, 3, 4);
    world.close("p", ok);
    expect(await take("7/0", "in")).toEqual([1, 2]);
    const rest = take("7/0", "in");
    world.close("7/1", ok);
    expect(await rest).toEqual([3, 4]);
    expect(await take("7/0", "in")).toBeUndefined();
  });

  test("one that has replied, and is open for its fellow ranks alone, is not waited for", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("7/0", "sink/0", [source("in")]);
    world.open("7/1", "sink/1", [source("in")]);
    await put("p", "in", 1, 2, 3, 4);
    world.close("p", ok);
    expect(await take("7/0", "in")).toEqual([1, 2]);
    const rest = take("7/0", "in");
    world.exchange.replied("7/1");
    expect(await rest).toEqual([3, 4]);
  });

  test("a consumer that dies after its share gets the same share again", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("7/0", "sink/0", [source("in")]);
    world.open("7/1", "sink/1", [source("in")]);
    await put("p", "in", 1, 2, 3, 4);
    world.close("p", ok);
    expect(await take("7/0", "in")).toEqual([1, 2]);
    expect(await take("7/1", "in")).toEqual([3, 4]);
    const end = take("7/1", "in");
    world.startOver("7/0", "sink/0");
    expect(await take("7/0", "in")).toEqual([1, 2]);
    expect(await take("7/0", "in")).toBeUndefined();
    expect(await end).toBeUndefined();
  });

  test("a later call that waits behind the same process is not waited for", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("7/0", "sink/0", [source("in")]);
    world.open("8/0", "sink/0", [source("in")]);
    await put("p", "in", 1, 2, 3, 4);
    world.close("p", ok);
    expect(await take("7/0", "in")).toEqual([1, 2]);
    expect(await take("7/0", "in")).toEqual([3, 4]);
    expect(await take("7/0", "in")).toBeUndefined();
  });
});

describe("waiting", () => {
  test("C3: put waits for credit, and goes on when a consumer acknowledges", async () => {
    const { world, put, take } = channelsWith({ name: "in", capacity: 2 });
    world.open("p", "source/0", [sink("in")]);
    world.open("c", "sink/0", [source("in")]);
    let isAccepted = false;
    const waiting = put("p", "in", 1, 2, 3).then(() => (isAccepted = true));
    await turn();
    expect(isAccepted).toBe(false);
    expect(await take("c", "in", 1)).toEqual([1]);
    await turn();
    expect(isAccepted).toBe(false);
    expect(await take("c", "in", 1)).toEqual([2]);
    await waiting;
  });

  test("C4: the failure of a producer reaches whoever waits, with its cause", async () => {
    const { world, take } = channelsWith({ name: "in" });
    world.open("p", "source/0", [sink("in")]);
    world.open("a", "sink/0", [source("in")]);
    world.open("b", "sink/1", [source("in")]);
    const one = take("a", "in", 1);
    const all = take("b", "in");
    one.catch(() => {});
    all.catch(() => {});
    const error = new TreadleError("call.failed", "the simulator exploded", { origin: { worker: "source/0" } });
    world.close("p", { ok: false, error });
    for (const each of [one, all]) {
      await expect(each).rejects.toMatchObject({ code: "channel.producer-failed", cause: error });
    }
  });

  test("everything that waits is refused when the run ends", async () => {
    const { world, put, take } = channelsWith({ name: "in", capacity: 1 }, { name: "other" });
    world.open("p", "source/0", [sink("in")]);
    world.open("c", "sink/0", [source("other")]);
    await put("p", "in", 1);
    const ended = new TreadleError("run.stopped", "over");
    const waiting = [put("p", "in", 2), take("c", "other", 1)];
    for (const each of waiting) each.catch(() => {});
    world.fail(ended);
    for (const each of waiting) await expect(each).rejects.toBe(ended);
  });
});

describe("misuse", () => {
  test("a call that has ended, the wrong end, an unknown or a second channel of a name", async () => {
    const { world, put, take } = channelsWith({ name: "in" });
    await expect(put("p", "in", 1)).rejects.toMatchObject({ code: "channel.closed" });
    world.open("p", "source/0", [sink("in")]);
    await expect(take("p", "in", 1)).rejects.toMatchObject({ code: "workflow.invalid" });
    world.open("c", "sink/0", [source("in")]);
    await expect(put("c", "in", 1)).rejects.toMatchObject({ code: "channel.closed" });
    expect(() => world.define({ name: "in", capacity: 1 })).toThrow("defined twice");
    expect(() => world.open("x", "w/0", [sink("nowhere")])).toThrow("no channel is called 'nowhere'");
    world.close("never opened", ok);
    world.startOver("never opened", "w/0");
  });
});
