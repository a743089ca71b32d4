import { MeasuredInterference } from "@treadle/trajectories";
import { beforeEach, describe, expect, test } from "vitest";
import { EpisodeHost, type EpisodeHostOptions, type HostedEpisode } from "../src/rollout/episode-host.ts";
import { sandboxGone } from "../src/tool/items.ts";
import { HandEngine, turns } from "./support/hand-engine.ts";

const contextLength = 24;
const answer = Int32Array.of(1, 1);
const told: string[] = [];
let engine: HandEngine;
beforeEach(() => {
  told.length = 0;
  engine = new HandEngine();
});

function hostOf(options: Partial<EpisodeHostOptions> = {}) {
  const tell =
    (what: string) =>
    ({ owner, episode }: HostedEpisode, ...rest: readonly unknown[]) =>
      told.push(`${what} ${owner}/${episode}${what === "answered" && rest.at(-1) === true ? " and left" : ""}`);
  return new EpisodeHost({
    engine: engine.asEngine,
    sampling: { maxTokens: 99, temperature: 1, stopTokens: [0], seed: 1 },
    contextLength,
    order: {},
    arrivals: undefined,
    tool: async () => ({ answer, toolSeconds: 0, hasToolFailed: false }),
    over: () => {},
    component: "rollout",
    measured: new MeasuredInterference(2),
    now: () => 0,
    events: {
      turnEnded: tell("turn"),
      answered: tell("answered"),
      ended: tell("ended"),
      lost: tell("lost"),
      orphanEnded: tell("orphan ended"),
      changed: () => told.push("changed"),
    },
    ...options,
  });
}

const hosted = (owner: number, episode: number, more: Partial<HostedEpisode> = {}): HostedEpisode => ({
  owner,
  episode,
  attempt: 1,
  name: `rollout:p${episode}/0~x.${episode}~0`,
  prompt: Int32Array.of(1),
  key: 1,
  priority: () => 0,
  state: undefined,
  ...more,
});
const move = { to: 0, predictedTokens: 1, loadHere: 1, loadThere: 0 };
const away = (numAnswers: number) => ({ episode: 0, attempt: 1, numAnswers, move });

describe("an order to leave", () => {
  test("takes effect when the tool that it is about has answered", async () => {
    const host = hostOf({
      tool: async () => {
        await turns();
        host.leave(1, away(0));
        return { answer, toolSeconds: 0, hasToolFailed: false };
      },
    });
    host.run(hosted(1, 0));
    expect(await engine.turn(0, 3)).toBeUndefined();
    expect(told).toEqual(["turn 1/0", "answered 1/0 and left"]);
  });

  test("that comes after the tool's answer changes nothing, at that turn or a later one", async () => {
    const host = hostOf();
    host.run(hosted(1, 0));
    expect(await engine.turn(0, 3)).toEqual(answer);
    host.leave(1, away(0));
    expect(await engine.turn(0, 7)).toEqual(answer);
    expect(told.filter((one) => one.endsWith("left"))).toEqual([]);
  });

  test("is nothing to an orphan, whose number its owner's next process gives to another episode", async () => {
    const host = hostOf({
      tool: async ({ name }) => {
        await turns();
        if (name.includes("p0")) host.leave(1, away(0));
        return { answer, toolSeconds: 0, hasToolFailed: false };
      },
    });
    host.run(hosted(1, 0));
    host.orphan(1);
    host.run(hosted(1, 0, { name: "rollout:p9/0~y.0~0" }));
    await engine.turn(0, 3);
    await engine.turn(1, 3);
    expect(told).toEqual(["changed", "changed", "turn 1/0", "answered 1/0"]);
  });
});

test("an answer that has no room is appended nowhere: the engine ends the episode here, and nobody hears of the answer", async () => {
  const host = hostOf({
    tool: async () => {
      await turns();
      host.leave(1, away(0));
      return { answer, toolSeconds: 0, hasToolFailed: false };
    },
  });
  host.run(hosted(1, 0));
  // 1 of the prompt, 21 chosen, 2 of the answer: the whole context.
  expect(await engine.turn(0, 21)).toEqual(answer);
  engine.end(0, 21, "length");
  expect(told).toEqual(["turn 1/0", "ended 1/0"]);
});

