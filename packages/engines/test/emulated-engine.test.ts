import type { Completion, Sampling } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import { EmulatedEngine } from "@treadle/engines";
import fc from "fast-check";
import { beforeEach, describe, expect, test } from "vitest";
import { Decoder } from "../src/emulated/decoder.ts";
import { wholeOf } from "../src/testing/whole-of.ts";
import { randomBatch } from "./small-transformer.ts";

const profile = {
  devices: 4,
  alpha: 0.5,
  decode: { baseSeconds: 0.01, unitSeconds: 0.02 },
  response: { medianTokens: 10 },
  logprobs: { unitSeconds: 0.1 },
  training: { baseSeconds: 1, unitSeconds: 0.2 },
  optimStepSeconds: 0.5,
  loadWeightsSeconds: 2,
  onloadSeconds: 3,
  offloadSeconds: 4,
  residentBytes: 1e9,
};
const sampling: Sampling = { maxTokens: 100, temperature: 1, stopTokens: [7], seed: 1 };
const prompt = Int32Array.of(1, 2, 3);
const stepMs = (running: number) => 10 + (20 * running) / 2;

let clock: ManualClock;
beforeEach(() => {
  clock = new ManualClock();
});

/** When a call settles, in milliseconds. */
async function settledAt(call: Promise<unknown>, limitMs = 1e6): Promise<number> {
  let at: number | undefined;
  const watched = call.finally(() => {
    at = clock.now();
  });
  while (at === undefined && clock.now() < limitMs) await clock.advance(1);
  await watched;
  return at!;
}

