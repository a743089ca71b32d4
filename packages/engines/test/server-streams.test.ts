/** What engines tell of completions that an inference server streams, and what becomes of them where the server dies or errs. */
import type { Sampling } from "@treadle/contracts";
import type { BegunCompletion, CompletionPiece } from "@treadle/engines";
import { describe, expect, test } from "vitest";
import { describeGeneration } from "./generation-contract.ts";
import {
  contract,
  generatePath,
  type Kind,
  kinds,
  newer,
  prompts,
  sampling,
  start,
} from "./support/attached-servers.ts";

const seed = Number(process.env["TREADLE_SEED"]);

describeGeneration("sglang that streams", undefined, () => contract("sglang", { streamMs: 0 }, true));
describeGeneration("vllm that streams", undefined, () => contract("vllm", { streamMs: 0 }, true));

/** to the end of the context */
const long: Sampling = { ...sampling, maxTokens: 5 };
const vllmEvent = (choice: object) => ({
  choices: [{ index: 0, token_ids: [], finish_reason: null, logprobs: null, ...choice }],
});
const sglangEvent = (ids: readonly number[], of: readonly number[], meta: object) => ({
  output_ids: ids,
  meta_info: { finish_reason: null, output_token_logprobs: of.map((token) => [-1, token, null]), ...meta },
});
const unusable: Readonly<Record<Kind, readonly [string, readonly unknown[], RegExp][]>> = {
  vllm: [
    ["no JSON", ["{"], /no JSON: \{/],
    ["a failure of its own", [{ error: { message: "CUDA error" } }], /failed in '.*generate': .*CUDA error/],
    ["something else", [{ choices: "none" }], /sources/],
    ["a token without log-probability", [vllmEvent({ token_ids: [1] })], /'0' log-probabilities for '1' tokens/],
    [
      "a token of no vocabulary",
      [vllmEvent({ token_ids: [99], logprobs: { content: [{ logprob: -1 }] } })],
      /token '99'/,
    ],
    ["an end that nobody asked for", ["[DONE]"], /nobody here has asked/],
  ],
  sglang: [
    ["no JSON", ["{"], /no JSON: \{/],
    ["a failure of its own", [{ error: { message: "CUDA error" } }], /failed in '.*generate': .*CUDA error/],
    [
      "log-probabilities of other tokens",
      [sglangEvent([1], [2], { completion_tokens: 1 })],
      /of other tokens than it gives/,
    ],
    [
      "tokens that are missing",
      [sglangEvent([1], [1], { completion_tokens: 3 })],
      /after '0' tokens an event has '1', and says that there are '3'/,
    ],
    ["no reason", [sglangEvent([1], [1], { completion_tokens: 1 }), "[DONE]"], /does not say why it ended/],
    [
      "an end that nobody asked for",
      [{ meta_info: { finish_reason: { type: "abort" } } }, "[DONE]"],
      /nobody here has asked/,
    ],
  ],
};

describe.each(kinds)("an engine of kind %s", (kind) => {
  test("completions go on behind what was told of them before their server died", async () => {
    const { engine, double } = await start(
      kind,
      { streamInterval: 1 + (seed % 2), waitsForQuestions: true },
      { streamMs: 0 },
    );
    await engine.loadWeights(newer(2, 1));
    const known = new Map<number, BegunCompletion>();
    const ended = new Set<number>();
    let isKilled = false;
    const dying = engine.generate(prompts, long, {
      keys: prompts.map((_, index) => index),
      onProgress: (pieces) => {
        for (const { index, tokens, logprobs, from } of pieces) {
          expect(from).toBe(known.get(index)?.tokens.length ?? 0);
          const had = known.get(index) ?? { tokens: [], logprobs: [] };
          known.set(index, {
            tokens: Int32Array.of(...had.tokens, ...tokens),
            logprobs: Float32Array.of(...had.logprobs, ...logprobs),
            ...{ numAppended: 0, turnFrom: 0 },
          });
        }
        if (!isKilled) void double.kill();
        isKilled = true;
      },
      onCompletion: (index) => ended.add(index),
    });
    await expect(dying).rejects.toMatchObject({ code: "service.failed" });
    expect(isKilled).toBe(true);
    const left = [...known].filter(([index]) => !ended.has(index));
    expect(left.length).toBeGreaterThan(0);
    await double.start();
    await engine.generate([prompts[0]!], sampling); // which loads the weights again
    const numAsked = double.generations.length;
    const rest = await engine.generate([], long, {
      join: (add) => {
        for (const [key, begun] of left) add({ prompt: prompts[key]!, key, begun });
      },
    });
    for (const [at, [index, { tokens, logprobs }]] of left.entries()) {
      expect([...rest[at]!.tokens.subarray(0, tokens.length)]).toEqual([...tokens]);
      expect([...rest[at]!.logprobs.subarray(0, tokens.length)]).toEqual([...logprobs]);
      const scored = double.score([...prompts[index]!, ...rest[at]!.tokens]).subarray(prompts[index]!.length);
      for (const [i, logprob] of rest[at]!.logprobs.entries()) expect(logprob).toBeCloseTo(scored[i]!, 4);
      expect(JSON.stringify(double.generations.slice(numAsked))).toContain(
        JSON.stringify([...prompts[index]!, ...tokens]),
      );
    }
  });

  test("AS3 nothing is told that other weights may have chosen", async () => {
    const { engine, double } = await start(kind, {}, { streamMs: 0 });
    double.hold();
    const told: CompletionPiece[] = [];
    const running = engine.generate(prompts, long, { onProgress: (pieces) => told.push(...pieces) });
    const failed = expect(running).rejects.toMatchObject({ code: "engine.poisoned" });
    await double.running(prompts.length);
    double.relabel("another's");
    double.letGo();
    await failed;
    expect(told).toEqual([]);
  });

  test("AS5 a stream that is lost, with half of its events or before them, is asked for again, with the same tokens", async () => {
    const { engine, double } = await start(kind, {}, { streamMs: 0 });
    const expected = await engine.generate(prompts, long);
    for (const fault of [{ type: "reset" }, { type: "reset", isDone: true }, { type: "half" }] as const) {
      const known = prompts.map((): number[] => []);
      double.inject(generatePath[kind], fault);
      const onProgress = (pieces: readonly CompletionPiece[]) => {
        for (const { index, from, tokens } of pieces) known[index]!.splice(from, Number.POSITIVE_INFINITY, ...tokens);
      };
      expect(await engine.generate(prompts, long, { onProgress })).toEqual(expected);
      for (const [index, tokens] of known.entries())
        expect(tokens).toEqual([...expected[index]!.tokens.subarray(0, tokens.length)]);
    }
    double.inject(generatePath[kind], { type: "half" }, 100);
    await expect(engine.generate(prompts, long, { onProgress: () => {} })).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringMatching(/no whole answer|no answer/),
    });
  });

  test("AS6 streams that the server ends, with a last event or an error, begin again, or end with what they have", async () => {
    for (const refusesAborted of [false, true]) {
      const { engine, double } = await start(kind, { refusesAborted });
      const expected = await engine.generate(prompts, long);
      double.hold();
      const running = engine.generate(prompts, long, { onProgress: () => {} });
      await double.running(prompts.length);
      await engine.pause();
      double.letGo();
      engine.resume();
      expect(await running).toEqual(expected);
      double.hold();
      const aborted = engine.generate(prompts, long, { onProgress: () => {} });
      await double.running(prompts.length);
      engine.abort();
      expect((await aborted).map(({ finishReason }) => finishReason)).toEqual(prompts.map(() => "abort"));
    }
  });

  test.each(unusable[kind])(
    "a stream with an event that cannot be used (%s) fails its call",
    async (_, events, message) => {
      const { engine, double } = await start(kind);
      double.inject(generatePath[kind], { type: "answer", body: events });
      await expect(engine.generate(prompts, long, { onProgress: () => {} })).rejects.toMatchObject({
        code: "service.failed",
        message: expect.stringMatching(message),
      });
      expect(double.numRunning).toBe(0);
      await engine.generate(prompts, long, { onProgress: () => {} });
    },
  );
});

