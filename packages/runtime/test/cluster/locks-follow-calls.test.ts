import { TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import type { ChannelEnd } from "../../src/channel/channel-homes.ts";
import { LockService } from "../../src/device-lock/lock-service.ts";

const turns = async (num = 6) => {
  for (let i = 0; i < num; i++) await new Promise<void>((resolve) => setImmediate(resolve));
};
const end = (channel: string, role: "source" | "sink"): ChannelEnd => ({ channel, role, stream: "step-1" });

/** Workers `a`, `b`, … on one device of 100 bytes; what is moved on and off it is written down. */
function world(memory: Readonly<Record<string, number>>, failing: { onload?: string } = {}) {
  const moves: string[] = [];
  const locks = new LockService({
    timeoutMs: 1000,
    onProgress: () => {},
    onload: async (worker) => {
      if (failing.onload === worker) throw new Error("no memory left");
      moves.push(`+${worker}`);
      return memory[worker] as number;
    },
    offload: async (worker) => void moves.push(`-${worker}`),
    channelWaits: () => [],
  });
  locks.addDevice("cpu:0", 100);
  for (const [worker, bytes] of Object.entries(memory)) {
    locks.addWorker(worker, ["cpu:0"]);
    locks.reportMemory(worker, bytes);
  }
  let sequence = 0;
  const open = (worker: string, ends: readonly ChannelEnd[] = []) => {
    const call = `${++sequence}/0`;
    locks.openCall({ call, worker, sequence, ends });
    return call;
  };
  const acquire = (worker: string, call: string) => {
    const seen: { token?: number; error?: unknown } = {};
    const answer = locks.acquire({ call, worker }).then(
      ({ token }) => (seen.token = token),
      (error) => (seen.error = error),
    );
    return { seen, answer };
  };
  return { locks, moves, open, acquire };
}
const stale = expect.objectContaining({ code: "lock.stale-token" });

test("a holder that waits for data lends its devices, and has them back, loaded, before it goes on", async () => {
  const { locks, moves, open, acquire } = world({ a: 60, b: 60 });
  const producing = open("b", [end("x", "sink")]);
  const consuming = open("a", [end("x", "source")]);
  // L2 lets producers go first; this one computes without the device at first.
  locks.enqueued(producing);
  const first = acquire("a", consuming);
  await first.answer;
  const second = acquire("b", producing);
  await turns();
  expect(second.seen).toEqual({});
  const goOn = locks.waits(consuming, end("x", "source"), "take");
  await second.answer;
  expect(second.seen.token).toBeGreaterThan(first.seen.token as number); // L3
  let isBack = false;
  const back = goOn().then(() => (isBack = true));
  await turns();
  expect(isBack).toBe(false);
  locks.release({ call: producing, worker: "b", token: second.seen.token as number });
  await back;
  expect(moves).toEqual(["+a", "-a", "+b", "-b", "+a"]); // L4
  // The token that its worker knows still stands for what it holds.
  locks.release({ call: consuming, worker: "a", token: first.seen.token as number });
});

test("L4: nobody moves when nobody else wants the device meanwhile", async () => {
  const { locks, moves, open, acquire } = world({ a: 60, b: 30 });
  const call = open("a", [end("x", "source")]);
  await acquire("a", call).answer;
  for (let i = 0; i < 3; i++) await locks.waits(call, end("x", "source"), "take")();
  expect(moves).toEqual(["+a"]);
});

test("L3: a token is refused twice over, of another call, after its call ended, and after its worker died", async () => {
  const { locks, open, acquire } = world({ a: 10, b: 10 });
  const call = open("a");
  const { seen, answer } = acquire("a", call);
  await answer;
  const token = seen.token as number;
  expect(() => locks.release({ call: "77/0", worker: "a", token })).toThrow(stale);
  expect(() => locks.release({ call, worker: "a", token: token + 1 })).toThrow(stale);
  locks.release({ call, worker: "a", token });
  expect(() => locks.release({ call, worker: "a", token })).toThrow(stale);

  const next = acquire("a", call);
  await next.answer;
  locks.workerDied("a");
  locks.startOver(call);
  expect(() => locks.release({ call, worker: "a", token: next.seen.token as number })).toThrow(stale);
  const other = acquire("b", open("b"));
  await other.answer;
  expect(other.seen.token).toBeGreaterThan(next.seen.token as number);

  locks.closeCall(call);
  await acquire("a", call).answer;
  expect(acquire("a", call).seen).toEqual({});
  const late = acquire("a", call);
  await late.answer;
  expect(late.seen.error).toEqual(stale);
  const borrowed = acquire("b", call);
  await borrowed.answer;
  expect(borrowed.seen.error).toEqual(stale);
});

test("a call that ends while it waits makes way, and one that ends while it holds frees", async () => {
  const { locks, open, acquire } = world({ a: 60, b: 60, c: 60 });
  const [one, two, three] = [open("a"), open("b"), open("c")];
  await acquire("a", one).answer;
  const waiting = acquire("b", two);
  const last = acquire("c", three);
  locks.closeCall(two);
  locks.closeCall(one);
  await last.answer;
  expect(last.seen.token).toBeDefined();
  expect(waiting.seen.token).toBeUndefined();
});

test("an onload that fails refuses who was to be granted, with the cause, and the device is free for others", async () => {
  const { open, acquire } = world({ a: 60, b: 60 }, { onload: "a" });
  const refused = acquire("a", open("a"));
  await refused.answer;
  expect(refused.seen.error).toMatchObject({ code: "call.failed", message: expect.stringContaining("no memory left") });
  const granted = acquire("b", open("b"));
  await granted.answer;
  expect(granted.seen.token).toBeDefined();
});

test("L5: a wait that is too long is refused when time is told, and everybody when the run ends", async () => {
  const { locks, open, acquire } = world({ a: 60, b: 60, c: 60 });
  await acquire("a", open("a")).answer;
  const slow = acquire("b", open("b"));
  locks.tick(performance.now() + 500);
  await turns();
  expect(slow.seen).toEqual({});
  locks.tick(performance.now() + 5000);
  await slow.answer;
  expect(slow.seen.error).toMatchObject({ code: "lock.timeout" });
  const ended = acquire("c", open("c"));
  const over = new TreadleError("run.stopped", "over");
  locks.fail(over);
  await ended.answer;
  expect(ended.seen.error).toBe(over);
});