describe("an emulated engine", () => {
  test("takes the time its profile says, scaled by devices", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    expect(await settledAt(engine.generate([prompt, prompt], sampling))).toBeCloseTo(10 * stepMs(2), 0);
    const start = clock.now();
    const batch = randomBatch(2, 5, 1);
    expect((await settledAt(engine.logprobs(batch))) - start).toBeCloseTo((100 * 10) / 2, 0);
    expect((await settledAt(engine.forwardBackward(batch, { type: "cross-entropy" }))) - start).toBeCloseTo(2500, 0);
    expect((await settledAt(engine.optimStep({ learningRate: 0.1 }))) - start).toBeCloseTo(3000, 0);
    expect(engine.policyVersion).toBe(1);
  });

  test("takes as many times as long as its profile says beside others, from when it is told until it is told again", async () => {
    const engine = EmulatedEngine.create({ ...profile, beside: { train: 1.5, rollout: 1.2 } }, { clock });
    const batch = randomBatch(2, 5, 1);
    engine.computesBeside(["train"]);
    expect(await settledAt(engine.forwardBackward(batch, { type: "cross-entropy" }))).toBeCloseTo(1.5 * 2000, 0);
    engine.computesBeside(["other"]);
    const start = clock.now();
    const generated = engine.generate([prompt, prompt], sampling);
    await clock.advance(100);
    engine.computesBeside(["rollout", "train"]);
    await clock.advance(60);
    engine.computesBeside([]);
    expect((await settledAt(generated)) - start).toBeCloseTo(160 + 10 * stepMs(2) - 100 - 60 / 1.5, 0);
  });

  test("counts passes and tokens of what it computes, and how long that takes, up to any instant", async () => {
    const engine = EmulatedEngine.create({ ...profile, beside: { train: 2 } }, { clock });
    const batch = randomBatch(2, 5, 1);
    expect(engine.takeWork()).toEqual({ passes: 0, tokens: 0, ms: 0, isEmulated: true });
    const generated = engine.generate([prompt, prompt], sampling);
    await clock.advance(4 * stepMs(2));
    expect(engine.takeWork()).toEqual({ passes: 4, tokens: 8, ms: 4 * stepMs(2), isEmulated: true });
    engine.computesBeside(["train"]);
    await settledAt(generated);
    const rest = engine.takeWork();
    expect(rest.passes).toBeCloseTo(6, 3);
    expect(rest.tokens).toBeCloseTo(12, 3);
    expect(rest.ms).toBeCloseTo(2 * 6 * stepMs(2), 0);
    await clock.advance(500); // nothing is computed
    const trained = engine.forwardBackward(batch, { type: "cross-entropy" });
    await clock.advance(1000);
    const part = engine.takeWork();
    expect(part.passes).toBeCloseTo(1000 / 4000, 3);
    expect(part.tokens).toBeCloseTo((1000 / 4000) * 10, 2);
    expect(part.ms).toBeCloseTo(1000, 3);
    await settledAt(trained);
    expect(engine.takeWork().passes).toBeCloseTo(3000 / 4000, 3);
  });

  test("SM2: counts what its passes take, however late its timers come and whenever others begin beside it", async () => {
    const late = { now: () => clock.now(), after: (ms: number, run: () => void) => clock.after(ms + 300, run) };
    const engine = EmulatedEngine.create({ ...profile, beside: { train: 2 } }, { clock: late });
    const batch = randomBatch(2, 5, 1);
    await settledAt(engine.generate([prompt, prompt], sampling));
    await settledAt(engine.forwardBackward(batch, { type: "cross-entropy" }));
    const alone = engine.takeWork();
    expect(alone.passes).toBeCloseTo(11, 3);
    expect(alone.ms).toBeCloseTo(10 * stepMs(2) + 2000, 0);
    const half = engine.generate([prompt, prompt], sampling);
    await clock.advance(5 * stepMs(2));
    engine.computesBeside(["train"]);
    await settledAt(half);
    const trained = engine.forwardBackward(batch, { type: "cross-entropy" });
    await clock.advance(1000);
    engine.computesBeside([]);
    await settledAt(trained);
    const beside = engine.takeWork();
    expect(beside.passes).toBeCloseTo(11, 3);
    expect(beside.ms).toBeCloseTo(5 * stepMs(2) + 2 * 5 * stepMs(2) + 1000 + 1500, 0);
  });

  test("generates a token in the time of its number of devices, slowed down by others as elsewhere", async () => {
    const tokenTime = { 1: 0.036, 4: 0.012 };
    for (const [devices, seconds] of [
      [1, 0.036],
      [4, 0.012],
    ] as const) {
      const engine = EmulatedEngine.create({ ...profile, devices, tokenTime }, { clock });
      for (const rows of [1, 3]) {
        const start = clock.now();
        const prompts = Array.from({ length: rows }, () => prompt);
        const factor = (0.01 + 0.02 * rows) / (0.01 + 0.02);
        expect((await settledAt(engine.generate(prompts, sampling))) - start).toBeCloseTo(10_000 * seconds * factor, 0);
      }
    }
    expect(() => EmulatedEngine.create({ ...profile, devices: 2, tokenTime }, { clock })).toThrow(
      "'tokenTime' has nothing for '2' devices, but for 1, 4",
    );
  });

  test("runs training calls one after another (ME1) and concurrent generations on one decoder", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const batch = randomBatch(2, 5, 1);
    const both = Promise.all([engine.logprobs(batch), engine.logprobs(batch)]);
    expect(await settledAt(both)).toBeCloseTo(1000, 0);
    const start = clock.now();
    const calls = Promise.all([engine.generate([prompt], sampling), engine.generate([prompt], sampling)]);
    expect((await settledAt(calls)) - start).toBeCloseTo(10 * stepMs(2), 0);
  });

  test("keeps the order of calls that are not awaited", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const batch = randomBatch(2, 5, 1);
    const calls = [
      engine.forwardBackward(batch, { type: "cross-entropy" }),
      engine.optimStep({ learningRate: 0.1 }),
      engine.forwardBackward(batch, { type: "cross-entropy" }),
    ];
    await settledAt(Promise.all(calls));
    const weight = batch.weights.reduce((a, b) => a + b, 0);
    expect(engine.gradients()[0]).toBeCloseTo(weight, 5);
  });

  test("speeds up the rest when a sequence finishes", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const ends: number[] = [];
    const onCompletion = () => ends.push(clock.now());
    const short = engine.generate([prompt], { ...sampling, maxTokens: 4 }, { onCompletion });
    const long = engine.generate([prompt], sampling, { onCompletion });
    await settledAt(Promise.all([short, long]));
    expect(ends[0]).toBeCloseTo(4 * stepMs(2), 5);
    expect(ends[1]).toBeCloseTo(4 * stepMs(2) + 6 * stepMs(1), 5);
  });

  test("draws lengths around the median, the same for the same seed", async () => {
    const varied = { ...profile, response: { medianTokens: 20, spread: 0.7 } };
    const prompts = Array<Int32Array>(400).fill(prompt);
    const run = async (seed: number) => {
      const engine = EmulatedEngine.create(varied, { clock, seed });
      const call = engine.generate(prompts, { ...sampling, maxTokens: 60 });
      await settledAt(call);
      return call;
    };
    const first = await run(1);
    expect(await run(1)).toEqual(first);
    expect(await run(2)).not.toEqual(first);
    const lengths = first.map(({ tokens }) => tokens.length).sort((a, b) => a - b);
    expect(Math.abs(lengths[200]! - 20)).toBeLessThan(3);
    expect(lengths.at(-1)).toBe(60);
    for (const { tokens, logprobs, finishReason } of first) {
      expect(logprobs.length).toBe(tokens.length);
      expect(tokens.indexOf(7)).toBe(finishReason === "stop" ? tokens.length - 1 : -1);
      expect(tokens.every((token) => token >= 0 && token < 256)).toBe(true);
    }
  });

  test("gives what a key names one length and the same tokens, on every rank and however calls are cut", async () => {
    const varied = { ...profile, response: { medianTokens: 20, spread: 0.7 }, durationSpread: 0.5 };
    const keys = [5, 6, 7, 8];
    const ranks = [0, 1].map((rank) => EmulatedEngine.create(varied, { clock, seed: 3, rank }));
    const together = ranks[0]!.generate(
      keys.map(() => prompt),
      sampling,
      { keys },
    );
    const apart = Promise.all([8, 5, 7, 6].map((key) => ranks[1]!.generate([prompt], sampling, { keys: [key] })));
    await settledAt(Promise.all([together, apart]));
    const [a, b, c, d] = (await apart).map(([completion]) => completion);
    expect(await together).toEqual([b, d, c, a]);
  });

  test("abort, pause and cancellation act at the time they are called (DE3)", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const call = engine.generate([prompt], sampling);
    await clock.advance(3.5 * stepMs(1));
    await engine.pause();
    await clock.advance(5000);
    engine.resume();
    await clock.advance(stepMs(1));
    engine.abort();
    expect((await call)[0]).toMatchObject({ finishReason: "abort", tokens: { length: 4 } });

    const controller = new AbortController();
    const cancelled = engine.generate([prompt], sampling, { signal: controller.signal });
    controller.abort();
    await expect(cancelled).rejects.toMatchObject({ code: "call.cancelled" });
  });

  test("takes weights, after which what runs begins again under the new version (TE2)", async () => {
    const trainer = EmulatedEngine.create(profile, { clock, seed: 5 });
    await settledAt(trainer.optimStep({ learningRate: 0.1 }));
    const engine = EmulatedEngine.create(profile, { clock });
    const slow = { ...sampling, maxTokens: 10 };
    const start = clock.now();
    let completions: Completion[] = [];
    const call = engine.generate([prompt, prompt], slow).then((result) => {
      completions = result;
    });
    await engine.pause();
    const loaded = engine.loadWeights(trainer.exportWeights());
    await settledAt(loaded);
    engine.resume();
    expect((await settledAt(call)) - start).toBeCloseTo(2000 + 10 * stepMs(2), 0);
    expect(completions.map(({ policyVersion }) => policyVersion)).toEqual([1, 1]);
    const tampered = { ...trainer.exportWeights(), policyVersion: 8 };
    const refused = expect(engine.loadWeights(tampered)).rejects.toMatchObject({ code: "engine.weights-mismatch" });
    await clock.advance(3000);
    await refused;
  });

  test("release and restore take their time, free the memory, and refuse calls between (ME3)", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const saved = await wholeOf(engine.save());
    expect(await settledAt(engine.release())).toBeCloseTo(4000, 0);
    expect(engine.memory().residentBytes).toBe(0);
    await expect(engine.generate([prompt], sampling)).rejects.toMatchObject({ code: "engine.released" });
    expect(await settledAt(engine.restore())).toBeCloseTo(7000, 0);
    expect(engine.memory().residentBytes).toBe(1e9);
    await engine.load([saved]);
    await expect(engine.load([saved.subarray(1)])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
  });

  test("close ends what runs without waiting for the clock", async () => {
    const engine = EmulatedEngine.create(profile, { clock });
    const running = expect(engine.generate([prompt], sampling)).rejects.toMatchObject({ code: "engine.released" });
    await engine.close();
    await running;
    expect(clock.now()).toBe(0);
  });

  test("gives its slots by priority, and the same completions in any order", async () => {
    const engine = EmulatedEngine.create({ ...profile, slots: 1 }, { clock });
    const expected = engine.generate([prompt, prompt, prompt], sampling);
    await settledAt(expected);
    const finished: number[] = [];
    const ordered = engine.generate([prompt, prompt, prompt], sampling, {
      onCompletion: (index) => finished.push(index),
      order: { priority: (index) => [1, 3, 2][index]! },
    });
    await settledAt(ordered);
    expect(finished).toEqual([1, 2, 0]);
    expect(await ordered).toEqual(await expected);
    const wrong = engine.generate([prompt], sampling, { order: { priority: () => Number.NaN } });
    await expect(wrong).rejects.toMatchObject({ code: "engine.invalid-request" });
  });

  describe("turns", () => {
    const turns = { decode: { baseSeconds: 0.01 }, response: { medianTokens: 10 }, slots: 1, prefillSteps: 0 };
    const answer = Int32Array.of(9, 9);
    const numTurns = ({ tokens }: Completion) => tokens.filter((token) => token === 7).length;

    test("a completion that goes on elsewhere, behind a tool's answer or in the midst of the turn after it, is what it is at home", async () => {
      const varied = { ...turns, response: { medianTokens: 10, spread: 0.5 } };
      const seen: Completion[] = [];
      const extend = async (_: number, completion: Completion) => {
        seen.push(completion);
        return numTurns(completion) < 3 ? answer : undefined;
      };
      const engine = EmulatedEngine.create(varied, { clock });
      const call = engine.generate([prompt], sampling, { keys: [5], extend });
      await settledAt(call);
      const [whole] = await call;
      expect(numTurns(whole!)).toBe(3);
      const lengths = seen.map(({ tokens }, turn) => tokens.length - (seen[turn - 1]?.tokens.length ?? 0));
      expect(new Set(lengths).size, "turns differ in length").toBeGreaterThan(1);
      expect([...whole!.logprobs].filter((logprob) => logprob === 0)).toHaveLength(4);
      const points = [0, 1].flatMap((turn) => [0, 2].map((ahead) => ({ turn, ahead })));
      for (const { turn, ahead } of points) {
        const turnFrom = seen[turn]!.tokens.length + answer.length;
        const begun = {
          tokens: whole!.tokens.slice(0, turnFrom + ahead),
          logprobs: whole!.logprobs.slice(0, turnFrom + ahead),
          numAppended: 2 * (turn + 1),
          turnFrom,
        };
        const elsewhere = EmulatedEngine.create(varied, { clock, rank: 1 });
        const going = elsewhere.generate([], sampling, {
          extend,
          join: (add) => void add({ prompt, key: 5, begun }),
        });
        await settledAt(going);
        expect(await going).toEqual([whole]);
      }
    });

    test.each([
      { spareCaches: 0, what: "keeps its place", endMs: 1300 },
      { spareCaches: 1, what: "lends its place", endMs: 1200 },
    ])("DE4: a completion whose tool works $what with $spareCaches spare caches", async ({ spareCaches, endMs }) => {
      const engine = EmulatedEngine.create(turns, { clock });
      const call = engine.generate([prompt, prompt], sampling, {
        order: { priority: () => 0, spareCaches },
        extend: async (index, completion) => {
          if (index === 1 || numTurns(completion) === 2) return undefined;
          await clock.sleep(1000);
          return answer;
        },
      });
      expect(await settledAt(call)).toBeCloseTo(endMs, 0);
      expect((await call).map(numTurns)).toEqual([2, 1]);
    });

    test("begin again with new weights, whatever a tool says of the turns before (TE2)", async () => {
      const trainer = EmulatedEngine.create(turns, { clock });
      await settledAt(trainer.optimStep({ learningRate: 0.1 }));
      const extend = async (_: number, completion: Completion) => {
        if (numTurns(completion) === 2) return undefined;
        await clock.sleep(1000);
        return answer;
      };
      const plain = trainer.generate([prompt], sampling, { extend });
      await settledAt(plain);
      const engine = EmulatedEngine.create(turns, { clock });
      const startMs = clock.now();
      const call = engine.generate([prompt], sampling, { extend });
      await clock.advance(150);
      const loading = engine.loadWeights(await trainer.exportWeights());
      expect((await settledAt(call)) - startMs).toBeCloseTo(1350, -1);
      await loading;
      expect(await call).toEqual(await plain);
    });

    test("what a tool throws, the call throws, and the engine is free again", async () => {
      const engine = EmulatedEngine.create(turns, { clock });
      const call = engine.generate([prompt, prompt], sampling, {
        extend: async () => {
          throw new Error("the tool broke");
        },
      });
      call.catch(() => {});
      await clock.advance(1000);
      await expect(call).rejects.toThrow("the tool broke");
      expect(engine.idle()).toBeUndefined();
    });
  });

  test("refuses a wrong profile with its problems", () => {
    const create = () => EmulatedEngine.create({ ...profile, alpha: 2, devices: 0 }, { clock });
    expect(create).toThrow(/alpha/);
    expect(create).toThrow(/devices/);
  });
});

