import { TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import type { ChannelEnd } from "../../src/runner/runner-messages.ts";
import { ExchangeWorld } from "./exchange-world.ts";

const turns = async (num = 8) => {
  for (let i = 0; i < num; i++) await new Promise<void>((resolve) => setImmediate(resolve));
};
const end = (channel: string, role: "source" | "sink"): ChannelEnd => ({ channel, role, stream: "step-1" });
const stale = expect.objectContaining({ code: "lock.stale-token" });

/** Workers `a`, `b`, … on one device of 100 bytes; what is moved on and off it is written down. */
function worldOf(memory: Readonly<Record<string, number>>, options: { failing?: string; lockTimeoutMs?: number } = {}) {
  const world = new ExchangeWorld(memory, options);
  world.define({ name: "x" });
  let sequence = 0;
  const open = (worker: string, ends: readonly ChannelEnd[] = []) => {
    const call = `${++sequence}/0`;
    world.open(call, worker, ends);
    return call;
  };
  const acquire = (worker: string, call: string) => {
    const seen: { token?: number; error?: unknown } = {};
    const answer = world.acquire(call, worker).then(
      (token) => (seen.token = token),
      (error) => (seen.error = error),
    );
    return { seen, answer };
  };
  return { world, open, acquire };
}

test("EX3: a holder that waits for data lends its devices, and gets the data only when it has them back, loaded", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const producing = open("b", [end("x", "sink")]);
  const consuming = open("a", [end("x", "source")]);
  // L2 lets producers go first; this one computes without the device at first.
  await world.put(producing, "x", "early");
  const first = acquire("a", consuming);
  await first.answer;
  expect(await world.take(consuming, "x", 1)).toEqual(["early"]);
  const second = acquire("b", producing);
  await turns();
  expect(second.seen).toEqual({});
  let got: unknown;
  const back = world.take(consuming, "x", 1).then((items) => (got = items));
  await second.answer;
  expect(second.seen.token).toBeGreaterThan(first.seen.token as number); // L3
  await world.put(producing, "x", "late");
  await turns();
  expect(got).toBeUndefined();
  world.release(producing, "b", second.seen.token as number);
  await back;
  expect(got).toEqual(["late"]);
  expect(world.moves).toEqual(["+a", "-a", "+b", "-b", "+a"]); // L4
  // EX5: the token that its worker knows still stands for what it holds.
  world.release(consuming, "a", first.seen.token as number);
});

test("L4: nobody moves when nobody else wants the device meanwhile", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 30 });
  const producing = open("b", [end("x", "sink")]);
  const call = open("a", [end("x", "source")]);
  await world.put(producing, "x", 0);
  await acquire("a", call).answer;
  await world.take(call, "x", 1);
  for (let i = 1; i < 4; i++) {
    const taking = world.take(call, "x", 1);
    await world.put(producing, "x", i);
    expect(await taking).toEqual([i]);
  }
  expect(world.moves).toEqual(["+a"]);
});

test("EX3: what a call waits for fails it only when it has its devices back, since it may go on computing", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const producing = open("b", [end("x", "sink")]);
  const consuming = open("a", [end("x", "source")]);
  await world.put(producing, "x", 1);
  await acquire("a", consuming).answer;
  await world.take(consuming, "x", 1);
  const holder = acquire("b", producing);
  let failure: unknown;
  const taking = world.take(consuming, "x", 1).catch((error) => (failure = error));
  await holder.answer;
  const other = open("b");
  const next = acquire("b", other);
  world.close(producing, { ok: false, error: new TreadleError("call.failed", "no more") });
  await taking;
  expect(failure).toMatchObject({ code: "channel.producer-failed" });
  await turns();
  expect(next.seen).toEqual({}); // the consumer has the device again, and has not released it
  world.close(consuming, { ok: false, error: failure });
  await next.answer;
});

