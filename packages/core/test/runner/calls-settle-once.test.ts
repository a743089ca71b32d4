import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";
import { maxAttempts } from "../../src/runner/runner-state.ts";
import { peerDied, RunnerWorld } from "./runner-world.ts";

const settled = (effects: readonly RunnerEffect[]) =>
  effects.flatMap((effect) => (effect.type === "settle" || effect.type === "settle-failed" ? [effect.call] : []));

describe("calls and deaths", () => {
  test("RK1: calls wait for a process, reach it in order, and reach the next one in order, too", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.call([0]);
    world.call([0]);
    expect(world.sent).toEqual([]);
    world.up("actor/0");
    world.returned("1/0");
    world.call([0]);
    world.die("actor/0");
    world.up("actor/0");
    expect(world.sent).toEqual(["1/0 to 0", "2/0 to 0", "3/0 to 0", "2/0 to 1", "3/0 to 1"]);
    expect(settled(world.effects)).toEqual(["1/0"]);
  });

  test("RK2: what a process says that was given up changes nothing", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.up("actor/0");
    world.call([0]);
    const old = world.id("actor/0");
    world.die("actor/0");
    for (const input of [
      { type: "returned", ...old, call: "1/0" },
      { type: "threw", ...old, call: "1/0", error: new TreadleError("call.failed", "late") },
      { type: "ready", ...old, memoryBytes: 9 },
      { type: "exited", ...old, code: 0, signal: null, logTail: [] },
      { type: "onloaded", ...old, memoryBytes: 1 },
    ] as const)
      expect(world.feed(input)).toEqual([]);
    world.up("actor/0");
    expect(settled(world.returned("1/0"))).toEqual(["1/0"]);
  });

  test("C1: a process that is not to be used any more is discarded before its calls start over, and its peers told", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    const types = world.die("actor/0").map(({ type }) => type);
    expect(types).toEqual(["died", "discard", "peer-died", "launch"]);
    expect(world.all("peer-died")).toMatchObject([{ worker: "actor/1", dead: "actor/0" }]);
  });

  test("CB1: a rank that has answered answers again when another dies before the call ended everywhere", () => {
    const world = new RunnerWorld();
    world.component(2, { restart: "group" });
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    expect(settled(world.returned("1/0"))).toEqual([]);
    world.die("actor/1");
    world.up("actor/0");
    world.up("actor/1");
    expect(settled(world.returned("1/1"))).toEqual([]);
    expect(settled(world.returned("1/0"))).toEqual(["1/0", "1/1"]);
  });

  test("RS5: whatever dies and whenever, each rank's call settles once, and a group's together", () => {
    const action = fc.record({
      kind: fc.constantFrom("up", "die", "reply", "call", "throw"),
      rank: fc.nat(2),
      at: fc.nat(20),
    });
    fc.assert(
      fc.property(fc.boolean(), fc.array(action, { maxLength: 60 }), (isGang, actions) => {
        const world = new RunnerWorld({ supervision: { ...baseSupervision, maxRestarts: 1000 } });
        world.component(3, isGang ? { restart: "group" } : {});
        for (const { kind, rank, at } of actions) {
          world.nowMs += 1;
          const worker = `actor/${rank}`;
          const phase = world.state.rank(worker)?.phase;
          const open = world.all("send").filter((each) => each.worker === worker);
          const call = open[at % Math.max(1, open.length)]?.call;
          if (kind === "up" && phase === "starting") world.up(worker);
          if (kind === "die" && phase !== "down") world.die(worker);
          if (kind === "call" && at < 6) world.call([0, 1, 2]);
          if (kind === "reply" && call) world.returned(call);
          if (kind === "throw" && call && at < 2) world.threw(call, peerDied("actor/1"));
        }
        const once = settled(world.effects);
        expect(new Set(once).size).toBe(once.length);
        // Everybody comes back, and everything that is open is answered.
        for (let round = 0; round < 8; round++) {
          world.nowMs += 100_000;
          world.feed({ type: "tick" });
          for (const { worker, phase } of world.state.ranks) if (phase === "starting") world.up(worker);
          for (const { call } of world.all("send")) world.returned(call);
        }
        expect(world.state.hasOpenCalls).toBe(false);
        const calls = new Set(world.all("send").map(({ call }) => call));
        expect(new Set(settled(world.effects))).toEqual(calls);
        expect(settled(world.effects)).toHaveLength(calls.size);
      }),
      { numRuns: 300 },
    );
  });
});

