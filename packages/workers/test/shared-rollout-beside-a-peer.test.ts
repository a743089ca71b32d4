import type { Completion } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import {
  type EpisodeLimits,
  EpisodeOrder,
  type LivePlacement,
  MeasuredInterference,
  mostTold,
} from "@treadle/trajectories";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { CallOrder } from "../src/rollout/call-order.ts";
import type { EpisodeRow } from "../src/rollout/episode-batch.ts";
import type { EpisodeState, RankLoad, RankMessage } from "../src/rollout/rank-messages.ts";
import { SharedRollout, type SharedRolloutOptions } from "../src/rollout/shared-rollout.ts";
import { completionOf, HandEngine, turns } from "./support/hand-engine.ts";
import { Peer } from "./support/peer.ts";

let engine: HandEngine;
let peer: Peer;
let rollout: SharedRollout;
let ended: [index: number, completion: Completion][];
beforeEach(() => {
  engine = new HandEngine();
  peer = new Peer();
  ended = [];
});
afterEach(() => rollout.close());

const rowsOf = (count: number): EpisodeRow[] =>
  Array.from({ length: count }, (_, at) => ({
    prompt: { id: `p${at}`, tokens: Int32Array.of(1, 2) },
    key: at,
    name: `rollout:p${at}/0`,
  }));

/** Rank 0 of two, with so many places; nothing is predicted, so rows go in their order. */
function begin(places: number, options: Partial<SharedRolloutOptions> = {}, placement: LivePlacement = "least-load") {
  rollout = new SharedRollout({
    placement,
    migrate: "never",
    F: { type: "affine", slope: 0.04 },
    measured: new MeasuredInterference(places),
    places,
    engine: engine.asEngine,
    sampling: { maxTokens: 8, temperature: 1, stopTokens: [0], seed: 1 },
    contextLength: 64,
    order: {},
    arrivals: undefined,
    tool: undefined,
    over: () => {},
    isToolStateful: false,
    prefillRatio: 0.1,
    messages: peer.messages,
    component: "rollout",
    rank: 0,
    worldSize: 2,
    ...options,
  });
}

function play(count: number, places: number, limits?: EpisodeLimits): Promise<void> {
  const rows = rowsOf(count);
  const prompts = rows.map(({ prompt }) => prompt);
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "constant" });
  const playing = rollout.play(rows, new CallOrder(order, prompts, { places, step: 1, limits }), (index, completion) =>
    ended.push([index, completion]),
  );
  playing.catch(() => {}); // a test ends in the midst of it
  return playing;
}

const hello = (places: number): RankMessage => ({ type: "hello", weightsId: "initial", places, kept: [] });
const load = (given: Partial<RankLoad> = {}): RankMessage => ({
  type: "load",
  load: { active: 0, waiting: 0, yours: 0, ...given },
});
/** Of the peer: as many episodes of so many tokens, where each is. */
const episodes = (
  tokens: readonly number[] = [],
  homes: readonly number[] = tokens.map(() => -1),
  numUntold = 0,
): RankMessage => ({
  type: "episodes",
  numUntold,
  episodes: Int32Array.from(tokens.keys()),
  tokens: Float64Array.from(tokens),
  remaining: Float64Array.from(tokens),
  homes: Int32Array.from(homes),
  ended: new Int32Array(),
});
const state = (numTokens: number, answers: EpisodeState["answers"] = []): EpisodeState => {
  const { tokens, logprobs } = completionOf(numTokens);
  return { tokens, logprobs, answers };
};
const run = (episode: number, name = `rollout:q${episode}/0~x.${episode}~0`): RankMessage => ({
  type: "run",
  episode,
  attempt: 1,
  name,
  prompt: Int32Array.of(1, 2),
  key: 7,
  priority: 0,
});
const sent = () => peer.said("run").map(({ episode }) => episode);

