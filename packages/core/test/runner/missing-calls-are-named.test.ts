import { describe, expect, test } from "vitest";
import { streamOf } from "../../src/runner/channel-book.ts";
import { limits, RunnerWorld } from "./runner-world.ts";

const stallMs = 60_000;
const texts = (world: RunnerWorld) => world.all("notice").map(({ text }) => text);

function worldWithChannel(): RunnerWorld {
  const world = new RunnerWorld({ supervision: { ...limits.supervision, stallMs } });
  world.feed({ type: "define-channel", name: "episodes", capacity: 1, pick: "fifo" });
  world.component(1);
  world.up("actor/0");
  return world;
}

function call(world: RunnerWorld, role: "source" | "sink", step?: number): void {
  const ends = [{ channel: "episodes", role, stream: streamOf(step) }];
  world.feed({ type: "call", sequence: 1, component: "actor", method: "train", ranks: [0], ends, step });
}

const ask = { request: 7, call: "1/0", channel: "episodes" } as const;
const item = (id: string) => ({ value: { id }, weight: 1, sizeBytes: 1 });
const put = (world: RunnerWorld, ...ids: string[]) =>
  world.feed({ type: "put", ...ask, from: world.id("actor/0"), items: ids.map(item) as never });

function tickUntil(world: RunnerWorld, endMs: number): void {
  for (; world.nowMs <= endMs; world.nowMs += 500) world.feed({ type: "tick" });
}

describe("S3: a wait that no open call can end", () => {
  test("names the waiting handle, the channel and the missing call within seconds, once, and fails the run after five times stallMs", () => {
    const world = worldWithChannel();
    call(world, "source");
    world.feed({ type: "take", ...ask, from: world.id("actor/0"), acknowledge: false });
    tickUntil(world, 4000);
    expect(texts(world)).toEqual([
      "'actor.train' waits for items of 'episodes', into which no open call puts; make the call that gets 'episodes.sink' before awaiting 'actor.train'",
    ]);
    tickUntil(world, 5 * stallMs);
    expect(texts(world)).toHaveLength(1);
    expect(world.all("failed")).toEqual([]);
    tickUntil(world, 5 * stallMs + 1000);
    const [failed] = world.all("failed");
    expect(failed?.error).toMatchObject({ code: "workflow.invalid", disposition: "misuse" });
    expect(failed?.error.message).toMatch(/^nothing moved for 30[01] s: 'actor.train' waits for items of 'episodes'/);
  });

  test("ends no run whose workflow makes the missing call late, after work of its own that nobody sees", () => {
    const world = worldWithChannel();
    call(world, "source");
    world.feed({ type: "take", ...ask, from: world.id("actor/0"), acknowledge: false });
    tickUntil(world, 4 * stallMs);
    world.feed({ type: "open", call: "own", end: { channel: "episodes", role: "sink", stream: streamOf(undefined) } });
    const late = { request: 8, call: "own", channel: "episodes" };
    world.feed({ type: "put", ...late, items: [item("a")] as never });
    world.feed({ type: "close", call: "own", outcome: { ok: true } });
    expect(world.all("failed")).toEqual([]);
    expect(world.all("answer").map(({ request }) => request)).toContain(ask.request);
  });

  test("of room, too, and of the workflow itself", () => {
    const full = worldWithChannel();
    call(full, "sink");
    put(full, "a", "b");
    tickUntil(full, 4000);
    expect(texts(full).join()).toContain("'actor.train' waits for room in 'episodes', from which no open call takes");

    const own = worldWithChannel();
    own.feed({ type: "open", call: "own", end: { channel: "episodes", role: "source", stream: streamOf(undefined) } });
    own.feed({ type: "take", ...ask, call: "own", acknowledge: false, maxItems: 1 });
    tickUntil(own, 4000);
    expect(texts(own)).toEqual([
      "the workflow waits for items of 'episodes', into which no open call puts; make the call that gets 'episodes.sink' before taking from it",
    ]);
  });

  test("is not said while another call runs, which may be what the workflow awaits first", () => {
    const world = worldWithChannel();
    call(world, "source");
    world.feed({ type: "take", ...ask, from: world.id("actor/0"), acknowledge: false });
    world.feed({ type: "add-component", component: "other", restart: "rank", resizes: false, replays: [] });
    world.feed({ type: "lay-out", components: { other: { ranks: [{ node: "node:0", devices: ["node:0/cpu:1"] }] } } });
    world.up("other/0");
    world.feed({ type: "call", sequence: 2, component: "other", method: "load", ranks: [0], ends: [] });
    tickUntil(world, stallMs - 1000);
    expect(texts(world)).toEqual([]);
  });
});

test("S3: who works on items of a stream waits for nobody, though it would take more, until they are done", () => {
  const world = worldWithChannel();
  call(world, "source");
  world.feed({ type: "open", call: "own", end: { channel: "episodes", role: "sink", stream: streamOf(undefined) } });
  world.feed({ type: "put", request: 8, call: "own", channel: "episodes", items: [item("a")] as never });
  const from = world.id("actor/0");
  const take = { ...ask, type: "take", from, acknowledge: false, streams: true, maxItems: 1 } as const;
  world.feed(take);
  const answer = world.all("answer").find(({ request }) => request === ask.request)?.answer;
  const deliveries = answer?.type === "batch" ? answer.items.map(({ delivery }) => delivery) : [];
  expect(deliveries).toHaveLength(1);
  world.feed({ ...take, request: 9 });
  const waits = () => world.state.standstill().waits;
  expect(waits()).toEqual([{ who: "actor/0", on: "its own 'train' to return" }]);
  world.feed({ type: "commit", from, request: 10, call: ask.call, channel: ask.channel, deliveries });
  expect(waits()).toEqual([{ who: "actor/0", on: "'episodes' from 'runner'" }]);
});

test("what nobody took of a step is said when the step ends, once a channel", () => {
  const world = worldWithChannel();
  for (const step of [1, 2]) {
    world.feed({ type: "begin-step", step });
    const own = `own-${step}`;
    world.feed({ type: "open", call: own, end: { channel: "episodes", role: "sink", stream: streamOf(step) } });
    world.feed({
      type: "put",
      request: 10 + step,
      call: own,
      channel: "episodes",
      items: [item("a"), item("b")] as never,
    });
    world.feed({ type: "close", call: own, outcome: { ok: true } });
    world.feed({ type: "end-body", step });
    world.feed({ type: "committed", step });
  }
  expect(texts(world)).toEqual([
    "channel 'episodes' holds '2' items of step 1 that nobody took, and nobody will, since the step has ended; pass 'episodes.source' to a call of the same step, or do not put them",
  ]);
});