describe("what a call has and may have", () => {
  const stream = "step-1";
  const call = (world: RunnerWorld, sequence: number, rank: number, role: "source" | "sink") =>
    world.feed({
      type: "call",
      sequence,
      component: "actor",
      method: "work",
      ranks: [rank],
      ends: [{ channel: "x", role, stream }],
    });
  const take = (world: RunnerWorld, request: number, from: string, id: string) =>
    world.feed({
      type: "take",
      request,
      from: world.id(from),
      call: id,
      channel: "x",
      maxItems: 1,
      minItems: 1,
      acknowledge: true,
    });
  const worldOf = (size: number) => {
    const world = new RunnerWorld();
    world.feed({ type: "define-channel", name: "x", capacity: 10, pick: "fifo" });
    world.component(size);
    return world;
  };

  test("EX1: the call of a rank that is still starting keeps its stream open, and comes first on a device", () => {
    const world = worldOf(3);
    world.up("actor/0");
    world.up("actor/2");
    call(world, 1, 0, "sink");
    call(world, 2, 1, "sink"); // its rank has no process yet
    call(world, 3, 2, "source");
    world.returned("1/0");
    expect(take(world, 1, "actor/2", "3/2")).toEqual([]); // no end of the stream
    const acquired = world.feed({ type: "acquire", request: 2, from: world.id("actor/2"), call: "3/2" });
    expect(acquired).toEqual([]); // its producer has not had its turn
    world.up("actor/1");
    world.returned("2/1");
    expect(world.all("answer")).toMatchObject([{ request: 1, answer: { type: "end-of-stream" } }]);
    expect(world.all("onload")).toMatchObject([{ worker: "actor/2" }]);
  });

  test("RS2: the device and the item of a dead process are another's at once, before its call starts over", () => {
    const world = worldOf(3);
    for (const worker of ["actor/0", "actor/1", "actor/2"]) world.up(worker);
    call(world, 1, 0, "sink");
    const put = { items: [{ payload: "the item", sizeBytes: 1 }] };
    world.feed({ type: "put", request: 1, from: world.id("actor/0"), call: "1/0", channel: "x", ...put });
    call(world, 2, 1, "source");
    call(world, 3, 2, "source");
    take(world, 2, "actor/1", "2/1");
    world.feed({ type: "acquire", request: 3, from: world.id("actor/1"), call: "2/1" });
    world.feed({ type: "onloaded", ...world.id("actor/1"), memoryBytes: 0 });
    take(world, 4, "actor/2", "3/2");
    world.feed({ type: "acquire", request: 5, from: world.id("actor/2"), call: "3/2" });
    const answered = () => world.all("answer").map(({ request }) => request);
    expect(answered()).toEqual([1, 2, 3]);
    const died = world.die("actor/1");
    expect(died).toContainEqual(expect.objectContaining({ type: "answer", request: 4 }));
    expect(died).toContainEqual(expect.objectContaining({ type: "onload", worker: "actor/2" }));
    expect(died.filter(({ type }) => type === "peer-died")).toMatchObject([
      { worker: "actor/0", dead: "actor/1" },
      { worker: "actor/2", dead: "actor/1" },
    ]);
    expect(died.at(-1)).toMatchObject({ type: "launch", worker: "actor/1" });
  });
});

