import { createHash } from "node:crypto";
import { type Sampling, TreadleError } from "@treadle/contracts";
import { sealWeights, TransformerEngine } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { piecesOf } from "../src/pieces.ts";
import { wholeOf } from "../src/testing/whole-of.ts";
import { randomBatch, smallConfig, smallTransformer } from "./small-transformer.ts";

const sampling: Sampling = { maxTokens: 4, temperature: 1, stopTokens: [], seed: 1 };
const prompts = Array.from({ length: 12 }, (_, i) => Int32Array.of(i % 7));

async function train(engine: TransformerEngine, steps: number): Promise<void> {
  for (let step = 0; step < steps; step++) {
    await engine.forwardBackward(randomBatch(4, 6, step), { type: "cross-entropy" });
    await engine.optimStep({ learningRate: 0.02, scale: 0.1 });
  }
}

let trained: TransformerEngine;
beforeAll(async () => {
  trained = await smallTransformer();
  await train(trained, 3);
});
afterAll(() => trained.close());

describe("weights", () => {
  test("carry one engine's policy and version to another", async () => {
    const other = await smallTransformer({ seed: 99 });
    const expected = await trained.generate(prompts, sampling);
    expect(await other.generate(prompts, sampling)).not.toEqual(expected);
    await other.loadWeights(trained.exportWeights());
    expect(other.policyVersion).toBe(3);
    expect(await other.generate(prompts, sampling)).toEqual(expected);
    await other.close();
  });

  test("that do not match are refused and change nothing (W3)", async () => {
    const engine = await smallTransformer();
    const before = engine.exportWeights();
    const weights = trained.exportWeights();
    const [first, ...rest] = weights.parameters;
    const flipped = { ...first!, data: first!.data.map((value, i) => (i === 2 ? value + 1 : value)) };
    const noNumber = { ...first!, data: first!.data.map((value, i) => (i === 2 ? Number.NaN : value)) };
    const narrower = await smallTransformer({ width: 4 });
    for (const wrong of [
      { ...weights, parameters: [flipped, ...rest] },
      { ...weights, policyVersion: 4 },
      { ...weights, checksum: before.checksum },
      sealWeights({ ...weights, parameters: [noNumber, ...rest] }),
      sealWeights({ ...weights, parameters: rest }),
      sealWeights({ ...weights, parameters: [{ ...first!, name: "other" }, ...rest] }),
      narrower.exportWeights(),
    ]) {
      await expect(engine.loadWeights(wrong)).rejects.toMatchObject({ code: "engine.weights-mismatch" });
      expect(engine.exportWeights()).toEqual(before);
    }
    await Promise.all([engine.close(), narrower.close()]);
  });

  test("that arrive while completions run make these start over: each is of one version (W3, TE2)", async () => {
    const engine = await smallTransformer();
    const old = await engine.generate(prompts, sampling);
    let finished = 0;
    const running = engine.generate(prompts, sampling, {
      onCompletion: () => {
        if (finished++ === 0) void engine.loadWeights(trained.exportWeights());
      },
    });
    const renewed = await trained.generate(prompts, sampling);
    const completions = await running;
    expect(new Set(completions.map(({ policyVersion }) => policyVersion))).toEqual(new Set([0, 3]));
    completions.forEach((completion, i) => {
      expect(completion).toEqual(completion.policyVersion === 0 ? old[i] : renewed[i]);
    });
    await engine.close();
  });
});

test("weights that arrive while shared prompts are read make the reading start over (W3, TE2)", async () => {
  const engine = await smallTransformer({ slots: 12 });
  const group = Array<Int32Array>(12).fill(Int32Array.of(1, 2, 3));
  const running = engine.generate(group, sampling);
  await engine.loadWeights(trained.exportWeights());
  const tokens = ({ tokens }: { tokens: Int32Array }) => [...tokens];
  const completions = await running;
  expect(completions.map(tokens)).toEqual((await trained.generate(group, sampling)).map(tokens));
  completions.forEach(({ logprobs, policyVersion }, index) => {
    expect(policyVersion).toBe(3);
    expect(logprobs.every(Number.isFinite), `${index}`).toBe(true);
  });
  await engine.close();
});

