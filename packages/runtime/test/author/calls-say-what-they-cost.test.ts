import type { ItemBlock } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { CallMeter, type ChannelWait } from "../../src/author/call/call-meter.ts";
import { WhenAwaited } from "../../src/author/call/when-awaited.ts";

function handDriven(idle: () => Promise<void> | undefined = () => undefined) {
  const time = { nowMs: 0, cpuMs: 0, queuedMs: 0 as number | undefined };
  const meter = new CallMeter({ now: () => time.nowMs, idle, cpuMs: () => time.cpuMs, queuedMs: () => time.queuedMs });
  const pass = (ms: number) => {
    time.nowMs += ms;
  };
  return { meter, pass, time };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

function awaited(wait: ChannelWait): ChannelWait {
  wait.awaited();
  return wait;
}

const blockOf = (items: number, bytes: number): ItemBlock => ({
  data: new Uint8Array(items * bytes),
  lengths: new Uint32Array(items).fill(bytes),
});
const logs = (items: number, bytes: number) =>
  [1, 2].map((power) => expect.closeTo(items * Math.log(bytes) ** power, 9));

const worker = { onloadMs: 3, offloadMs: 0, memoryBytes: 7 };

describe("what a call costs", () => {
  test("sequences that were sampled are summed up; without any, nothing is said of them", () => {
    const { meter } = handDriven();
    meter.sampled(5, 8);
    meter.sampled(7, 2);
    meter.sampled(7, 0); // nothing came of it, which has no logarithm
    expect(meter.finish(worker).sequences).toEqual({
      count: 2,
      promptTokens: 12,
      logResponse: [expect.closeTo(Math.log(16), 9), expect.closeTo(Math.log(8) ** 2 + Math.log(2) ** 2, 9)],
      longestResponse: 8,
    });
    expect(handDriven().meter.finish(worker)).not.toHaveProperty("sequences");
  });

  test("busy is what waits for devices, items and credit leave", () => {
    const { meter, pass, time } = handDriven();
    pass(1);
    {
      using _ = meter.lockWait();
      pass(10);
    }
    pass(2);
    {
      using wait = awaited(meter.channelWait("prompts", "source"));
      pass(20);
      time.queuedMs = 5; // of the wait
      wait.moved([blockOf(8, 16)]);
      pass(4); // decoding
    }
    {
      using wait = awaited(meter.channelWait("episodes", "sink"));
      pass(30);
      wait.moved([blockOf(8, 32)]);
    }
    pass(5);
    time.cpuMs = 8;
    time.queuedMs = 8; // three of them while busy
    expect(meter.finish(worker)).toEqual({
      busyMs: 12,
      lockWaitMs: 10,
      cpuMs: 8,
      queuedMs: 3,
      ...worker,
      peers: [],
      channels: [
        {
          channel: "prompts",
          role: "source",
          items: 8,
          bytes: 128,
          logBytes: logs(8, 16),
          times: 1,
          waitMs: 20,
          askMs: 20,
        },
        {
          channel: "episodes",
          role: "sink",
          items: 8,
          bytes: 256,
          logBytes: logs(8, 32),
          times: 1,
          waitMs: 30,
          askMs: 30,
        },
      ],
      batches: [{ channel: "prompts", items: 8, times: 1, busyMs: 9 }],
    });
  });

  test("a call may wait as often as it likes", () => {
    const { meter, pass } = handDriven();
    const times = 300_000;
    for (let i = 0; i < times; i++) {
      using _wait = awaited(meter.channelWait("episodes", "sink"));
      pass(1);
    }
    expect(meter.finish(worker).channels).toMatchObject([{ channel: "episodes", waitMs: times, askMs: 1 }]);
  });

  test("a batch lasts until the next take, and batches of one size add up", () => {
    const { meter, pass } = handDriven();
    for (const busyMs of [3, 4]) {
      using wait = awaited(meter.channelWait("prompts", "source"));
      pass(1);
      wait.moved([blockOf(2, 1)]);
      pass(busyMs);
    }
    {
      using _end = awaited(meter.channelWait("prompts", "source")); // brings nothing: the end of the stream
      pass(1);
    }
    pass(6);
    const { batches, channels, busyMs } = meter.finish(worker);
    expect(batches).toEqual([{ channel: "prompts", items: 2, times: 2, busyMs: 7 }]);
    expect(channels).toEqual([
      { channel: "prompts", role: "source", items: 4, bytes: 4, logBytes: [0, 0], times: 2, waitMs: 3, askMs: 1 },
    ]);
    expect(busyMs).toBe(13);
  });

  test("what follows a take of another channel belongs to the batch (CM2)", () => {
    const { meter, pass } = handDriven();
    for (const channel of ["rewarded", "valued"]) {
      using wait = awaited(meter.channelWait(channel, "source"));
      pass(1);
      wait.moved([blockOf(2, 1)]);
    }
    pass(7);
    expect(meter.finish(worker).batches).toEqual([{ channel: "rewarded", items: 2, times: 1, busyMs: 7 }]);
  });

  test("what is asked for ahead is no wait until it is awaited (CM1)", () => {
    const { meter, pass } = handDriven();
    const early = meter.channelWait("prompts", "source");
    pass(3);
    early.moved([blockOf(2, 1)]);
    pass(4);
    early.awaited();
    const late = meter.channelWait("prompts", "source");
    pass(5);
    late.awaited();
    pass(6);
    late.moved([blockOf(2, 1)]);
    const { busyMs, batches, channels } = meter.finish(worker);
    expect(busyMs).toBe(12);
    expect(batches).toEqual([{ channel: "prompts", items: 2, times: 2, busyMs: 5 }]);
    expect(channels).toMatchObject([{ waitMs: 6, times: 2 }]);
    expect(channels[0]?.streamed).toBeUndefined();
  });

  test("of a stream, batches are as many items as are in flight, of equal time, and have all of it (CM3)", () => {
    const { meter, pass } = handDriven();
    const take = (items: number) => {
      const wait = meter.channelWait("prompts", "source", 4);
      if (items > 0) wait.moved([blockOf(items, 1)]);
      else wait[Symbol.dispose]();
      return wait;
    };
    const first = awaited(meter.channelWait("prompts", "source", 4));
    pass(2);
    first.moved([blockOf(4, 1)]);
    pass(30);
    for (let taken = 0; taken < 5; taken++) {
      take(1);
      pass(10);
    }
    take(0); // the end of the stream, while what was taken is worked on
    const over = take(0);
    pass(10);
    over.awaited(); // the last is done
    pass(7); // once, behind all of it
    const { batches, busyMs, channels } = meter.finish(worker);
    expect(busyMs).toBe(97);
    expect(batches).toEqual([
      { channel: "prompts", items: 4, times: 2, busyMs: 80 },
      { channel: "prompts", items: 1, times: 1, busyMs: 10 },
    ]);
    expect(channels).toMatchObject([{ items: 9, times: 6, waitMs: 2, askMs: 2, streamed: true }]);
  });

  test("a stream that runs dry waits, and its next items go on with it", () => {
    const { meter, pass } = handDriven();
    for (let taken = 0; taken < 3; taken++) {
      using wait = awaited(meter.channelWait("prompts", "source", 2));
      pass(5);
      wait.moved([blockOf(1, 1)]);
      pass(4);
    }
    const { batches, busyMs } = meter.finish(worker);
    expect(busyMs).toBe(12);
    expect(batches).toEqual([
      { channel: "prompts", items: 2, times: 1, busyMs: 8 },
      { channel: "prompts", items: 1, times: 1, busyMs: 4 },
    ]);
  });

  test("what asking costs is told from waits for something, which are longer", () => {
    const { meter, pass } = handDriven();
    for (const waitMs of [500, 3, 2, 4, 60]) {
      using wait = awaited(meter.channelWait("prompts", "source"));
      pass(waitMs);
      wait.moved([blockOf(1, 1)]);
    }
    expect(meter.finish(worker).channels).toMatchObject([{ waitMs: 569, askMs: 3 }]);
  });

  test("who is called and who is sent messages is counted", () => {
    const { meter } = handDriven();
    meter.contacted("actor/0", "weights");
    meter.contacted("actor/1", "weights");
    meter.contacted("actor/1");
    expect(meter.finish(worker).peers).toEqual([
      { component: "actor", method: "weights", times: 2 },
      { component: "actor", times: 1 },
    ]);
  });

  test("a wait is one from when the engine has computed what it began before (CM1)", async () => {
    const ends: (() => void)[] = [];
    let left = 2;
    const { meter, pass } = handDriven(() =>
      left === 0 ? undefined : new Promise<void>((resolve) => ends.push(resolve)),
    );
    const settled = () => turn().then(turn);
    const wait = awaited(meter.channelWait("prompts", "source"));
    for (const ms of [10, 20]) {
      pass(ms);
      left--;
      ends.shift()?.();
      await settled(); // asked again: something else computes by then, and then nothing
    }
    pass(5);
    wait.moved([blockOf(1, 1)]);
    pass(2);
    const { busyMs, channels } = meter.finish(worker);
    expect(busyMs).toBe(32);
    expect(channels).toMatchObject([{ waitMs: 5 }]);
    expect(channels[0]?.askMs).toBeUndefined();
  });

  test("what computes beyond a wait is busy throughout", async () => {
    const { meter, pass } = handDriven(() => new Promise(() => {}));
    const wait = awaited(meter.channelWait("prompts", "source"));
    pass(10);
    wait.moved([blockOf(1, 1)]);
    pass(2);
    expect(meter.finish(worker)).toMatchObject({ busyMs: 12, channels: [{ waitMs: 0 }] });
  });

  test("what the engine begins while the call waits is busy, and so is what begins after that (CM1)", async () => {
    let ends: (() => void) | undefined;
    const { meter, pass } = handDriven(() => ends && new Promise<void>((resolve) => (ends = resolve)));
    const begin = () => {
      ends = () => {};
      meter.computes();
    };
    const end = async () => {
      const resolve = ends;
      ends = undefined;
      resolve?.();
      await turn();
    };
    const wait = awaited(meter.channelWait("prompts", "source"));
    for (const ms of [10, 20]) {
      pass(3);
      begin();
      pass(ms);
      await end();
    }
    pass(4);
    wait.moved([blockOf(1, 1)]);
    pass(1);
    const { busyMs, channels } = meter.finish(worker);
    expect(busyMs).toBe(31);
    expect(channels).toMatchObject([{ waitMs: 10 }]);
    expect(channels[0]?.askMs).toBeUndefined(); // it was no wait for an answer alone
    begin(); // left running
    await turn();
    expect(meter.finish(worker).busyMs).toBe(31);
  });

  test("without a word of it, the engine is asked where one of several waits begins or ends (CM1)", async () => {
    let isComputing = false;
    const { meter, pass } = handDriven(() => (isComputing ? new Promise(() => {}) : undefined));
    awaited(meter.channelWait("prompts", "source"));
    const lock = meter.lockWait();
    pass(3);
    lock[Symbol.dispose]();
    isComputing = true; // by what goes on with the lock
    await turn();
    pass(10);
    expect(meter.finish(worker)).toMatchObject({ busyMs: 10, lockWaitMs: 3 });
  });

  test("a worker whose `idle` is asynchronous is asked again and again, and others have their turns", async () => {
    let numAsked = 0;
    const { meter, pass } = handDriven(async () => void numAsked++);
    const wait = awaited(meter.channelWait("prompts", "source"));
    pass(10);
    await new Promise((resolve) => setTimeout(resolve, 1)); // it never came
    expect(numAsked).toBeGreaterThan(1);
    wait.moved([blockOf(1, 1)]);
    expect(meter.finish(worker).busyMs).toBe(10);
  });

  test("waits that overlap are waited for once", async () => {
    const { meter, pass } = handDriven();
    const first = awaited(meter.channelWait("a", "sink"));
    pass(2);
    const second = awaited(meter.channelWait("b", "sink"));
    pass(3);
    first.moved([blockOf(1, 1)]);
    pass(1); // what went on with it
    await turn();
    pass(4);
    second.moved([blockOf(1, 1)]);
    pass(5);
    expect(meter.finish(worker)).toMatchObject({ busyMs: 6, channels: [{ waitMs: 5 }, { waitMs: 7 }] });
  });
});

describe("a wait begins", () => {
  const asked = () => {
    let numAwaited = 0;
    const promise = new WhenAwaited(Promise.resolve(7), () => numAwaited++);
    return { promise, count: () => numAwaited };
  };

  test("where it is awaited, or goes on with what it brings", async () => {
    const ways: ((promise: Promise<number>) => unknown)[] = [
      async (promise) => expect(await promise).toBe(7),
      async (promise) => expect(await Promise.all([promise])).toEqual([7]),
      async (promise) => expect(await Promise.race([promise])).toBe(7),
      (promise) => promise.then((value) => value),
    ];
    for (const way of ways) {
      const { promise, count } = asked();
      await way(promise);
      expect(count()).toBe(1);
    }
  });

  test("not where it is guarded, and then where what that returned is awaited", async () => {
    const guards: ((promise: Promise<number>) => Promise<unknown>)[] = [
      (promise) => promise.catch(() => {}),
      (promise) => promise.finally(() => {}),
      (promise) => promise.then(undefined, () => {}),
      (promise) => promise.catch(() => {}).finally(() => {}),
    ];
    for (const guard of guards) {
      const { promise, count } = asked();
      const guarded = guard(promise);
      await turn();
      expect(count()).toBe(0);
      expect(await guarded).toBe(7);
      expect(count()).toBe(1);
    }
  });

  test("guards are called as a promise calls them", async () => {
    const failed = () => new WhenAwaited<number>(Promise.reject(new Error("no credit")), () => {});
    expect(await failed().catch(({ message }) => message)).toBe("no credit");
    let numSettled = 0;
    await expect(failed().finally(() => void numSettled++)).rejects.toThrow("no credit");
    await expect(asked().promise.finally(() => Promise.reject(new Error("late")))).rejects.toThrow("late");
    expect(await asked().promise.finally()).toBe(7);
    expect(numSettled).toBe(1);
  });
});
