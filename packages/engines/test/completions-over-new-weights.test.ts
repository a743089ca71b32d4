/** Weights come, and completions are cut and go on, at drawn instants: what each token was drawn with is what its version says. */
import { type Completion, type VersionRuns, versionRunsOf, type Weights } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  type BegunCompletion,
  EmulatedEngine,
  type GenerateOptions,
  type GenerationEngine,
  type JoiningCompletion,
  OnNewWeights,
  sealWeights,
  TransformerEngine,
} from "../src/index.ts";
import { behindAnswers } from "../src/new-weights.ts";
import { Draws } from "./support/draws.ts";

const random = new Draws(Number(process.env["TREADLE_SEED"])).split("new weights");
const config = { vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 48, seed: 4, slots: 3 };
const stopToken = 1;
const callToken = 7;
const sampling = { maxTokens: 20, temperature: 1, stopTokens: [callToken, stopToken], seed: random.integer(1000) };
const answer = Int32Array.of(8, 2);
const extend: GenerateOptions["extend"] = async (_, { tokens }) => (tokens.at(-1) === callToken ? answer : undefined);
const numVersions = 12;

const embedded = async (): Promise<TransformerEngine> => TransformerEngine.create(config);
const emulated = async (): Promise<EmulatedEngine> =>
  EmulatedEngine.create({
    vocabSize: config.vocabSize,
    contextLength: config.contextLength,
    slots: config.slots,
    decode: { baseSeconds: 0.0005, unitSeconds: 0 },
    response: { medianTokens: 6, spread: 0.5 },
  });

type Item = { readonly prompt: Int32Array; readonly key: number; begun?: BegunCompletion | undefined };

/** Of an item in a call that lasts until all have ended or were cut. */
async function call(
  engine: GenerationEngine,
  mode: OnNewWeights,
  items: readonly Item[],
  ended: (index: number, completion: Completion, cut: (index: number) => boolean) => void = () => {},
): Promise<Completion[]> {
  let cutOne!: (index: number) => boolean;
  return engine.generate([], sampling, {
    extend,
    onNewWeights: mode,
    join: (add, cut) => {
      cutOne = cut!;
      for (const { prompt, key, begun } of items) add({ prompt, key, begun } as JoiningCompletion);
    },
    onCompletion: (index, completion) => ended(index, completion, cutOne),
  });
}

/** From where each turn begins, and where its answer does. */
function turnsOf(tokens: Int32Array): { readonly from: number; readonly to: number }[] {
  const turns: { from: number; to: number }[] = [];
  let from = 0;
  for (let at = 0; at < tokens.length; at++) {
    if (tokens[at] !== callToken || at + answer.length >= tokens.length) continue;
    turns.push({ from, to: at + 1 });
    from = at + 1 + answer.length;
    at = from - 1;
  }
  return [...turns, { from, to: tokens.length }];
}

function begunOf({ tokens, logprobs, versions }: Completion, length = tokens.length): BegunCompletion | undefined {
  if (length === 0) return undefined;
  const froms = turnsOf(tokens).map(({ from }) => from);
  const turnFrom = froms.filter((from) => from <= length).at(-1) ?? 0;
  const numAppended = answer.length * froms.filter((from) => from > 0 && from <= length).length;
  return {
    ...{ tokens: tokens.slice(0, length), logprobs: logprobs.slice(0, length), numAppended, turnFrom },
    versions: versionRunsOf(versions ?? [], length, 0),
  };
}

/** The first token of each run that was chosen, of those that stand in one turn. */
function runsIn(tokens: Int32Array, runs: VersionRuns): { from: number; to: number; version: number }[] {
  const spans: { from: number; to: number; version: number }[] = [];
  let at = 0;
  for (const [version, count] of runs) {
    for (const turn of turnsOf(tokens)) {
      const [from, to] = [Math.max(turn.from, at), Math.min(turn.to, at + count)];
      if (from < to) spans.push({ from, to, version });
    }
    at += count;
  }
  return spans;
}

