import type { BegunEpisode, Completion, Prompt } from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import { EpisodeOrder } from "@treadle/trajectories";
import { beforeEach, describe, expect, test } from "vitest";
import { CallOrder } from "../src/rollout/call-order.ts";
import type { CompletionJournal } from "../src/rollout/completion-journal.ts";
import { EpisodeStream, type EpisodeStreamOptions, type Span } from "../src/rollout/episode-stream.ts";
import { sandboxGone } from "../src/tool/items.ts";
import { HandEngine, turns } from "./support/hand-engine.ts";

const sampling = { maxTokens: 99, temperature: 1, stopTokens: [0], seed: 1 };
const answer = Int32Array.of(1, 1);
const prompt = (id: string): Prompt => ({ id, tokens: Int32Array.of(1, id.length) });

let engine: HandEngine;
const over: string[] = [];
const ended: [name: string, completion: Completion, answers: readonly Span[]][] = [];
beforeEach(() => {
  engine = new HandEngine();
  over.length = 0;
  ended.length = 0;
});

function streamOf(options: Partial<EpisodeStreamOptions> = {}) {
  const stream = new EpisodeStream({
    engine: engine.asEngine,
    sampling,
    over: (name) => over.push(name),
    ...options,
  });
  const run = (name: string) =>
    stream.run({
      prompt: prompt(name),
      key: name.length,
      name,
      ended: (completion, answers) => ended.push([name, completion, answers]),
    });
  return { stream, run };
}

describe("episodes of a rank that shares none", () => {
  test("join the call under way as they come, and begin another once that is over", async () => {
    const { stream, run } = streamOf();
    run("a");
    run("ab");
    expect(engine.joined.map(({ key }) => key)).toEqual([1, 2]);
    engine.end(0);
    run("abc");
    engine.end(1);
    engine.end(2);
    await stream.finish();
    run("abcd");
    expect(engine.joined.map(({ key }) => key)).toEqual([1, 2, 3, 4]);
    engine.end(3);
    await stream.finish();
    expect(ended.map(([name]) => name)).toEqual(["a", "ab", "abc", "abcd"]);
    expect(over).toEqual([]);
  });

  test("PG3: are told of while a turn goes on, where the engine says so", async () => {
    const order = new CallOrder(new EpisodeOrder({ scheduler: "pps", predictor: "learned" }), [], {
      ...{ places: 2, step: 0 },
    });
    const generating: [at: number, numTokens: number][] = [];
    order.generating = (...told) => void generating.push(told);
    const journal = { find: () => undefined, keep: () => {}, stop: () => {} } as unknown as CompletionJournal;
    const { stream, run } = streamOf({ order, journal });
    run("a");
    run("ab");
    engine.progress(1, 0, 3);
    engine.progress(1, 3, 2);
    engine.end(1, 6);
    engine.progress(1, 5, 1); // too late
    engine.end(0);
    await stream.finish();
    expect(generating).toEqual([
      [1, 3],
      [1, 5],
    ]);
  });

  test("are waited for until there is room for more", async () => {
    const { stream, run } = streamOf();
    for (const name of ["a", "ab", "abc"]) run(name);
    const order: string[] = [];
    const waiting = stream.below(2).then(() => order.push("room"));
    await turns();
    engine.end(0);
    await turns();
    order.push("one ended");
    engine.end(2);
    await waiting;
    expect(order).toEqual(["one ended", "room"]);
    await stream.below(2);
    const failing = stream.below(1);
    stream.fail(new Error("no power"));
    await expect(failing).rejects.toThrow("no power");
  });

  test("go on behind what their tool says, which is told of with the places where it stands", async () => {
    const { stream, run } = streamOf({
      tool: (name, _, answers) =>
        answers.length < 2 && name === "ab"
          ? Promise.resolve({ answer, toolSeconds: 0, hasToolFailed: false })
          : undefined,
    });
    run("a");
    run("ab");
    expect(await engine.turn(0, 3)).toBeUndefined();
    expect(await engine.turn(1, 4)).toEqual(answer);
    expect(await engine.turn(1, 9)).toEqual(answer);
    engine.end(1, 11, "length"); // no room for the second answer and more
    await stream.finish();
    expect(ended.map(([name, , answers]) => [name, answers])).toEqual([
      ["a", []],
      [
        "ab",
        [
          [4, 6],
          [9, 11],
        ],
      ],
    ]);
    expect(over).toEqual(["ab"]);
  });

  test("that began again with other weights have no answers of before", async () => {
    const { stream, run } = streamOf({
      tool: (_, { tokens }) =>
        tokens.length < 5 ? Promise.resolve({ answer, toolSeconds: 0, hasToolFailed: false }) : undefined,
    });
    run("a");
    await engine.turn(0, 3);
    await engine.turn(0, 7, 1);
    await stream.finish();
    expect(ended).toMatchObject([["a", { policyVersion: 1 }, []]]);
    expect(over).toEqual(["a"]);
  });

  test("are ordered over all of the call, in whichever call of the engine they are", async () => {
    const order = new CallOrder(new EpisodeOrder({ scheduler: "rr", predictor: "constant" }), [], {
      places: 1,
      step: 1,
    });
    const asked: number[] = [];
    const priority = order.priority.bind(order);
    order.priority = (index) => {
      asked.push(index);
      return priority(index);
    };
    const { stream, run } = streamOf({ order });
    run("a");
    engine.end(0);
    await stream.finish();
    run("ab");
    run("abc");
    expect(asked).toEqual([0, 1, 2]);
    engine.end(1);
    engine.end(2);
    await stream.finish();
    expect(order.numTokens(2)).toBe(3);
  });

  test("PG4: that go on from an earlier step are ordered by what they have chosen already, apart from what tools said", async () => {
    const order = new CallOrder(new EpisodeOrder({ scheduler: "las", predictor: "constant" }), [], {
      places: 1,
      step: 1,
    });
    const { stream } = streamOf({ order, carries: { contextLength: 99 } });
    const written = { tokens: new Int32Array(9), logprobs: new Float32Array(9), policyVersion: 0 };
    const begun: BegunEpisode = { ...written, tool: { trajectory: "a", answers: [[4, 7]] } };
    stream.run({ prompt: prompt("a"), key: 1, name: "a", begun, ended: () => {} });
    stream.run({ prompt: prompt("a"), key: 2, name: "b", ended: () => {} });
    // The least generated goes first: six, without the three of a tool, and none.
    expect(engine.firstPriorities.map((priority) => -(priority ?? Number.NaN))).toEqual([6, 0]);
    expect(order.numTokens(0)).toBe(9);
    for (const index of [0, 1]) engine.end(index, 11);
    await stream.finish();
  });
});