describe("a call that fails because its peer died", () => {
  test("is sent again when everybody is back and its pause is over, and at most so often", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.call([0]);
    for (let attempt = 1; attempt < maxAttempts; attempt++) {
      expect(world.threw("1/0", peerDied("actor/1"))).toMatchObject([{ type: "wake" }]);
      world.feed({ type: "tick" });
      expect(world.sent).toHaveLength(attempt); // its pause is not over
      world.nowMs += Math.min(50 * 4 ** attempt, 1500);
      if (attempt === 2) {
        world.die("actor/1");
        world.feed({ type: "tick" });
        expect(world.sent).toHaveLength(attempt); // nor is everybody back
        world.up("actor/1");
      } else world.feed({ type: "tick" });
      expect(world.sent).toHaveLength(attempt + 1);
    }
    expect(world.threw("1/0", peerDied("actor/1")).map(({ type }) => type)).toEqual([
      "give-up",
      "settle-failed",
      "failed",
      "forget",
    ]);
  });

  test("RS6: ends its process where its fellow ranks hold one state with it, so that all of them start over", () => {
    const world = new RunnerWorld();
    world.component(2, { restart: "group" });
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    world.returned("1/0");
    expect(world.threw("1/1", peerDied("rollout/0"))).toMatchObject([{ type: "end-process", worker: "actor/1" }]);
    world.die("actor/1");
    world.up("actor/0");
    world.up("actor/1");
    expect(world.sent.slice(2)).toEqual(["1/0 to 1", "1/1 to 1"]);
    // One rank alone has nobody who could be done before it.
    world.returned("1/0");
    world.returned("1/1");
    world.call([0]);
    expect(world.threw("2/0", peerDied("rollout/0"))).toMatchObject([{ type: "wake" }]);
  });

  test("RK3: is sent once when its own process dies while it waits for the peer", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.call([0]);
    world.threw("1/0", peerDied("actor/1"));
    world.die("actor/0");
    world.up("actor/0");
    world.nowMs += 1000;
    world.feed({ type: "tick" });
    expect(world.sent).toEqual(["1/0 to 0", "1/0 to 1"]);
  });
});

describe("failures and the end", () => {
  test("S1: a method that throws fails its call on that rank, the first failure is kept, and others still settle", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    const boom = new TreadleError("call.failed", "boom");
    world.threw("1/0", boom);
    expect(world.state.failure).toBe(boom);
    world.returned("1/1");
    world.call([0]);
    world.threw("2/0", new TreadleError("call.failed", "later"));
    expect(world.state.failure).toBe(boom);
    expect(world.all("failed")).toHaveLength(1);
    expect(world.all("settle-failed")).toMatchObject([{ call: "1/0", error: boom }, { call: "2/0" }]);
    expect(world.all("settle")).toMatchObject([{ call: "1/1" }]);
    expect(world.state.hasOpenCalls).toBe(false);
  });

  test("CB1: a failure on one rank of a group fails those that have answered already", () => {
    const world = new RunnerWorld();
    world.component(2, { restart: "group" });
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    world.returned("1/0");
    const boom = new TreadleError("call.failed", "boom");
    expect(settled(world.threw("1/1", boom))).toEqual(["1/1", "1/0"]);
    expect(world.all("settle-failed").map(({ error }) => error)).toEqual([boom, boom]);
  });

  test("a cancelled call is over on every rank, fails no run, and is not sent again", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1]);
    const cancelled = new TreadleError("call.cancelled", "because");
    world.threw("1/0", cancelled);
    world.threw("1/1", cancelled);
    expect(world.state.failure).toBeUndefined();
    expect(world.state.hasOpenCalls).toBe(false);
    world.die("actor/0");
    world.up("actor/0");
    expect(world.sent).toEqual(["1/0 to 0", "1/1 to 0"]);
  });

  test("at the end everything that is open is told, whoever asks later too, and exits do not count", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.call([0]);
    const over = new TreadleError("run.stopped", "over");
    world.feed({ type: "end", error: over });
    expect(world.all("settle-failed")).toMatchObject([{ call: "1/0", error: over }]);
    expect(world.die("actor/0")).toEqual([]);
    const late = world.feed({ type: "acquire", request: 7, from: world.id("actor/0"), call: "1/0" });
    expect(late).toMatchObject([{ type: "reject", request: 7, error: { code: "run.stopped" } }]);
  });
});