const weights: Weights[] = [];
beforeAll(async () => {
  for (let policyVersion = 0; policyVersion < numVersions; policyVersion++) {
    const engine = await TransformerEngine.create({ ...config, seed: 4 + policyVersion });
    weights.push(sealWeights({ ...engine.exportWeights(), policyVersion }));
    await engine.close();
  }
});
const engines: GenerationEngine[] = [];
afterAll(async () => {
  for (const engine of engines.splice(0)) await engine.close();
});
async function opened<E extends GenerationEngine>(make: () => Promise<E>): Promise<E> {
  const engine = await make();
  engines.push(engine);
  return engine;
}

/** Weights of that version, which an emulated engine has by its steps. */
async function load(engine: GenerationEngine, version: number): Promise<void> {
  if (engine instanceof EmulatedEngine)
    await engine.loadWeights(sealWeights({ ...engine.exportWeights(), policyVersion: version }));
  else await engine.loadWeights(weights[version]!);
}

const itemsOf = (draws: typeof random): Item[] =>
  Array.from({ length: 6 }, (_, at) => ({
    key: 100 + at,
    // The same for some, which copy from each other.
    prompt: Int32Array.from({ length: 1 + (at % 3) }, (_, i) => 2 + draws.split(`${at % 3} ${i}`).integer(4)),
  }));

/** One that was cut when it had called, and goes on behind the answer. */
function answered(completion: Completion): Completion {
  const { tokens, logprobs, versions = [], policyVersion, finishReason } = completion;
  if (finishReason !== "abort" || tokens.at(-1) !== callToken) return completion;
  return {
    ...completion,
    tokens: Int32Array.of(...tokens, ...answer),
    logprobs: Float32Array.of(...logprobs, ...answer.map(() => 0)),
    versions: versionRunsOf(versions, tokens.length + answer.length, policyVersion),
  };
}

/** All but who had an answer appended, which nobody chose. */
function drawnIn({ tokens, logprobs, versions }: Completion) {
  return { tokens, logprobs, runs: runsIn(tokens, versions ?? []) };
}

/** Plays all to the end, over weights, cuts, and calls, as they are drawn. */
async function play(engine: GenerationEngine, mode: OnNewWeights, draws: typeof random): Promise<Completion[]> {
  const items = itemsOf(draws);
  const made: Completion[] = [];
  let left = items.map((_, index) => index);
  let version = 0;
  for (let round = 0; left.length > 0; round++) {
    const loading: Promise<void>[] = [];
    let numEnded = 0;
    const running = left;
    const completions = await call(
      engine,
      mode,
      running.map((index) => items[index]!),
      (_, { finishReason }, cut) => {
        if (finishReason === "abort") return;
        const what = draws.split(`${round} ${numEnded++}`);
        if (version < numVersions - 2 && what.float() < 0.6) loading.push(load(engine, ++version));
        // In each round one more at least ends.
        if (what.float() < 0.4) for (const at of running.keys()) if (what.float() < 0.8) cut(at);
      },
    );
    await Promise.all(loading);
    for (const [at, ended] of completions.entries()) {
      const index = running[at]!;
      const completion = answered(ended);
      made[index] = completion;
      const begun = begunOf(completion);
      items[index]!.begun = begun && mode === "restart" ? behindAnswers(begun) : begun;
      if (items[index]!.begun?.tokens.length === 0) items[index]!.begun = undefined;
    }
    left = running.filter((index) => made[index]!.finishReason === "abort" && made[index]!.tokens.at(-1) !== stopToken);
    if (version < numVersions - 1 && draws.split(`between ${round}`).float() < 0.5) await load(engine, ++version);
  }
  return made;
}