test("an episode that is cut before its engine hears that it is complete is complete, and goes on in no later step", async () => {
  const { stream, run } = streamOf({ tool: () => undefined, carries: { contextLength: 99 } });
  const cut = run("a");
  run("ab");
  const extended = engine.turn(0, 2);
  cut();
  engine.end(1);
  await extended;
  await stream.finish();
  expect(ended.map(([, { finishReason }]) => finishReason)).toEqual(["stop", "stop"]);
});

describe("a stream of episodes fails", () => {
  test("with its engine", async () => {
    const broken = { kind: "own", generate: () => Promise.reject(new Error("no power")) };
    const { stream, run } = streamOf({ engine: broken as unknown as GenerationEngine });
    run("a");
    await expect(stream.finish()).rejects.toThrow("no power");
    await expect(stream.failed).rejects.toThrow("no power");
  });

  test("where its engine lets nothing join, with what that has to do", async () => {
    const closed = { kind: "own", generate: async () => [] };
    const { stream, run } = streamOf({ engine: closed as unknown as GenerationEngine });
    run("a");
    await expect(stream.finish()).rejects.toMatchObject({
      code: "engine.invalid-request",
      message: "the engine of kind 'own' lets no completion join a call; call the 'join' of GenerateOptions",
    });
  });

  test("when told, and what has not ended goes on no more", async () => {
    const { stream, run } = streamOf();
    run("a");
    stream.fail(new Error("no reward"));
    await expect(stream.finish()).rejects.toThrow("no reward");
    await stream[Symbol.asyncDispose]();
    expect(ended).toEqual([]);
  });

  test("with a sandbox that is gone", async () => {
    const { run, stream } = streamOf({ tool: async (): Promise<typeof sandboxGone> => sandboxGone });
    run("a");
    await expect(engine.turn(0, 3)).rejects.toThrow("the sandbox of 'a' is gone");
    await turns();
    await stream[Symbol.asyncDispose]();
  });
});