test("the decoder finishes everything after exactly its steps, however time is cut (DE1, DE2)", () => {
  const jobs = fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 1, maxLength: 12 });
  const cuts = fc.array(fc.double({ min: 0.01, max: 500, noNaN: true }), { maxLength: 20 });
  fc.assert(
    fc.property(jobs, cuts, fc.integer({ min: 1, max: 4 }), (steps, pieces, slots) => {
      const finish = (advances: readonly number[]) => {
        const decoder = new Decoder((running) => 10 + running, slots, 0);
        decoder.add(steps.map((count, id) => ({ id, steps: count })));
        const order: number[] = [];
        let now = 0;
        for (const piece of advances) {
          now += piece;
          order.push(...decoder.advance(now));
        }
        while (decoder.untilFinishMs !== undefined) {
          now += decoder.untilFinishMs;
          order.push(...decoder.advance(now));
        }
        return { order, now };
      };
      const whole = finish([]);
      expect([...whole.order].sort((a, b) => a - b)).toEqual(steps.map((_, id) => id));
      expect(whole.now).toBeLessThanOrEqual(steps.reduce((a, b) => a + b, 0) * (10 + slots) + 1e-3);
      const total = steps.reduce((a, b) => a + b, 0);
      expect(whole.now).toBeGreaterThanOrEqual((total / slots) * (10 + slots) - 1e-3);
      const cut = finish(pieces);
      expect(new Set(cut.order)).toEqual(new Set(whole.order));
      if (pieces.reduce((a, b) => a + b, 0) < whole.now) expect(cut.now).toBeCloseTo(whole.now, 3);
    }),
    { numRuns: 100 },
  );
});