const kinds: [kind: string, make: () => Promise<TransformerEngine | EmulatedEngine>][] = [
  ["embedded", embedded],
  ["emulated", emulated],
];
describe.each(kinds)("on the %s engine", (_, make) => {
  test.each(["restart", "recompute"] as const)(
    "SL11, W1: with '%s' each token is, bit for bit, what an engine of its version draws behind those before it",
    async (mode) => {
      let numRuns = 0;
      for (let drawing = 0; drawing < 4; drawing++) {
        const draws = random.split(`${mode} ${drawing}`);
        const items = itemsOf(draws);
        const made = await play(await opened(make), mode, draws);
        for (const [index, completion] of made.entries()) {
          const { tokens, logprobs, versions } = completion;
          expect(versions!.reduce((sum, [, count]) => sum + count, 0)).toBe(tokens.length);
          const runs = runsIn(tokens, versions!);
          numRuns += runs.length - 1;
          if (mode === "restart") expect(runs).toHaveLength(turnsOf(tokens).length);
          for (const { from, to, version } of runs) {
            const fresh = await opened(make);
            await load(fresh, version);
            const [alone] = await call(fresh, mode, [{ ...items[index]!, begun: begunOf(completion, from) }]);
            expect(alone!.tokens.subarray(from, to)).toEqual(tokens.subarray(from, to));
            expect(alone!.logprobs.subarray(from, to)).toEqual(logprobs.subarray(from, to));
          }
        }
      }
      expect(numRuns).toBeGreaterThan(0);
    },
    120_000,
  );
});

describe.each(OnNewWeights.options)("on the emulated engine, with '%s'", (mode) => {
  const profile = {
    ...{ vocabSize: 9, slots: 4, prefillSteps: 1, decode: { baseSeconds: 0.01, unitSeconds: 0 } },
    response: { medianTokens: 10, spread: 0 },
  };
  const [stepMs, numRead, numTokens] = [10, 3, 10];
  const plain = { maxTokens: 30, temperature: 1, stopTokens: [1], seed: 1 };
  const item = { prompt: Int32Array.of(2, 3, 4), key: 5 };
  const join = (begun?: BegunCompletion): GenerateOptions => ({
    onNewWeights: mode,
    join: (add) => void add({ ...item, begun }),
  });
  const instants = Array.from({ length: 6 }, (_, at) => random.split(`instant ${mode} ${at}`).integer(12));

  test.each([0, ...instants, 12])(
    "SL11, W1: weights after %s steps cost the time, and are told, as they are",
    async (steps) => {
      const clock = new ManualClock();
      const engine = EmulatedEngine.create(profile, { clock });
      let endMs = Number.NaN;
      const made = engine.generate([], plain, join()).finally(() => {
        endMs = clock.now();
      });
      await clock.advance(steps * stepMs + 1);
      const loading = load(engine, 1);
      await clock.advance(1000);
      await loading;
      const [{ versions, tokens }] = (await made) as [Completion];
      const numOld = Math.max(0, steps - numRead);
      const again = { restart: steps, recompute: Math.min(steps, numRead) + numOld, keep: 0 }[mode];
      expect(tokens).toHaveLength(numTokens);
      expect(versions).toEqual(
        mode === "restart" || numOld === 0
          ? [[1, 10]]
          : [
              [0, numOld],
              [1, numTokens - numOld],
            ],
      );
      const beganMs = mode === "keep" ? 0 : 1; // what was done of a step
      expect(endMs).toBeCloseTo((numRead + numTokens + again) * stepMs + beganMs, 3);
    },
  );

  test("KV2: what was cut and goes on reads what it has once more, unless it keeps its keys and values", async () => {
    const clock = new ManualClock();
    const engine = EmulatedEngine.create(profile, { clock });
    const cut = engine.generate([], plain, join());
    await clock.advance((numRead + 4) * stepMs + 1);
    engine.abort();
    const [{ tokens, logprobs, versions }] = (await cut) as [Completion];
    expect(tokens).toHaveLength(4);
    const loading = load(engine, 1);
    await clock.advance(1);
    await loading;
    for (const isFirst of [true, false]) {
      const startMs = clock.now();
      let endMs = Number.NaN;
      const made = engine
        .generate([], plain, join({ tokens, logprobs, versions, numAppended: 0, turnFrom: 0 }))
        .finally(() => {
          endMs = clock.now();
        });
      await clock.advance(1000);
      expect(await made).toMatchObject([
        {
          versions: [
            [0, 4],
            [1, 6],
          ],
        },
      ]);
      // Once it has gone on, nothing of it is kept.
      const numReadAgain = mode === "keep" && isFirst ? 0 : numRead + 4;
      expect(endMs - startMs).toBeCloseTo((numReadAgain + 6) * stepMs, 3);
    }
  });
});