describe("replays", () => {
  test("CB2, CB3: the last successful call of a replayed method is repeated on a restarted rank, before any other", () => {
    const world = new RunnerWorld();
    world.component(2, { replays: ["pull"] });
    world.up("actor/0");
    world.up("actor/1");
    for (const sequence of [world.call([0, 1], "pull"), world.call([0, 1], "pull")]) {
      world.returned(`${sequence}/0`);
      world.returned(`${sequence}/1`);
    }
    expect(world.all("forget")).toMatchObject([{ sequence: 1 }]);
    world.call([0]);
    world.die("actor/0");
    world.up("actor/0");
    expect(world.all("replay")).toMatchObject([{ worker: "actor/0", incarnation: 1, call: "4/0", of: 2 }]);
    expect(world.sent.at(-1)).toBe("3/0 to 0");
    world.feed({ type: "replayed", ...world.id("actor/0"), call: "4/0" });
    expect(world.sent.at(-1)).toBe("3/0 to 1");
  });

  test("a rank repeats a call that it has answered, also while its mates have not", () => {
    const world = new RunnerWorld();
    world.component(2, { replays: ["pull"] });
    world.up("actor/0");
    world.up("actor/1");
    world.call([0, 1], "pull");
    world.returned("1/0");
    world.die("actor/0");
    world.up("actor/0");
    expect(world.all("replay")).toMatchObject([{ of: 1 }]);
  });

  test("a replay that fails ends its process, with the reason", () => {
    const world = new RunnerWorld();
    world.component(1, { replays: ["pull"] });
    world.up("actor/0");
    world.call([0], "pull");
    world.returned("1/0");
    world.die("actor/0");
    world.up("actor/0");
    const failure = { code: "call.failed", message: "no weights" };
    const effects = world.feed({ type: "replayed", ...world.id("actor/0"), call: "2/0", failure });
    expect(effects).toMatchObject([{ type: "end-process", verdict: failure }]);
  });
});

describe("starts and places", () => {
  test("a start that is late is ended once, and says how far it came", () => {
    const world = new RunnerWorld();
    world.component(2);
    for (const worker of ["actor/0", "actor/1"]) world.feed({ type: "launched", ...world.id(worker) });
    world.feed({ type: "connected", ...world.id("actor/1") });
    world.nowMs = 1001;
    const verdicts = world.feed({ type: "tick" }).filter(({ type }) => type === "end-process");
    expect(verdicts).toMatchObject([
      { worker: "actor/0", verdict: { code: "runner.unreachable" } },
      { worker: "actor/1", verdict: { code: "worker.unresponsive" } },
    ]);
    world.nowMs = 2000;
    expect(world.feed({ type: "tick" })).toEqual([]);
  });

  test("RT1: a rank waits for its node, then moves to one that has room, and without any fails the run", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.up("actor/0");
    world.nodes();
    world.die("actor/0");
    expect(world.state.rank("actor/0")?.phase).toBe("placing");
    world.nodes("b");
    expect(world.state.rank("actor/0")?.phase).toBe("placing"); // its own may come back
    world.nowMs = 100;
    expect(world.feed({ type: "tick" })).toMatchObject([
      { type: "moved", from: { node: "node:0" }, to: { node: "b" } },
      { type: "launch", place: { node: "b" } },
    ]);
    world.nodes();
    world.die("actor/0");
    world.nowMs = 200;
    world.feed({ type: "tick" });
    world.nowMs = 1300;
    world.feed({ type: "tick" });
    expect(world.state.failure).toMatchObject({ code: "node.lost" });
  });

  test("RT1: a rank stays where it is when its node comes back in time", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.nodes();
    world.die("actor/0");
    expect(world.nodes("b", "node:0")).toMatchObject([{ type: "launch", place: { node: "node:0" } }]);
  });
});

test("devices that are told again keep who is loaded on them", () => {
  const world = new RunnerWorld();
  world.component(2);
  for (const worker of ["actor/0", "actor/1"]) world.up(worker);
  const acquire = (rank: number) => {
    const sequence = world.call([rank]);
    const from = world.id(`actor/${rank}`);
    return world.feed({ type: "acquire", request: sequence, from, call: `${sequence}/${rank}` });
  };
  expect(acquire(0)).toMatchObject([{ type: "onload", worker: "actor/0" }]);
  world.nodes("node:0");
  expect(acquire(1)).toEqual([]); // L1: it is prepared for the other
});