test("SH3: ranks whose weights have the same version, but are others, share nothing", async () => {
  begin(1);
  await peer.say({ type: "hello", weightsId: "0/other", places: 1, kept: [] }, load(), run(0));
  expect(engine.joined).toEqual([]);
  await peer.die();
  await peer.say(hello(1), load(), run(0));
  expect(engine.joined).toHaveLength(1);
});

test("a place that a dead owner's episode leaves is given to one that waits", async () => {
  begin(1);
  await peer.say(hello(1), load(), run(0));
  expect(engine.joined).toHaveLength(1);
  void play(1, 1);
  await turns();
  expect(sent(), "the peer has room").toEqual([0]);
  await peer.die();
  expect(engine.joined, "there is no room yet").toHaveLength(1);
  engine.end(0);
  await turns();
  expect(engine.joined).toHaveLength(2);
  engine.end(1);
  expect(ended.map(([index]) => index)).toEqual([0]);
});

test("SH2: what a dead owner's episode comes to here is everybody's, and settles whoever has its prompt", async () => {
  begin(2);
  await peer.say(hello(2), load(), run(0, "rollout:p1/0~x.0~0"));
  void play(2, 2);
  await turns();
  await peer.die();
  await peer.say(hello(2), load({ active: 2 }));
  engine.end(0, 5);
  await turns();
  expect(peer.said("kept").flatMap(({ episodes }) => episodes.map(({ name }) => name))).toEqual(["rollout:p1/0"]);
  expect(ended.map(([index, { tokens }]) => [index, tokens.length])).toEqual([[1, 5]]);
});

test("ER4: nothing is sent to a rank that has not said what it has, nor to one that is full", async () => {
  begin(2);
  void play(8, 2);
  await peer.say(hello(2));
  expect(sent()).toEqual([]);
  await peer.say(load({ active: 2, waiting: 30 }));
  expect(sent()).toEqual([]);
  await peer.say(load({ active: 1, waiting: 30 }));
  expect(sent(), "one place is free").toEqual([2]);
});

test("ER5: of what is free at another rank, a part by how many wait; all of it once that says that nobody else came", async () => {
  begin(8);
  void play(24, 8);
  await peer.say(hello(8), load({ waiting: 16 }));
  expect(sent(), "half of those that wait are this rank's").toEqual([8, 9, 10, 11]);
  await peer.say(load({ yours: 4 }));
  expect(sent()).toEqual([8, 9, 10, 11, 12, 13, 14, 15]);
  await peer.say(load({ yours: 8 }));
  expect(sent(), "it is full").toHaveLength(8);
});

test("a rank that is told of nothing else tells that others' episodes have come", async () => {
  begin(4);
  await peer.say(hello(4), load());
  expect(peer.said("load").at(-1)?.load).toMatchObject({ active: 0, yours: 0 });
  await peer.say(run(0), run(1));
  expect(peer.said("load").at(-1)?.load).toMatchObject({ active: 0, yours: 2 });
});

test("an episode that another rank was made to abort is no whole one: it goes on elsewhere, from its last turn", async () => {
  begin(1);
  void play(2, 1);
  await peer.say(hello(1), load());
  expect(sent()).toEqual([1]);
  const [first] = peer.said("run");
  const told = { episode: 1, attempt: first!.attempt };
  await peer.say(
    { type: "turn", ...told, state: state(4) },
    { type: "answered", ...told, state: state(6, [[4, 6]]), toolSeconds: 0, hasToolFailed: false, hasLeft: false },
    load({ active: 1 }),
  );
  await peer.say({ type: "ended", ...told, state: state(7, [[4, 6]]), finishReason: "abort", policyVersion: 0 });
  expect(ended).toEqual([]);
  engine.end(0);
  await turns();
  expect(engine.joined[1]?.begun).toMatchObject({ tokens: new Int32Array(6), numAppended: 2 });
  engine.end(1, 9);
  expect(ended.map(([index, { tokens, finishReason }]) => [index, tokens.length, finishReason])).toEqual([
    [0, 3, "stop"],
    [1, 9, "stop"],
  ]);
});

