/** Engines whose model an inference server runs, against doubles that refuse what the real servers would. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { Completion, Weights } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import { TinyModel, writeTinyModel } from "@treadle/engines/testing";
import { describe, expect, test } from "vitest";
import { conformingModel } from "../src/testing/conformance.ts";
import { describeGeneration } from "./generation-contract.ts";
import {
  contract,
  folder,
  generatePath,
  type Kind,
  kinds,
  loadPath,
  newer,
  own,
  prompts,
  sampling,
  start,
  tokensOf,
  weightsFolder,
} from "./support/attached-servers.ts";

/** Lets time pass until something that waits for a deadline has settled. */
async function pass(clock: ManualClock, waiting: Promise<unknown>): Promise<void> {
  let isSettled = false;
  const settled = waiting.finally(() => {
    isSettled = true;
  });
  while (!isSettled) await clock.advance(1_000);
  await settled;
}

describeGeneration("sglang", undefined, () => contract("sglang", {}));
describeGeneration("vllm", undefined, () => contract("vllm", {}));
describeGeneration("sglang on shared devices", undefined, () => contract("sglang", { sharedMemoryMiB: 100 }));
describeGeneration("vllm on shared devices", undefined, () => contract("vllm", { sharedMemoryMiB: 100 }));
describeGeneration("vllm, three at a time", undefined, () => contract("vllm", { maxRunning: 3 }));

/** What weights say of the prompts, worked out without a server. */
const expectedOf = async (kind: Kind, weights: Weights): Promise<readonly Completion[]> => {
  const { engine } = await start(kind);
  await engine.loadWeights(weights);
  return engine.generate(prompts, sampling);
};