test("the decoder begins what has the highest priority, equal ones in the order in which they came (DE1)", () => {
  const priorities = fc.array(fc.integer({ min: -2, max: 2 }), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(priorities, priorities, (first, later) => {
      const decoder = new Decoder(() => 1, 1, 0);
      const given = [...first, ...later].map((priority, id) => ({ id, steps: 5, priority }));
      decoder.add(given.slice(0, first.length));
      decoder.advance(1);
      decoder.add(given.slice(first.length));
      const finished: number[] = [];
      while (decoder.untilFinishMs !== undefined) finished.push(...decoder.advance(5 * (finished.length + 1)));
      const byPriority = (some: typeof given) => [...some].sort((a, b) => b.priority - a.priority || a.id - b.id);
      // The one that ran when the others came is not displaced.
      const [running, ...waiting] = byPriority(given.slice(0, first.length));
      const expected = [running!, ...byPriority([...waiting, ...given.slice(first.length)])];
      expect(finished).toEqual(expected.map(({ id }) => id));
    }),
  );
});

test("each that joins has its own completion, although others end while it joins, and who is told of it joins another", async () => {
  // Time passes and no timer has fired yet, as in a process that is late.
  let nowMs = 0;
  const late = { now: () => nowMs, after: () => () => {} };
  const tokensOf = new Map<number, string>();
  const keyOf = new Map<number, number>();
  const engine = EmulatedEngine.create({ ...profile, response: { medianTokens: 10, spread: 0.5 } }, { clock: late });
  let add!: (key: number) => void;
  const call = engine.generate([], sampling, {
    join: (join) => {
      add = (key) => {
        keyOf.set(join({ prompt, key })!, key);
      };
      add(0);
    },
    onCompletion: (index, { tokens }) => {
      tokensOf.set(keyOf.get(index)!, tokens.join());
      if (index === 0) add(2);
    },
  });
  nowMs = 60_000;
  add(1);
  expect(Object.fromEntries(keyOf)).toEqual({ 0: 0, 1: 1, 2: 2 });
  nowMs = 120_000;
  await engine.pause();
  await call;
  const alone = EmulatedEngine.create({ ...profile, response: { medianTokens: 10, spread: 0.5 } }, { clock });
  const expected = alone.generate([prompt, prompt, prompt], sampling, { keys: [0, 1, 2] });
  await settledAt(expected);
  for (const [key, { tokens }] of (await expected).entries()) expect(tokensOf.get(key), `${key}`).toBe(tokens.join());
});