test("an episode whose sandbox is gone begins again, under another name", async () => {
  begin(1, { isToolStateful: true });
  void play(2, 1);
  await peer.say(hello(1), load());
  const [first] = peer.said("run");
  const told = { episode: 1, attempt: first!.attempt };
  await peer.say(
    { type: "turn", ...told, state: state(4) },
    { type: "answered", ...told, state: state(6, [[4, 6]]), toolSeconds: 0, hasToolFailed: false, hasLeft: false },
    { type: "turn", ...told, state: state(8, [[4, 6]]) },
    { type: "lost", ...told },
  );
  const again = peer.said("run").at(-1);
  expect(again).toMatchObject({ episode: 1, attempt: first!.attempt + 1 });
  expect(again?.state).toBeUndefined();
  expect(again?.name).not.toBe(first?.name);
});

test("after each turn elsewhere the owner says which goes first when it waits next", async () => {
  begin(1);
  void play(2, 1);
  await peer.say(hello(1), load());
  const [first] = peer.said("run");
  const told = { episode: 1, attempt: first!.attempt };
  await peer.say({ type: "turn", ...told, state: state(4) });
  expect(peer.said("priority")).toMatchObject([told]);
});

test("a rank says what a token takes at it, and places by what others say of theirs, the longest at the fastest", async () => {
  const times = [0.03, undefined];
  begin(4, { tokenTimes: times }, "predicted");
  await peer.say({ ...hello(4), tokenSeconds: 0.001 } as RankMessage);
  expect(peer.said("hello").at(-1)?.tokenSeconds).toBe(0.03);
  expect(times).toEqual([0.03, 0.001]);
  await peer.say(load(), episodes());
  void play(4, 4);
  await turns();
  // So much faster that nothing is worth keeping.
  expect(peer.said("run")).toHaveLength(4);
});