describe.each(kinds)("an engine of kind %s", (kind) => {
  test("AS1 loads its model before anything is generated, and leaves nothing on the disk when it closes", async () => {
    const { engine, double } = await start(kind);
    expect(double.calls.indexOf(`POST ${loadPath[kind]}`)).toBeLessThan(
      double.calls.indexOf(`POST ${generatePath[kind]}`),
    );
    await engine.loadWeights(newer(2, 1));
    await engine.loadWeights(newer(3, 2));
    const [own] = await readdir(weightsFolder);
    expect(await readdir(join(weightsFolder, own!))).toEqual([expect.stringMatching(/^version-2-/)]);
    await engine.close();
    expect(await readdir(weightsFolder)).toEqual([]);
  });

  test("the server gets what was trained, in the type of the model's folder", async () => {
    const path = join(folder, `${kind}-bf16`);
    await writeTinyModel(path, { ...conformingModel, dtype: "BF16" }, own);
    const { engine, double } = await start(kind, { model: path }, { model: path });
    const weights = newer(4, 1);
    await engine.loadWeights(weights);
    const exact = new TinyModel(weights.parameters);
    const [rounded, whole] = [double.score([1, 2, 3]), exact.score([1, 2, 3], 1)];
    expect([...rounded]).not.toEqual([...whole]);
    for (let at = 1; at < 3; at++) expect(rounded[at]).toBeCloseTo(whole[at]!, 1);
  });

  test("AS4 prefixes are kept apart by version, also where the cache could not be dropped", async () => {
    const { engine, double } = await start(kind);
    await engine.generate(prompts, sampling);
    await engine.loadWeights(newer(2, 1));
    await engine.generate(prompts, sampling);
    const salts = double.generations.map((body) => {
      const { extra_key, cache_salt } = body as { extra_key?: string; cache_salt?: string };
      return extra_key ?? cache_salt;
    });
    expect(new Set(salts).size).toBe(2);
  });

  test("AS6 weights that come while the server generates end what runs there; it begins again", async () => {
    const expected = await expectedOf(kind, newer(2, 1));
    const { engine, double } = await start(kind);
    double.hold();
    const running = engine.generate(prompts, sampling);
    await double.running(prompts.length);
    await engine.loadWeights(newer(2, 1));
    double.letGo();
    const completions = await running;
    expect(tokensOf(completions)).toEqual(tokensOf(expected));
    for (const { policyVersion } of completions) expect(policyVersion).toBe(1);
  });

  test("AS6 a call that is aborted, cancelled or failed leaves nothing running on the server", async () => {
    const { engine, double } = await start(kind);
    double.hold();
    const aborted = engine.generate(prompts, sampling);
    await double.running(prompts.length);
    engine.abort();
    expect((await aborted).map(({ finishReason }) => finishReason)).toEqual(prompts.map(() => "abort"));
    expect(double.numRunning).toBe(0);
    const controller = new AbortController();
    const cancelled = engine.generate(prompts, sampling, { signal: controller.signal });
    await double.running(prompts.length);
    controller.abort();
    await expect(cancelled).rejects.toMatchObject({ code: "call.cancelled" });
    expect(double.numRunning).toBe(0);
    const released = engine.generate(prompts, sampling);
    const ended = expect(released).rejects.toMatchObject({ code: "engine.released" });
    await double.running(prompts.length);
    await engine.release();
    await ended;
    expect(double.numRunning).toBe(0);
  });

  test("what 'onCompletion' throws, generate throws", async () => {
    const { engine } = await start(kind);
    const onCompletion = () => {
      throw new Error("no place");
    };
    await expect(engine.generate(prompts, sampling, { onCompletion })).rejects.toThrow("no place");
  });

  test("never asks for more at once than it may", async () => {
    const { engine, double } = await start(kind, {}, { maxRunning: 3 });
    double.hold();
    const running = Promise.all([engine.generate(prompts, sampling), engine.generate(prompts, sampling)]);
    await double.running(3);
    expect(double.numRunning).toBe(3);
    double.letGo();
    const [first, second] = await running;
    expect(tokensOf(first)).toEqual(tokensOf(second));
  });

  test("AS5 a request whose connection is lost is made once more, with the same tokens", async () => {
    const { engine, double } = await start(kind);
    const expected = await engine.generate(prompts, sampling);
    for (const fault of [{ type: "reset" }, { type: "reset", isDone: true }, { type: "half" }] as const) {
      double.inject(generatePath[kind], fault);
      expect(await engine.generate(prompts, sampling)).toEqual(expected);
    }
    double.inject(generatePath[kind], { type: "reset" }, 100);
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "service.failed" });
  });

  test.each([
    [{ type: "status", status: 500, text: "CUDA error" } as const, { code: "service.failed", message: /CUDA error/ }],
    [
      { type: "answer", body: { choices: [], output_ids: "none" } } as const,
      { code: "service.failed", message: /sources/ },
    ],
  ])(
    "a completion that fails (%j) fails its call with what the server says, and the next runs",
    async (fault, expected) => {
      const { engine, double } = await start(kind);
      double.inject(generatePath[kind], fault);
      const { code, message } = expected;
      await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      });
      expect(double.numRunning).toBe(0);
      await engine.generate(prompts, sampling);
    },
  );

  test("a server that hangs fails its calls at their deadline", async () => {
    const clock = new ManualClock();
    const { engine, double } = await start(kind, {}, { completionTimeoutMs: 90_000 }, clock);
    double.inject(generatePath[kind], { type: "hang" });
    const late = { code: "service.failed", message: expect.stringContaining("90000 ms") };
    await pass(clock, expect(engine.generate(prompts, sampling)).rejects.toMatchObject(late));
    await engine.generate(prompts, sampling);
  });

  test("a server that is frozen is noticed, however long its completions may take", async () => {
    const clock = new ManualClock();
    const { engine, double } = await start(kind, {}, { completionTimeoutMs: 10 ** 9 }, clock);
    double.hold();
    const running = engine.generate(prompts, sampling);
    const failed = expect(running).rejects.toMatchObject({ code: "service.failed" });
    await double.running(prompts.length);
    double.freeze();
    await pass(clock, failed);
    expect(clock.now()).toBeLessThan(10 ** 6);
  });

  test("AS6 ending one call ends nothing of another, whatever their requests are called", async () => {
    const { engine, double } = await start(kind);
    const many = Array.from({ length: 12 }, (_, index) => Int32Array.of(index % 7));
    const expected = await engine.generate(many, sampling);
    const { engine: fresh, double: other } = await start(kind);
    expect(double.url).not.toBe(other.url);
    other.hold();
    const controller = new AbortController();
    const one = fresh.generate([Int32Array.of(1)], sampling, { signal: controller.signal });
    const others = fresh.generate(many, sampling);
    await other.running(1 + many.length);
    controller.abort();
    await expect(one).rejects.toMatchObject({ code: "call.cancelled" });
    other.letGo();
    expect(await others).toEqual(expected);
  });

  test("AS6 requests that the server ends with an error begin again, or end with what they have", async () => {
    const { engine, double } = await start(kind, { refusesAborted: true });
    const expected = await engine.generate(prompts, sampling);
    double.hold();
    const running = engine.generate(prompts, sampling);
    await double.running(prompts.length);
    await engine.pause();
    double.letGo();
    engine.resume();
    expect(await running).toEqual(expected);
    double.hold();
    const aborted = engine.generate(prompts, sampling);
    await double.running(prompts.length);
    engine.abort();
    expect((await aborted).map(({ finishReason }) => finishReason)).toEqual(prompts.map(() => "abort"));
  });

  test("AS3 a server that dies fails its calls, and one that was restarted gets the weights again before it generates", async () => {
    const { engine, double, warnings } = await start(kind);
    await engine.loadWeights(newer(2, 1));
    const expected = await engine.generate(prompts, sampling);
    double.hold();
    const running = engine.generate(prompts, sampling);
    const failed = expect(running).rejects.toMatchObject({ code: "service.failed" });
    await double.running(prompts.length);
    await double.kill();
    await failed;
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "service.failed" });
    await double.start();
    double.inject(loadPath[kind], { type: "status", status: 503 });
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.poisoned" });
    const both = await Promise.all([engine.generate(prompts, sampling), engine.generate(prompts, sampling)]);
    expect(both).toEqual([expected, expected]);
    expect(warnings.join()).toMatch(/restarted[\s\S]*version '1' is loaded again/);
  });

  test.each([false, true])(
    "AS3 what was chosen while another client updates the server does not count, and the weights are loaded again (answers without labels: %s)",
    async (isUnlabelled) => {
      const { engine, double } = await start(kind, { isUnlabelled });
      const expected = await engine.generate(prompts, sampling);
      double.hold();
      const counted: number[] = [];
      const running = engine.generate(prompts, sampling, { onCompletion: (index) => counted.push(index) });
      const failed = expect(running).rejects.toMatchObject({ code: "engine.poisoned" });
      await double.running(prompts.length);
      double.relabel("another's");
      double.letGo();
      await failed;
      expect(counted).toEqual([]);
      expect(await engine.generate(prompts, sampling)).toEqual(expected);
    },
  );

  test("what has the highest priority is asked for first, and nothing else changes", async () => {
    const { engine, double } = await start(kind, {}, { maxRunning: 1 });
    const expected = await engine.generate(prompts, sampling);
    const ended: number[] = [];
    const before = double.generations.length;
    const completions = await engine.generate(prompts, sampling, {
      order: { priority: (index) => [2, 0, 3, 2][index]! },
      onCompletion: (index) => ended.push(index),
    });
    expect(completions).toEqual(expected);
    expect(double.generations.length - before).toBe(prompts.length);
    expect(ended).toEqual([2, 0, 3, 1]);
    const failing = engine.generate(prompts, sampling, { order: { priority: () => Number.NaN } });
    await expect(failing).rejects.toMatchObject({ code: "engine.invalid-request" });
  });

  test.each([
    ["is refused half-way", { type: "status", status: 500, text: "disk I/O error" } as const],
    ["loses its connection", { type: "reset", isDone: true } as const],
    ["has half an answer", { type: "half" } as const],
    ["hangs", { type: "hang" } as const],
  ])("AS2 a load that %s poisons the engine until a whole one", async (_, fault) => {
    const clock = new ManualClock();
    const { engine, double } = await start(kind, {}, {}, clock);
    double.inject(loadPath[kind], fault);
    const poisoned = { code: "engine.poisoned", message: expect.stringContaining("version '1'") };
    const failed = expect(engine.loadWeights(newer(2, 1))).rejects.toMatchObject(poisoned);
    if (fault.type === "hang") await pass(clock, failed);
    await failed;
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject(poisoned);
    expect(engine.policyVersion).toBe(0);
    await engine.loadWeights(newer(2, 1));
    expect(tokensOf(await engine.generate(prompts, sampling))).toEqual(tokensOf(await expectedOf(kind, newer(2, 1))));
  });

  test("AS2 completions that wait for a load fail with it", async () => {
    const { engine, double } = await start(kind);
    double.hold();
    const failed = expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.poisoned" });
    await double.running(prompts.length);
    double.inject(loadPath[kind], { type: "status", status: 500 });
    await expect(engine.loadWeights(newer(2, 1))).rejects.toMatchObject({ code: "engine.poisoned" });
    await failed;
    expect(double.numRunning).toBe(0);
  });

  test("AS1 a server that says it has loaded and has not is found out by its checksum", async () => {
    const { engine, double } = await start(kind);
    await engine.loadWeights(newer(2, 1));
    double.ignoreLoads();
    await expect(engine.loadWeights(newer(3, 2))).rejects.toMatchObject({
      code: "engine.poisoned",
      message: expect.stringContaining("checksum"),
    });
  });

  test("of shared devices the server gives its memory back between uses, and has its weights again afterwards", async () => {
    const { engine, double } = await start(kind, {}, { sharedMemoryMiB: 64 });
    expect(engine.memory()).toMatchObject({ residentBytes: 0, loadedBytes: 64 * 2 ** 20 });
    await engine.restore();
    await engine.loadWeights(newer(2, 1));
    const expected = await engine.generate(prompts, sampling);
    expect(engine.memory().residentBytes).toBe(64 * 2 ** 20);
    double.hold();
    const ended = expect(engine.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.released" });
    await double.running(prompts.length);
    await engine.release();
    await ended;
    double.letGo();
    expect(engine.memory().residentBytes).toBe(0);
    await engine.restore();
    expect(engine.policyVersion).toBe(1);
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
  });

  test("of shared devices SGLang gives weights and cache back by themselves, and vLLM both at once", async () => {
    const { engine, double } = await start(kind, { weightsGiB: 0.25 }, { sharedMemoryMiB: 1024 });
    const [shared, weightsBytes] = [2 ** 30, 2 ** 28];
    const tagsOf = () => engine.memory().tags?.map(({ tag, bytes }) => [tag, bytes]);
    const path = kind === "sglang" ? "POST /resume_memory_occupation" : "POST /wake_up";
    const isTagged = kind === "sglang";
    expect(engine.memory()).toMatchObject({ residentBytes: 0, loadedBytes: shared });
    expect(tagsOf()).toEqual(
      isTagged
        ? [
            ["weights", weightsBytes],
            ["cache", shared - weightsBytes],
          ]
        : undefined,
    );
    // As weights are pulled: the cache is brought back for the next generation only.
    await engine.restore(["weights"]);
    expect(engine.memory().residentBytes).toBe(isTagged ? weightsBytes : shared);
    await engine.loadWeights(newer(2, 1));
    if (isTagged)
      await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({
        code: "engine.released",
        message: expect.stringContaining("cache"),
      });
    await engine.restore();
    const expected = await engine.generate(prompts, sampling);
    const loads = () => double.calls.filter((call) => call === `POST ${loadPath[kind]}`).length;
    const [numLoads, numResumed] = [loads(), double.calls.filter((call) => call === path).length];
    expect(numResumed).toBe(isTagged ? 2 : 1);
    await engine.release(["cache"]);
    expect(engine.memory().residentBytes).toBe(isTagged ? weightsBytes : 0);
    await engine.restore(["cache"]);
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
    // Weights that stayed are not loaded again.
    expect(loads() > numLoads).toBe(!isTagged);
    await engine.release(["weights"]);
    await engine.restore(["weights"]);
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
    expect(loads()).toBeGreaterThan(numLoads);
    if (isTagged) expect(engine.memory().tags?.find(({ tag }) => tag === "weights")?.restoreSeconds).toBeGreaterThan(0);
    await engine.release();
    expect(engine.memory().residentBytes).toBe(0);
    await engine.restore();
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
  });

  test("a server that takes more for its weights than it is said to share is one piece, and a warning says so", async () => {
    const { engine, warnings } = await start(kind, { weightsGiB: 2 }, { sharedMemoryMiB: 1024 });
    expect(engine.memory().tags).toBeUndefined();
    expect(warnings.join().includes("engine.sharedMemoryMiB is '1024'")).toBe(kind === "sglang");
  });

  test("an end that the model has by itself is none where nobody asked for it (SQ3)", async () => {
    const path = join(folder, `${kind}-end`);
    const stops = { ...sampling, stopTokens: [5] };
    await writeTinyModel(path, { ...conformingModel, endToken: 3 }, own);
    const { engine } = await start(kind, { model: path }, { model: path });
    const many = Array.from({ length: 5 }, () => prompts).flat();
    const completions = await engine.generate(many, { ...stops, maxTokens: 6 });
    expect(completions.some(({ tokens }) => tokens.indexOf(3) >= 0 && tokens.indexOf(3) < tokens.length - 1)).toBe(
      true,
    );
    for (const { tokens, finishReason } of completions)
      expect(finishReason).toBe(tokens.at(-1) === 5 ? "stop" : "length");
  });

  test("raw log-probabilities allow temperatures 1 and 0 alone, and a warning says what changes that", async () => {
    const { engine, warnings } = await start(kind, { isRaw: true });
    const flag = kind === "vllm" ? "--logprobs-mode processed_logprobs" : "SGLANG_RETURN_ORIGINAL_LOGPROB";
    expect(warnings.join()).toContain(flag);
    await engine.generate(prompts, sampling);
    await engine.generate(prompts, { ...sampling, temperature: 0 });
    await expect(engine.generate(prompts, { ...sampling, temperature: 0.7 })).rejects.toMatchObject({
      code: "engine.invalid-request",
      message: expect.stringContaining(flag),
    });
  });

  test("a server without promised determinism is one to warn of", async () => {
    const { warnings } = await start(kind, { isDeterministic: false });
    expect(warnings.join()).toContain(kind === "vllm" ? "VLLM_BATCH_INVARIANT" : "--enable-deterministic-inference");
  });
});