describe("on the embedded engine, with 'keep'", () => {
  /** Weights come when the first has ended; the others are cut by then, or run. */
  async function over(isCut: boolean, isReleased = false, mode: OnNewWeights = "keep") {
    const engine = await opened(() => TransformerEngine.create({ ...config, slots: 6 }));
    const items = itemsOf(random.split("keep"));
    let loading: Promise<void> | undefined;
    const made = await call(engine, mode, items, (_, __, cut) => {
      if (loading) return;
      loading = engine.loadWeights(weights[5]!);
      if (isCut) for (const at of items.keys()) cut(at);
    });
    await loading;
    const first = made.map(answered);
    if (!isCut) return first;
    if (isReleased) {
      await engine.release();
      await engine.restore();
    }
    engine.takeWork();
    const left = first.map(({ finishReason, tokens }) => finishReason === "abort" && tokens.at(-1) !== stopToken);
    const going = items.map((item, index) => ({ ...item, begun: begunOf(first[index]!) })).filter((__, at) => left[at]);
    const second = await call(engine, mode, going);
    const { tokens: numRead } = engine.takeWork();
    const whole = first.map((completion, at) => (left[at] ? second.shift()! : completion));
    return Object.assign(whole, { numRead, numKept: going.reduce((sum, { begun }) => sum + begun!.tokens.length, 0) });
  }

  test("KV1, KV2, SL11: what is cut and goes on is, bit for bit, what it is uncut, with each token's version, and reads nothing twice", async () => {
    const running = await over(false);
    const carried = await over(true);
    expect(carried.map(drawnIn)).toEqual(running.map(drawnIn));
    expect(carried.some(({ versions }) => versions!.length > 1)).toBe(true);
    const recomputed = await over(true, false, "recompute");
    const { numRead, numKept } = carried as unknown as { numRead: number; numKept: number };
    expect(numKept).toBeGreaterThan(0);
    expect(recomputed.map(({ versions }) => versions![0])).toEqual(carried.map(({ versions }) => versions![0]));
    expect(recomputed.map(({ logprobs }) => [...logprobs])).not.toEqual(carried.map(({ logprobs }) => [...logprobs]));
    const chosen = carried.reduce((sum, { tokens }) => sum + tokens.length, 0);
    expect(numRead).toBeLessThanOrEqual(chosen);
  });

  test("KV3: is, bit for bit, what 'recompute' makes where the engine was released meanwhile", async () => {
    const released = await over(true, true);
    const recomputed = await over(true, false, "recompute");
    expect(released.map(drawnIn)).toEqual(recomputed.map(drawnIn));
  });

  test("W1: what is cut before a call has seen new weights is of those that chose it", async () => {
    for (const mode of OnNewWeights.options) {
      const engine = await opened(embedded);
      await engine.pause();
      const cut = call(engine, mode, itemsOf(random.split("told")));
      await engine.loadWeights(weights[1]!);
      engine.abort();
      engine.resume();
      for (const { tokens, policyVersion } of await cut) expect([tokens.length, policyVersion]).toEqual([0, 0]);
    }
  });
});