describe("SH4: what others took decides where own episodes begin", () => {
  const equal = { tokenTimes: undefined, F: { type: "affine", slope: 1 } } as const;

  test("a rank waits for what others tell of theirs, and then places beside it", async () => {
    const clock = new ManualClock();
    begin(8, { ...equal, clock }, "predicted");
    void play(2, 8);
    await peer.say(hello(8), load());
    expect([sent(), engine.joined.length], "the peer has not told yet").toEqual([[], 0]);
    // Longer than own ones, so rank 0, the first of equals, is for them.
    const long = 1e6;
    await peer.say(episodes([long, long]));
    expect(sent()).toEqual([0, 1]);
    const told = peer.said("episodes").map((each) => [[...each.episodes], [...each.homes]]);
    expect(told.at(-1)).toEqual([
      [0, 1],
      [1, 1],
    ]);
    await clock.advance(1000);
    expect(sent(), "once").toEqual([0, 1]);
  });

  test("UG6: a peer has told only when it has told of all that one message does not hold", async () => {
    const clock = new ManualClock();
    begin(8, { ...equal, clock }, "predicted");
    void play(2, 8);
    await peer.say(hello(8), load(), episodes([1], [-1], 2));
    expect([sent(), engine.joined.length], "two are still to come").toEqual([[], 0]);
    const rest = { ...episodes([1e6, 1e6]), episodes: Int32Array.of(1, 2) };
    await peer.say(rest as RankMessage);
    expect(sent()).toEqual([0, 1]);
  });

  test("UG5, UG6: a rank tells what it has measured, and of more episodes than a message holds in the next ones", async () => {
    begin(8, { ...equal, clock: new ManualClock() }, "predicted");
    void play(mostTold + 100, 8);
    await peer.say(hello(8), load(), episodes());
    for (let tick = 0; tick < 4; tick++) await turns();
    const told = peer.said("episodes");
    expect(told.map(({ episodes }) => episodes.length)).toContain(mostTold);
    expect(told.at(-1)!.numUntold).toBe(0);
    expect(told[0]!.numUntold).toBe(100);
    expect(new Set(told.flatMap(({ episodes }) => [...episodes])).size).toBe(mostTold + 100);
    for (const { measured } of told) expect(measured?.logSd).toBeGreaterThan(0);
  });

  test("UG5, PG4: a rank tells what its episodes may come to, by their limit and by what their context leaves", async () => {
    begin(8, { ...equal, clock: new ManualClock() }, "predicted");
    void play(2, 8, { maxTokens: 500, contextTokens: 102 });
    await peer.say(hello(8), load(), episodes());
    expect(peer.said("episodes").at(-1)?.measured?.mostTokens).toBe(100);
  });

  test.each([
    ["has none", { type: "done" } as RankMessage],
    ["is another", { type: "gone" } as RankMessage],
  ])("it does not wait for a peer that %s", async (_, message) => {
    begin(8, { ...equal, clock: new ManualClock() }, "predicted");
    void play(1, 8);
    await peer.say(hello(8), load());
    expect(engine.joined).toHaveLength(0);
    await peer.say(message);
    expect(engine.joined).toHaveLength(1);
  });

  test("RX3: whoever says nothing is waited for no longer than a moment", async () => {
    const clock = new ManualClock();
    begin(8, { ...equal, clock }, "predicted");
    void play(1, 8);
    await turns();
    expect(engine.joined).toHaveLength(0);
    await clock.advance(1000);
    await turns();
    expect(engine.joined).toHaveLength(1);
  });

  test("a peer is sent what it has places for beside what others have there, and the rest waits for either", async () => {
    begin(2, equal, "predicted");
    void play(8, 2);
    await peer.say(hello(2), load({ active: 1 }), episodes([1], [0]));
    expect(sent()).toHaveLength(1);
    expect(engine.joined).toHaveLength(2);
    engine.end(0);
    await turns();
    expect(engine.joined).toHaveLength(3);
  });

  test("a peer that comes up late, or comes back, takes of what waits", async () => {
    const clock = new ManualClock();
    begin(1, { ...equal, clock }, "predicted");
    void play(8, 1);
    await turns();
    await clock.advance(1000);
    await turns();
    expect(engine.joined).toHaveLength(1);
    await peer.say(hello(1), load());
    expect(sent()).toHaveLength(1);
    await peer.die();
    await turns();
    await peer.say(hello(1), load());
    expect(sent()).toHaveLength(2);
  });

  test("the moment in which others may tell begins with the first prompts", async () => {
    const clock = new ManualClock();
    begin(4, { ...equal, clock }, "predicted");
    await peer.say(hello(4), load());
    await clock.advance(1000);
    void play(4, 4);
    await turns();
    expect(engine.joined).toHaveLength(0);
    await clock.advance(1000);
    await turns();
    expect(engine.joined.length + sent().length).toBe(4);
  });

  test("a peer that comes up is told of all, and of each change after that", async () => {
    begin(8, { ...equal, migrate: "pays" }, "own");
    void play(3, 8);
    await peer.say(hello(8), load());
    const tell = () => peer.said("episodes").map(({ episodes, ended }) => [[...episodes], [...ended]]);
    expect(tell()).toEqual([[[0, 1, 2], []]]);
    engine.end(1);
    await turns();
    expect(tell().at(-1)).toEqual([[], [1]]);
  });

  test.each([
    ["as many homes as episodes", { homes: new Int32Array(3) }],
    ["finite tokens", { tokens: Float64Array.of(Number.NaN) }],
    ["finite remaining tokens", { remaining: Float64Array.of(Number.POSITIVE_INFINITY) }],
    ["numbers from 0 on", { episodes: Int32Array.of(-1) }],
    ["a bounded number", { ended: new Int32Array(5000) }],
    ["a finite error of predictions", { measured: { logSd: Number.NaN } }],
  ])("a message without %s fails the call", async (_, wrong) => {
    begin(8, equal, "predicted");
    const playing = play(1, 8);
    await peer.say(hello(8), load(), { ...episodes([1]), ...wrong } as RankMessage);
    await expect(playing).rejects.toThrow();
  });
});