test("what is never to be told is not asked for as a stream", async () => {
  const { engine, double } = await start("vllm", {}, { streamMs: "never" });
  expect(engine.tellsProgress).toBe(false);
  await engine.generate(prompts, long, { onProgress: () => expect.unreachable() });
  expect(double.generations.every((body) => (body as { stream: boolean }).stream === false)).toBe(true);
});

test("an SGLang whose events have all tokens so far is not asked for streams, and a warning says what changes that", async () => {
  const { engine, double, warnings } = await start("sglang", { isCumulative: true });
  expect(engine.tellsProgress).toBe(false);
  const onProgress = () => expect.unreachable();
  await engine.generate(prompts, long, { onProgress });
  expect(double.generations.every((body) => (body as { stream: boolean }).stream === false)).toBe(true);
  expect(warnings.join()).toMatch(/begins again where the server dies; start it with --incremental-streaming-output/);
});

test("AS3 an SGLang that names other weights in any event of a stream is found out", async () => {
  const { engine, double } = await start("sglang");
  const event = (token: number, of: string | undefined, count: number, reason: object | null) =>
    sglangEvent([token], [token], {
      ...{ completion_tokens: count, finish_reason: reason },
      ...(of !== undefined && { weight_version: of }),
    });
  const [{ extra_key }] = double.generations.slice(-1) as [{ extra_key: string }];
  const events = [event(1, "another's", 1, null), event(2, extra_key, 2, { type: "length" }), "[DONE]"];
  double.inject(generatePath.sglang, { type: "answer", body: events });
  await expect(engine.generate([prompts[0]!], sampling, { onProgress: () => {} })).rejects.toMatchObject({
    code: "engine.poisoned",
  });
});

test("of an SGLang whose log-probabilities alone are of all tokens so far, those of each event count once", async () => {
  const { engine, double } = await start("sglang", {}, { streamMs: 0 });
  const event = (ids: readonly number[], of: readonly number[], reason: object | null) => ({
    output_ids: ids,
    meta_info: {
      finish_reason: reason,
      completion_tokens: of.length,
      output_token_logprobs: of.map((token, at) => [-1 - at, token, null]),
    },
  });
  const events = [event([1, 2], [1, 2], null), event([3], [1, 2, 3], { type: "length" }), "[DONE]"];
  double.inject(generatePath.sglang, { type: "answer", body: events });
  const [made] = await engine.generate([prompts[0]!], sampling, { onProgress: () => {} });
  expect([[...made!.tokens], [...made!.logprobs]]).toEqual([
    [1, 2, 3],
    [-1, -2, -3],
  ]);
});