test("whoever has room for an answer and one token goes on elsewhere", async () => {
  const host = hostOf({
    tool: async () => {
      await turns();
      host.leave(1, away(0));
      return { answer, toolSeconds: 0, hasToolFailed: false };
    },
  });
  host.run(hosted(1, 0));
  expect(await engine.turn(0, 20)).toBeUndefined();
  expect(told.at(-1)).toBe("answered 1/0 and left");
});

test("an episode whose sandbox is gone goes on here no more, and its owner is told", async () => {
  const host = hostOf({ tool: () => Promise.resolve<typeof sandboxGone>(sandboxGone) });
  host.run(hosted(1, 0));
  expect(await engine.turn(0, 3)).toBeUndefined();
  expect(told).toEqual(["turn 1/0", "lost 1/0"]);
  expect(host.activeBeside(9)).toBe(0);
});

test("episodes at decode count by owner, and whatever is over or at its tool does not", async () => {
  const host = hostOf();
  for (const [owner, episode] of [
    [1, 0],
    [1, 1],
    [2, 0],
  ] as const)
    host.run(hosted(owner, episode));
  const counts = () => [
    ...[1, 2, 3].map((owner) => host.activeOf(owner)),
    ...[1, 3].map((owner) => host.activeBeside(owner)),
  ];
  expect(counts()).toEqual([2, 1, 0, 1, 3]);
  const first = engine.turn(0, 3);
  expect(counts()).toEqual([1, 1, 0, 1, 2]);
  await first;
  expect(counts()).toEqual([2, 1, 0, 1, 3]);
  engine.end(1, 9);
  expect(counts()).toEqual([1, 1, 0, 1, 2]);
  host.forget(1, 0);
  expect(counts()).toEqual([0, 1, 0, 2, 2]);
  engine.end(0, 9);
  host.orphan(2);
  expect(counts()).toEqual([0, 0, 0, 1, 1]);
  engine.end(2, 9);
  expect(counts()).toEqual([0, 0, 0, 0, 0]);
});

test("an orphan goes on to its end, and counts as nobody's", async () => {
  const host = hostOf();
  host.run(hosted(1, 0));
  host.orphan(1);
  expect([host.activeOf(1), host.activeBeside(1)]).toEqual([0, 1]);
  expect(await engine.turn(0, 3)).toEqual(answer);
  engine.end(0, 9);
  expect(told).toEqual(["changed", "changed", "orphan ended 1/0"]);
});

test("one that nobody waits for gives its place back, which is told", () => {
  const host = hostOf();
  host.run(hosted(0, 0));
  host.forget(0, 0);
  engine.end(0);
  expect(told).toEqual(["changed"]);
});

test("one that is forgotten as its tool answers goes last, by a number that engines take", async () => {
  const nothing = () => {};
  const events = { turnEnded: nothing, ended: nothing, lost: nothing, orphanEnded: nothing, changed: nothing };
  const host = hostOf({ events: { ...events, answered: () => host.forget(0, 0) } });
  host.run(hosted(0, 0, { priority: () => -1e300 }));
  expect(await engine.turn(0, 3)).toEqual(answer);
  expect(engine.priorities.map((one) => Number.isFinite(one) && (one as number) < -1e300)).toEqual([true]);
});

describe("whoever waits next goes", () => {
  test("by what its owner has said last", async () => {
    const host = hostOf();
    host.run(hosted(1, 0, { priority: () => 5 }));
    host.prioritise(1, { episode: 0, attempt: 1, priority: 3 });
    host.prioritise(1, { episode: 0, attempt: 2, priority: 9 });
    host.prioritise(2, { episode: 0, attempt: 1, priority: 9 });
    await engine.turn(0, 3);
    expect(engine.priorities).toEqual([3]);
    expect(engine.firstPriorities).toEqual([5]);
  });

  test.each([
    ["first", [0, -1]],
    ["latest", [-2, -1]],
  ] as const)("by arrival, the %s one, whatever owners' own clocks say", async (arrivals, expected) => {
    const host = hostOf({ arrivals });
    host.run(hosted(1, 0, { priority: () => -700 }));
    host.run(hosted(2, 0, { priority: () => -3 }));
    await engine.turn(0, 3);
    expect(engine.priorities.map((one) => (one ?? 0) + 0)).toEqual(expected);
  });
});

test("what is left when the call ends is ended, and nobody is told", async () => {
  const host = hostOf();
  host.run(hosted(1, 0));
  host.orphan(1);
  await host.end();
  await turns();
  expect(told.filter((one) => one !== "changed")).toEqual([]);
});