test.each([
  ["while it waits for both", false],
  ["when it has one of them", true],
])("L2: a call without devices that waits for two streams depends on the makers of both, %s", async (_, isFed) => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  for (const name of ["y", "m"]) world.define({ name });
  world.open("runner:y:1", "runner", [end("y", "sink")]);
  const both = open("a", [end("m", "sink"), end("x", "source"), end("y", "source")]);
  // It consumes what the first one makes, which goes first on the device; but that one waits for what only it can make.
  const other = open("b", [end("m", "source"), end("x", "sink")]);
  const taking = ["x", "y"].map((channel) => world.take(both, channel, 1));
  if (isFed) {
    await world.put("runner:y:1", "y", 1);
    expect(await taking[1]).toEqual([1]);
  }
  const { seen } = acquire("b", other);
  await turns();
  expect(seen.token).toBeDefined();
  await world.put(other, "x", 2);
  expect(await taking[0]).toEqual([2]);
});

test("EX4: of calls that start over together none is given what another gives back, and each has its devices again", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const feed = "runner:x:1";
  world.open(feed, "runner", [end("x", "sink")]);
  const [one, two] = [open("a", [end("x", "source")]), open("b", [end("x", "source")])];
  await world.put(feed, "x", 1);
  await acquire("a", one).answer;
  expect(await world.take(one, "x", 1)).toEqual([1]);
  const waiting = [world.take(one, "x", 1, false)]; // holds the item, waits, and lends
  await acquire("b", two).answer;
  waiting.push(world.take(two, "x", 1));
  const seen = waiting.map((each) => each.catch(({ code }) => code));
  world.startOverTogether([
    { call: one, worker: "a" },
    { call: two, worker: "b" },
  ]);
  expect(await Promise.all(seen)).toEqual(["call.cancelled", "call.cancelled"]);
  for (const [worker, call] of [["b", two] as const, ["a", one] as const]) {
    const again = acquire(worker, call);
    await again.answer;
    expect(again.seen.token).toBeDefined();
    world.release(call, worker, again.seen.token as number);
  }
});

test("L3: a token is refused twice over, of another call, after its call ended, and after its worker died", async () => {
  const { world, open, acquire } = worldOf({ a: 10, b: 10 });
  const call = open("a");
  const { seen, answer } = acquire("a", call);
  await answer;
  const token = seen.token as number;
  expect(() => world.release("77/0", "a", token)).toThrow(stale);
  expect(() => world.release(call, "a", token + 1)).toThrow(stale);
  world.release(call, "a", token);
  expect(() => world.release(call, "a", token)).toThrow(stale);

  const next = acquire("a", call);
  await next.answer;
  world.workerDied("a");
  world.startOver(call, "a");
  expect(() => world.release(call, "a", next.seen.token as number)).toThrow(stale);
  const other = acquire("b", open("b"));
  await other.answer;
  expect(other.seen.token).toBeGreaterThan(next.seen.token as number);

  world.close(call);
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
  const { world, open, acquire } = worldOf({ a: 60, b: 60, c: 60 });
  const [one, two, three] = [open("a"), open("b"), open("c")];
  await acquire("a", one).answer;
  const waiting = acquire("b", two);
  const last = acquire("c", three);
  world.close(two);
  world.close(one);
  await last.answer;
  expect(last.seen.token).toBeDefined();
  expect(waiting.seen.token).toBeUndefined();
});

test("an onload that fails refuses who was to be granted, with the cause, and the device is free for others", async () => {
  const { open, acquire } = worldOf({ a: 60, b: 60 }, { failing: "a" });
  const refused = acquire("a", open("a"));
  await refused.answer;
  expect(refused.seen.error).toMatchObject({ code: "call.failed", message: expect.stringContaining("no memory left") });
  const granted = acquire("b", open("b"));
  await granted.answer;
  expect(granted.seen.token).toBeDefined();
});

test("L5: a wait that is too long is refused when time is told, and everybody when the run ends", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60, c: 60 }, { lockTimeoutMs: 1000 });
  await acquire("a", open("a")).answer;
  const slow = acquire("b", open("b"));
  world.tick(500);
  await turns();
  expect(slow.seen).toEqual({});
  world.tick(5000);
  await slow.answer;
  expect(slow.seen.error).toMatchObject({ code: "lock.timeout" });
  const ended = acquire("c", open("c"));
  const over = new TreadleError("run.stopped", "over");
  world.fail(over);
  await ended.answer;
  expect(ended.seen.error).toBe(over);
});