describe("a checkpoint", () => {
  test("continues training exactly where it was saved", async () => {
    const saved = await wholeOf(trained.save());
    const resumed = await smallTransformer({ seed: 42 });
    await resumed.load([saved]);
    expect(resumed.exportWeights()).toEqual(trained.exportWeights());
    const original = await smallTransformer();
    await train(original, 3);
    await Promise.all([train(resumed, 2), train(original, 2)]);
    expect(resumed.exportWeights()).toEqual(original.exportWeights());
    expect(resumed.policyVersion).toBe(5);
    await Promise.all([resumed.close(), original.close()]);
  });

  test("is the same in pieces of any size, and that of its call whatever happens while it is read", async () => {
    const engine = await smallTransformer();
    await train(engine, 1);
    const before = await wholeOf(engine.save());
    const saving = engine.save();
    await train(engine, 1);
    expect(await wholeOf(saving)).toEqual(before);
    for (const size of [1, 7, 4096]) {
      const resumed = await smallTransformer({ seed: 42 });
      await resumed.load(piecesOf(before, size));
      expect(await wholeOf(resumed.save())).toEqual(before);
      await resumed.close();
    }
    await engine.close();
  });

  test("whose pieces fail in the middle changes nothing, and the failure is told as it is", async () => {
    const engine = await smallTransformer();
    const before = await wholeOf(engine.save());
    const broken = new TreadleError("checkpoint.corrupt", "a file of it is gone");
    const pieces = function* () {
      yield before.subarray(0, before.length >> 1);
      throw broken;
    };
    await expect(engine.load(pieces())).rejects.toBe(broken);
    expect(await wholeOf(engine.save())).toEqual(before);
    await engine.close();
  });

  test("that is damaged, cut or of another model is refused and changes nothing", async () => {
    const engine = await smallTransformer();
    const before = engine.exportWeights();
    const saved = await wholeOf(trained.save());
    const other = await smallTransformer({ layers: 1 });
    const damaged = [0, 5, 20, 300, saved.length - 1].map((at) => saved.map((byte, i) => (i === at ? byte ^ 1 : byte)));
    const cut = [saved.subarray(0, -1), saved.subarray(0, 3), new Uint8Array(0)];
    const longer = Uint8Array.of(...saved, 0);
    for (const wrong of [...damaged, ...cut, longer, await wholeOf(other.save())]) {
      await expect(engine.load([wrong])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
    }
    expect(engine.exportWeights()).toEqual(before);
    await Promise.all([engine.close(), other.close()]);
  });
});

describe("a checkpoint whose checksum is right", () => {
  test.each([
    ["weights", Number.NaN, 0, "finite numbers"],
    ["weights", Number.POSITIVE_INFINITY, 0, "finite numbers"],
    ["first moments", Number.NEGATIVE_INFINITY, 1, "finite numbers"],
    ["second moments", Number.NaN, 2, "finite numbers from 0 on"],
    ["second moments", -1, 2, "finite numbers from 0 on"],
  ])("is refused with %s of %s, by tensor and place, and changes nothing", async (what, value, part, allowed) => {
    const engine = await smallTransformer();
    const before = await wholeOf(engine.save());
    const { parameters } = trained.exportWeights();
    const [first, second] = parameters as [(typeof parameters)[number], (typeof parameters)[number]];
    const saved = await wholeOf(trained.save());
    const start = saved.length - 32 - 12 * trained.numParameters;
    const at = part * trained.numParameters + first.data.length + 1;
    new DataView(saved.buffer).setFloat32(start + 4 * at, value, true);
    saved.set(createHash("sha256").update(saved.subarray(0, -32)).digest(), saved.length - 32);
    await expect(engine.load([saved])).rejects.toMatchObject({
      code: "checkpoint.corrupt",
      message: expect.stringContaining(
        `its ${what} of '${second.name}' have '${value}' at '1' where ${allowed} are allowed`,
      ),
    });
    expect(await wholeOf(engine.save())).toEqual(before);
    await engine.close();
  });
});

describe("release", () => {
  test("drops every device byte and restore brings the same policy and optimiser back", async () => {
    const engine = await smallTransformer();
    const straight = await smallTransformer();
    await Promise.all([train(engine, 2), train(straight, 2)]);
    const expected = await engine.generate(prompts, sampling);
    expect(engine.memory().residentBytes).toBeGreaterThan(0);
    await engine.release();
    expect(engine.memory().residentBytes).toBe(0);
    await engine.restore();
    expect(engine.memory().residentBytes).toBeGreaterThan(0);
    expect(await engine.generate(prompts, sampling)).toEqual(expected);
    await Promise.all([train(engine, 2), train(straight, 2)]);
    expect(engine.exportWeights()).toEqual(straight.exportWeights());
    await Promise.all([engine.close(), straight.close()]);
  });

  test("makes calls fail, those that run included (TE3)", async () => {
    const engine = await smallTransformer();
    const running = engine.generate(prompts, sampling);
    const outcome = expect(running).rejects.toMatchObject({ code: "engine.released" });
    await engine.release();
    await outcome;
    expect(engine.memory().residentBytes).toBe(0);
    const batch = randomBatch(1, 6, 0);
    for (const call of [
      () => engine.generate(prompts, sampling),
      () => engine.logprobs(batch),
      () => engine.forwardBackward(batch, { type: "cross-entropy" }),
      () => engine.optimStep({ learningRate: 0.1 }),
      () => engine.loadWeights(trained.exportWeights()),
    ]) {
      await expect(call()).rejects.toMatchObject({ code: "engine.released" });
    }
    await engine.close();
  });
});

test("equal configurations start equal, and a wrong one is refused with every problem", async () => {
  const [one, two] = [await smallTransformer(), await smallTransformer()];
  expect(one.exportWeights()).toEqual(two.exportWeights());
  await Promise.all([one.close(), two.close()]);
  const wrong = TransformerEngine.create({ ...smallConfig, vocabSize: 1, layers: 0 });
  await expect(wrong).rejects.toMatchObject({ code: "config.invalid" });
  await expect(wrong).rejects.toThrow(/layers/);
  await expect(wrong).rejects.toThrow(/vocabSize/);
  await expect(TransformerEngine.create({ ...smallConfig, heads: 3 })).rejects.toThrow(/heads/);
});

test("calls that read or write parameters run one after another, though nobody waits between them (TE1)", async () => {
  const [waited, hurried] = await Promise.all([smallTransformer(), smallTransformer()]);
  const weights = trained.exportWeights();
  const batch = randomBatch(120, 6, 9); // many pieces, with turns of the event loop between them
  const calls = (engine: TransformerEngine): (() => Promise<unknown>)[] => [
    () => engine.forwardBackward(batch, { type: "cross-entropy" }),
    () => engine.logprobs(batch),
    () => engine.optimStep({ learningRate: 0.05, scale: 0.01 }),
    () => engine.logprobs(batch),
    () => engine.forwardBackward(batch, { type: "cross-entropy" }),
    () => engine.optimStep({ learningRate: 0.05, scale: 0.01 }),
    () => engine.logprobs(batch),
    () => engine.loadWeights(weights),
    () => engine.logprobs(batch),
  ];
  const expected: unknown[] = [];
  for (const call of calls(waited)) expected.push(await call());
  expect(await Promise.all(calls(hurried).map((call) => call()))).toEqual(expected);
  expect(hurried.exportWeights()).toEqual(waited.exportWeights());
  await Promise.all([waited.close(), hurried.close()]);
});
