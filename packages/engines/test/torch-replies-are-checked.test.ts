import { EventEmitter } from "node:events";
import { TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import type { GenerateOptions, JoiningCompletion } from "../src/index.ts";
import type { GenerateCall, Message, TorchClient } from "../src/torch/torch-client.ts";
import { TorchGenerations } from "../src/torch/torch-generations.ts";
import type { Described } from "../src/torch/torch-messages.ts";

const vocabSize = 50;
const sampling = { maxTokens: 5, temperature: 1, stopTokens: [], seed: 1 };
const prompts = [Int32Array.of(1), Int32Array.of(2)];

/** One call of a process that says what the test says. */
class Call extends EventEmitter {
  readonly written: Message[] = [];
  isCancelled = false;

  write(message: Message): boolean {
    this.written.push(message);
    return true;
  }

  end(): void {}

  cancel(): void {
    this.isCancelled = true;
    queueMicrotask(() => this.emit("error", new Error("cancelled")));
  }
}

function generations() {
  const calls: Call[] = [];
  const failures: TreadleError[] = [];
  const client = {
    generate: () => {
      const call = new Call();
      calls.push(call);
      return call as unknown as GenerateCall;
    },
    failure: async (_: string, cause: Error) => new TreadleError("service.failed", "the call was lost", { cause }),
  } as unknown as TorchClient;
  const made = new TorchGenerations(client, { vocabSize, contextLength: 100 } as Described, 100, {
    policyVersion: () => 3,
    ended: async () => {},
    failed: (error) => void failures.push(error),
  });
  return { made, calls, failures };
}

const ints = (...numbers: number[]) => new Uint8Array(Int32Array.from(numbers).buffer);
const floats = (...numbers: number[]) => new Uint8Array(Float32Array.from(numbers).buffer);

const rows = {
  indices: [1, 0],
  attempts: [0, 0],
  lengths: [2, 1],
  tokens: ints(5, 6, 49),
  logprobs: floats(-1, 0, -0.5),
};
const beside = { finish_reasons: [0, 1], held: [false, false], policy_version: 3 };
const completions = (wrong: object = {}, wrongBeside: object = {}): Message => ({
  completions: { rows: { ...rows, ...wrong }, ...beside, ...wrongBeside },
  progress: null,
});
const progress = (wrong: object = {}, starts = [0, 0]): Message => ({
  completions: null,
  progress: { rows: { ...rows, ...wrong }, starts },
});

/** What a call makes of these replies, and of the end that follows. */
async function answered(replies: readonly Message[], options: GenerateOptions = {}) {
  const { made, calls, failures } = generations();
  const told: number[] = [];
  const generating = made.generate(prompts, sampling, {
    onProgress: (pieces) => void told.push(...pieces.map(({ index }) => index)),
    onCompletion: (index) => void told.push(index),
    ...options,
  });
  for (const reply of replies) calls[0]!.emit("data", reply);
  calls[0]!.emit("end");
  const outcome = await generating.catch((error: unknown) => error);
  return { outcome, told, failures, isCancelled: calls[0]!.isCancelled };
}

test("replies whose columns agree are the completions", async () => {
  const { outcome, failures } = await answered([progress(), completions()]);
  expect(outcome).toMatchObject([
    { tokens: Int32Array.of(49), finishReason: "length", policyVersion: 3 },
    { tokens: Int32Array.of(5, 6), logprobs: Float32Array.of(-1, 0), finishReason: "stop" },
  ]);
  expect(failures).toEqual([]);
});

const wrongRows: readonly (readonly [string, object, RegExp])[] = [
  ["lengths that are more than there is", { lengths: [2, 2] }, /'12' bytes of tokens for '4' tokens/],
  ["lengths that are less than there is", { lengths: [1, 1] }, /'12' bytes of tokens for '2' tokens/],
  ["missing lengths", { lengths: [3] }, /'1' lengths of '2'/],
  ["missing attempts", { attempts: [0] }, /'1' attempts of '2'/],
  ["missing log-probabilities", { logprobs: floats() }, /'0' bytes of logprobs for '3' tokens/],
  ["a part of a number", { tokens: ints(5, 6, 49).subarray(1) }, /'11' bytes of tokens/],
  ["a completion of no prompt", { indices: [1, 2] }, /completion '2' of a call of '2'/],
  ["a token outside the vocabulary", { tokens: ints(5, 6, 50) }, /token '50' is not in the vocabulary of '50'/],
  ["a negative token", { tokens: ints(5, -6, 9) }, /token '-6'/],
  ["a log-probability that is no number", { logprobs: floats(-1, Number.NaN, 0) }, /log-probability 'NaN'/],
  ["an infinite log-probability", { logprobs: floats(-1, Number.NEGATIVE_INFINITY, 0) }, /'-Infinity'/],
  ["a positive log-probability", { logprobs: floats(-1, 0.5, 0) }, /log-probability '0.5'/],
];
const wrongReplies: readonly (readonly [string, readonly Message[], RegExp])[] = [
  ...wrongRows.flatMap(([what, wrong, message]) => [
    [`${what}, at the end`, [completions(wrong)], message] as const,
    [`${what}, on the way`, [progress(wrong), completions()], message] as const,
  ]),
  ["missing reasons", [completions({}, { finish_reasons: [0] })], /'1' finish_reasons of '2'/],
  ["an unknown reason", [completions({}, { finish_reasons: [0, 9] })], /unknown reason '9'/],
  ["missing marks of what is held", [completions({}, { held: [] })], /'0' held of '2'/],
  ["missing starts", [progress({}, [0]), completions()], /'1' starts of '2'/],
  ["nothing", [], /without completion '0' of '2'/],
  ["one completion twice", [completions({ indices: [1, 1] })], /completion '1' after its end/],
  ["a completion after its end", [completions(), completions()], /completion '1' after its end/],
];

test.each(wrongReplies)("a process that sends %s has failed", async (_, replies, message) => {
  const { outcome, failures } = await answered(replies);
  expect(outcome).toBeInstanceOf(TreadleError);
  expect(outcome).toMatchObject({ code: "service.failed", message: expect.stringMatching(message) });
  expect(failures, "whoever owns the process is told").toEqual([outcome]);
});

test("nothing of a reply that cannot be used, or behind it, is told", async () => {
  const { told, isCancelled } = await answered([completions({ indices: [1, 7] }), completions()]);
  expect(told).toEqual([]);
  expect(isCancelled).toBe(true);
});

const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

test("what has joined a call ends when the engine is told to abort, also in the same turn; what joins later does not", async () => {
  const { made, calls } = generations();
  let add!: (joining: JoiningCompletion) => number | undefined;
  const generating = made.generate([Int32Array.of(1)], sampling, {
    join: (joins) => {
      add = joins;
      add({ prompt: Int32Array.of(2), key: 1 });
    },
  });
  made.abort();
  add({ prompt: Int32Array.of(3), key: 2 });
  await settled();
  const aborts = calls.map(({ written }) => written.flatMap((message) => message["abort"] ?? []));
  expect(aborts).toEqual([[{ index: 0 }, { index: 1 }]]);
  add({ prompt: Int32Array.of(4), key: 3 }); // waits for the end of this turn, beside what runs
  made.abort();
  await settled();
  expect(calls.map(({ written }) => written.filter((message) => message["abort"]).at(-1))).toEqual([
    { abort: {} },
    { abort: { index: 0 } },
  ]);
  const reply = (indices: number[]): Message =>
    completions(
      { indices, attempts: indices, lengths: indices.map(() => 0), tokens: ints(), logprobs: floats() },
      { finish_reasons: indices.map(() => 2), held: indices.map(() => false) },
    );
  calls[0]!.emit("data", reply([0, 1, 2]));
  calls[1]!.emit("data", reply([0]));
  for (const call of calls) call.emit("end");
  expect((await generating).map(({ finishReason }) => finishReason)).toEqual(["abort", "abort", "abort", "abort"]);
});