test("EX3: a call whose engine computes keeps its devices while it waits, until it says that the engine is idle", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const call = open("a", [end("x", "source")]);
  world.open("runner:x:1", "runner", [end("x", "sink")]);
  await acquire("a", call).answer;
  const other = open("b");
  const next = acquire("b", other);
  let got: unknown;
  const taking = world.take(call, "x", 1, true, { keeps: "for-now" }).then((items) => (got = items));
  await turns();
  expect(next.seen).toEqual({});
  world.exchange.lend(call, "b", 0); // nobody else says it for it
  world.exchange.lend(call, "a", 1); // it has been answered since, or so it would seem
  await turns();
  expect(next.seen).toEqual({});
  world.exchange.lend(call, "a", 0);
  await next.answer;
  await world.put("runner:x:1", "x", 1);
  await turns();
  expect(got).toBeUndefined();
  world.release(other, "b", next.seen.token as number);
  await taking;
  expect(got).toEqual([1]);
  expect(world.moves).toEqual(["+a", "-a", "+b", "-b", "+a"]);
});

test("EX3: what was said of an idle engine counts no more once an answer may have set it to work", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const call = open("a", [end("x", "source")]);
  world.open("runner:x:1", "runner", [end("x", "sink")]);
  await acquire("a", call).answer;
  const next = acquire("b", open("b"));
  const first = world.take(call, "x", 1, true, { keeps: "for-now" });
  const second = world.take(call, "x", 1, false, { keeps: "for-now" });
  await world.put("runner:x:1", "x", 1);
  expect(await first).toEqual([1]);
  world.exchange.lend(call, "a", 0); // sent before the answer came
  await turns();
  expect(next.seen).toEqual({});
  world.exchange.lend(call, "a", 1);
  await next.answer;
  expect(next.seen.token).toBeDefined();
  world.close("runner:x:1");
  second.catch(() => {});
});

test("L5: a call that keeps its devices while it waits for one that needs them is named as what it is, a deadlock", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 }, { lockTimeoutMs: 100 });
  const producing = open("b", [end("x", "sink")]);
  const consuming = open("a", [end("x", "source")]);
  await world.put(producing, "x", 1);
  await acquire("a", consuming).answer;
  await world.take(consuming, "x", 1);
  world.take(consuming, "x", 1, true, { keeps: "throughout" }).catch(() => {});
  const producer = acquire("b", producing);
  world.tick(101);
  await producer.answer;
  expect(producer.seen.error).toMatchObject({
    code: "lock.timeout",
    message: expect.stringContaining("this is a deadlock: 'b' → 'a' → 'b'"),
  });
});

test("EX3: what is said of an idle engine with a wait counts no more, either, once an answer may have set it to work", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  world.define({ name: "y" });
  const call = open("a", [end("x", "source"), end("y", "source")]);
  for (const channel of ["x", "y"]) world.open(`runner:${channel}:1`, "runner", [end(channel, "sink")]);
  await acquire("a", call).answer;
  const next = acquire("b", open("b"));
  await world.put("runner:x:1", "x", 1);
  expect(await world.take(call, "x", 1, false, { numAnswered: 0 })).toEqual([1]);
  world.take(call, "y", 1, false, { numAnswered: 0 }).catch(() => {}); // asked before that answer came
  await turns();
  expect(next.seen).toEqual({});
  world.exchange.lend(call, "a", 1);
  await next.answer;
  expect(next.seen.token).toBeDefined();
});