describe("changes of plan (RS3)", () => {
  const places = (...devices: string[]) => ({
    actor: { ranks: devices.map((device) => ({ node: "node:0", devices: [device] })) },
  });

  test("ranks that move end in order and start again under greater numbers; those that stay are told the size", () => {
    const world = new RunnerWorld();
    world.component(2, { resizes: true });
    world.up("actor/0");
    world.up("actor/1");
    world.feed({ type: "adopt", components: places("node:0/cpu:0", "node:0/cpu:1", "node:0/cpu:1") });
    expect(world.all("stop-process")).toMatchObject([{ worker: "actor/1" }]);
    world.die("actor/1");
    expect(world.all("resize")).toMatchObject([{ worker: "actor/0", rankDevices: [1, 1, 1] }]);
    world.feed({ type: "resized", ...world.id("actor/0") });
    expect(world.all("adopted")).toEqual([]);
    expect(world.id("actor/1").incarnation).toBeGreaterThan(0);
    world.up("actor/1");
    world.up("actor/2");
    expect(world.all("adopted")).toHaveLength(1);
    expect(world.state.restarts).toBe(0);
  });

  test("RS4: whoever pulls from others when it starts is started when those others are ready", () => {
    const world = new RunnerWorld();
    for (const [component, replays] of [
      ["puller", ["pull"]],
      ["actor", []],
    ] as const)
      world.feed({ type: "add-component", component, restart: "rank", resizes: false, replays });
    const layout = (device: string) => {
      const ranks = [{ node: "node:0", devices: [device] }];
      return { puller: { ranks }, actor: { ranks } };
    };
    world.feed({ type: "lay-out", components: layout("node:0/cpu:0") });
    for (const worker of ["actor/0", "puller/0"]) world.up(worker);
    const launched = () => world.all("launch").map(({ worker }) => worker);
    const before = launched().length;
    world.feed({ type: "adopt", components: layout("node:0/cpu:1") });
    world.die("puller/0");
    world.die("actor/0");
    expect(launched().slice(before)).toEqual(["actor/0"]);
    world.up("actor/0");
    expect(launched().slice(before)).toEqual(["actor/0", "puller/0"]);
    world.up("puller/0");
    expect(world.all("adopted")).toHaveLength(1);
  });

  test("is refused while a call is open, and nothing has changed then", () => {
    const world = new RunnerWorld();
    world.component(1);
    world.up("actor/0");
    world.call([0]);
    expect(() => world.feed({ type: "adopt", components: places("node:0/cpu:1") })).toThrow("while no call is open");
    expect(world.all("stop-process")).toEqual([]);
  });

  test("a rank that dies while it is told the size starts with it, and is waited for no more", () => {
    const world = new RunnerWorld();
    world.component(2, { resizes: true });
    world.up("actor/0");
    world.up("actor/1");
    world.feed({ type: "adopt", components: places("node:0/cpu:0", "node:0/cpu:1") });
    const told = world.id("actor/0");
    world.die("actor/1");
    world.die("actor/0");
    world.feed({ type: "resized", ...told }); // by the one that is gone
    world.up("actor/0");
    world.up("actor/1");
    expect(world.all("adopted")).toHaveLength(1);
  });

  test("a rank that dies meanwhile does not keep the change from ending", () => {
    const world = new RunnerWorld();
    world.component(2);
    world.up("actor/0");
    world.up("actor/1");
    world.die("actor/1");
    world.feed({ type: "adopt", components: places("node:0/cpu:1", "node:0/cpu:1") });
    expect(world.all("stop-process")).toEqual([]); // one that just starts could not be ended before it is up
    world.up("actor/1");
    expect(world.all("stop-process")).toHaveLength(2);
    world.die("actor/0");
    world.die("actor/1");
    world.up("actor/0");
    world.die("actor/1");
    world.up("actor/1");
    expect(world.all("adopted")).toHaveLength(1);
  });
});

const baseSupervision = {
  maxRestarts: 3,
  restartWindowMs: 10_000,
  heartbeatTimeoutMs: 1e9,
  stallMs: 1e9,
  lockTimeoutMs: 1e9,
  startTimeoutMs: 1e9,
};
