/** What is told of completions that a server streams: never what was not confirmed to be of the weights that were loaded. */
import { ManualClock } from "@treadle/contracts/testing";
import { expect, test } from "vitest";
import { Progress } from "../src/server/progress.ts";
import { Sequences } from "../src/server/sequences.ts";

const limits = { vocabSize: 100, contextLength: 50, drawsByPosition: false, policyVersion: () => 3 };
const sampling = { maxTokens: 40, temperature: 1, stopTokens: [], seed: 7 };

function open(everyMs = 200) {
  const clock = new ManualClock();
  const sequences = new Sequences([Int32Array.of(4)], sampling, limits);
  const request = sequences.take()!;
  const told: number[] = [];
  const asked: { yes: () => void; no: () => void }[] = [];
  const failures: unknown[] = [];
  const progress = new Progress(sequences, {
    ...{ clock, everyMs },
    confirm: () => new Promise((yes, no) => asked.push({ yes, no: () => no(new Error("others")) })),
    tell: (pieces) => {
      for (const { from, tokens } of pieces) told.splice(from, Number.POSITIVE_INFINITY, ...tokens);
    },
    fail: (error) => failures.push(error),
  });
  const arrive = (...tokens: number[]) => progress.arrive(request, { tokens, logprobs: tokens.map(() => -1) });
  const settle = () => new Promise((go) => setImmediate(go));
  return { clock, sequences, request, progress, told, asked, failures, arrive, settle };
}

test("an answer about the weights is of what had arrived when it was asked for, however late it comes", async () => {
  const { clock, told, asked, arrive, settle } = open();
  arrive(10, 11);
  await clock.advance(200);
  arrive(66);
  await clock.advance(5_000);
  arrive(67);
  expect(asked).toHaveLength(1); // one at a time
  asked[0]!.yes();
  await settle();
  expect(told).toEqual([10, 11]);
  await clock.advance(200);
  asked[1]!.no(); // somebody has changed them meanwhile
  await settle();
  expect(told).toEqual([10, 11]);
});

test("what a lost request had is taken back at once, and what nobody has confirmed is not told with that", async () => {
  const { clock, sequences, request, progress, told, asked, arrive, settle } = open();
  arrive(10, 11);
  await clock.advance(200);
  asked[0]!.yes();
  await settle();
  expect(told).toEqual([10, 11]);
  arrive(66);
  await clock.advance(200);
  sequences.lose(request);
  progress.tell();
  expect(told).toEqual([]);
});

test("nothing is asked for where nothing has arrived, nor told of a call that is over", async () => {
  const { clock, progress, told, asked, arrive, settle } = open();
  await clock.advance(10_000);
  arrive(10);
  await clock.advance(200);
  asked[0]!.yes();
  await settle();
  await clock.advance(10_000);
  expect(asked).toHaveLength(1);
  arrive(11);
  await clock.advance(200);
  progress.stop();
  asked[1]!.yes();
  await settle();
  expect(told).toEqual([10]);
});