test("EX3: a call that starts over in another process is listened to from its first wait on", async () => {
  const { world, open, acquire } = worldOf({ a: 60, b: 60 });
  const call = open("a", [end("x", "source")]);
  world.open("runner:x:1", "runner", [end("x", "sink")]);
  await acquire("a", call).answer;
  const takes = [1, 2].map(() => world.take(call, "x", 1, false, { keeps: "for-now" }).catch(({ code }) => code));
  world.workerDied("a");
  world.startOver(call, "a");
  expect(await Promise.all(takes)).toEqual(["call.cancelled", "call.cancelled"]);
  await acquire("a", call).answer;
  const next = acquire("b", open("b"));
  world.take(call, "x", 1, false, { keeps: "for-now" }).catch(() => {});
  await turns();
  expect(next.seen).toEqual({});
  world.exchange.lend(call, "a", 0);
  await next.answer;
  expect(next.seen.token).toBeDefined();
});

test("L2: a call that is about to lend its devices waits for nobody yet, so that nobody goes first for its sake", async () => {
  const { world, open, acquire } = worldOf({ simulator: 10, scorer0: 10 });
  for (const name of ["actions", "seen", "acted", "judged"]) world.define({ name });
  world.exchange.addDevice("cpu:1", 100);
  for (const worker of ["judge", "scorer1"]) {
    world.exchange.addWorker(worker, ["cpu:1"]);
    world.exchange.reportMemory(worker, 60);
  }
  const simulator = open("simulator", [end("actions", "source"), end("seen", "sink")]);
  const policy = open("policy", [end("seen", "source"), end("actions", "sink"), end("acted", "sink")]);
  const judge = open("judge", [end("acted", "source"), end("judged", "sink")]);
  const scorers = [open("scorer0", [end("judged", "source")]), open("scorer1", [end("judged", "source")])] as const;
  const take = (call: string, channel: string, keeps?: "for-now") =>
    void world.take(call, channel, 1, true, keeps ? { keeps } : {}).catch(() => {});
  await acquire("simulator", simulator).answer;
  await world.put(simulator, "seen", 1);
  take(simulator, "actions");
  await world.take(policy, "seen", 1);
  await acquire("judge", judge).answer;
  take(judge, "acted");
  await acquire("scorer0", scorers[0]).answer; // the simulator has lent them, with something for others
  const second = acquire("scorer1", scorers[1]);
  await world.put(policy, "actions", 1); // the simulator wants its device again
  take(policy, "seen");
  take(scorers[0], "judged", "for-now");
  await turns();
  expect(second.seen).toEqual({}); // the judge has put nothing for it
  world.exchange.lend(scorers[0], "scorer0", 0);
  await turns();
  expect(second.seen).toEqual({}); // and waits for the simulator, which goes on
  await world.put(simulator, "seen", 2);
  await world.put(policy, "acted", 1);
  await turns();
  await world.put(judge, "judged", 1);
  take(judge, "acted");
  await second.answer;
});

test.each(["released", "asked for again"])(
  "L2: a call that kept its devices for now waits like others once they are %s, so that its producer blocks nobody for its sake",
  async (then) => {
    const { world, open, acquire } = worldOf({ first: 10, last: 10 });
    for (const name of ["asked", "seen", "back"]) world.define({ name });
    world.exchange.addDevice("cpu:1", 100);
    world.exchange.addWorker("middle", ["cpu:1"]);
    world.exchange.reportMemory("middle", 10);
    const first = open("first", [end("back", "source"), end("asked", "sink")]);
    const middle = open("middle", [end("seen", "source"), end("back", "sink")]);
    const last = open("last", [end("asked", "source"), end("seen", "sink")]);
    const quiet = (promise: Promise<unknown>) => void promise.catch(() => {});
    const held = acquire("middle", middle);
    await held.answer;
    quiet(world.take(middle, "seen", 1, true, { keeps: "for-now" })); // asked for ahead
    quiet(world.take(first, "back", 1)); // before it asks for its device
    const blocked = acquire("last", last);
    await turns();
    if (then === "released") world.release(middle, "middle", held.seen.token as number);
    else quiet(acquire("middle", middle).answer);
    await turns();
    expect(blocked.seen.token).toBeDefined(); // `first` waits for `middle`, and that for it
  },
);
