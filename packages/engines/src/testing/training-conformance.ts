/**
 * What every engine has to keep that trains all parameters of its model.
 *
 *     const { cases, close } = trainingConformance(create);
 *     for (const { name, run } of cases) test(name, run);
 *     after(close);
 */
import assert from "node:assert/strict";
import type { LossSpec, TrainBatch, Weights } from "@treadle/contracts";
import type { OptimStep, TrainingEngine } from "../engine.ts";
import { sealWeights } from "../parameters.ts";
import { piecesOf } from "../pieces.ts";
import {
  assertClose,
  assertRefused,
  type Conformance,
  type ConformanceOptions,
  casesOver,
  conformingModel,
} from "./conformance.ts";
import { wholeOf } from "./whole-of.ts";

/** Two engines of one configuration and seed, which run a model of `conformingModel`'s sizes. They are released at first: the suite restores them. */
export type TestedTraining = {
  readonly engine: TrainingEngine;
  readonly another: TrainingEngine;
  close(): Promise<void>;
};

type Begun = TestedTraining & {
  readonly initial: readonly [Weights, Weights];
  /** as saved before the first step */
  readonly fresh: Uint8Array;
};

const clipped = { type: "policy-gradient", ratio: "token", clipLow: 0.2, clipHigh: 0.28 } as const;
const losses: Readonly<Record<string, LossSpec>> = {
  "cross-entropy": { type: "cross-entropy" },
  "policy gradient by token": { ...clipped, dualClip: 3, klCoefficient: 0.1, entropyCoefficient: 0.01 },
  "policy gradient by sequence": {
    ...{ ...clipped, ratio: "sequence" },
    ...{ klCoefficient: 0.2, klEstimator: "k2", entropyCoefficient: 0 },
  },
  "policy gradient by row": { ...clipped, ratio: "sequence-product", klCoefficient: 0, entropyCoefficient: 0.02 },
};
const loss = losses["policy gradient by token"] as LossSpec;
const step = { learningRate: 0.01, scale: 0.1, maxGradNorm: 0.5, weightDecay: 0.1 };

/** Numbers in [0, 1), the same on every run. */
function numbersOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Rows with a prompt of two tokens and a ragged end. */
function drawnBatch(rows: number, seed: number) {
  const { vocabSize, contextLength: columns } = conformingModel;
  const random = numbersOf(seed);
  const ends = Array.from({ length: rows }, () => 3 + Math.floor(random() * (columns - 2)));
  const fill = (value: () => number) => Float32Array.from({ length: rows * columns }, value);
  const isTrained = (i: number) => i % columns >= 2 && i % columns < (ends[Math.floor(i / columns)] as number);
  return {
    ...{ rows, columns },
    tokens: Int32Array.from({ length: rows * columns }, () => Math.floor(random() * vocabSize)),
    temperatures: Float32Array.from({ length: rows }, (_, row) => [1, 0.5, 2][row % 3] as number),
    weights: fill(() => 0.2 + random()).map((weight, i) => (isTrained(i) ? weight : 0)),
    advantages: fill(() => 2 * random() - 1),
    oldLogprobs: fill(() => -2 + 1.2 * (random() - 0.5)),
    refLogprobs: fill(() => -2 + 1.2 * (random() - 0.5)),
  } satisfies TrainBatch;
}
type Batch = ReturnType<typeof drawnBatch>;

function rowsOf(batch: Batch, from: number, to: number): Batch {
  const { columns } = batch;
  const cut = (values: Float32Array) => values.slice(from * columns, to * columns);
  return {
    ...{ rows: to - from, columns },
    tokens: batch.tokens.slice(from * columns, to * columns),
    temperatures: batch.temperatures.slice(from, to),
    weights: cut(batch.weights),
    advantages: cut(batch.advantages),
    oldLogprobs: cut(batch.oldLogprobs),
    refLogprobs: cut(batch.refLogprobs),
  };
}

const normOf = (values: Float32Array): number => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
const zero = async (engine: TrainingEngine): Promise<void> =>
  engine.setGradients(new Float32Array((await engine.gradients()).length));
async function gradientOf(engine: TrainingEngine, batch: Batch, spec = loss): Promise<Float32Array> {
  await zero(engine);
  await engine.forwardBackward(batch, spec);
  const gradient = await engine.gradients();
  await zero(engine);
  return Float32Array.from(gradient);
}
function assertSameGradient(actual: Float32Array, expected: Float32Array): void {
  assertClose(actual, expected, 1e-4 * expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
}
async function assertSameWeights(one: TrainingEngine, other: TrainingEngine, tolerance: number): Promise<void> {
  const [actual, expected] = [await one.exportWeights(), await other.exportWeights()];
  assert.equal(actual.policyVersion, expected.policyVersion);
  for (const [i, { name, data }] of expected.parameters.entries()) {
    assert.equal(actual.parameters[i]?.name, name);
    assertClose(actual.parameters[i]?.data ?? [], data, tolerance);
  }
}
/** The first has what the second has, its optimiser's state included. */
const follow = async (one: TrainingEngine, other: TrainingEngine): Promise<void> =>
  one.load(piecesOf(await wholeOf(other.save())));

/** Weights that are moved by `distance` along a direction of length 1, flat in the order of the parameters. */
function moved({ parameters, policyVersion }: Weights, direction: Float32Array, distance: number): Weights {
  let at = 0;
  const along = parameters.map((parameter) => ({
    ...parameter,
    data: parameter.data.map((value) => value + distance * (direction[at++] as number)),
  }));
  assert.equal(at, direction.length, "gradients are flat in the order of the parameters");
  return sealWeights({ policyVersion, parameters: along });
}

const betas = { beta1: 0.5, beta2: 0.7 };
/** `of`: the bound, as a share of the gradient's norm before its scale */
const drawnSteps: readonly (OptimStep & typeof betas & { readonly of?: number })[] = [
  { ...betas, learningRate: 0.01 },
  { ...betas, learningRate: 0.02, scale: 0.2 },
  { ...betas, learningRate: 0.01, scale: 0.5, of: 0.1 },
  { ...betas, learningRate: 0.02, weightDecay: 2 },
];

type ReferenceStep = OptimStep & typeof betas & { readonly epsilon: number };

/** AdamW as its paper has it, in float64, from its first step on. */
function referenceOf({ parameters }: Weights) {
  const values = parameters.map(({ data }) => Float64Array.from(data));
  const numValues = values.reduce((sum, { length }) => sum + length, 0);
  const [first, second] = [new Float64Array(numValues), new Float64Array(numValues)];
  let numSteps = 0;
  /** Returns the norm of the scaled gradient before it is bounded. */
  const step = (gradient: Float64Array, given: ReferenceStep): number => {
    const { learningRate, epsilon, beta1, beta2, scale = 1, maxGradNorm, weightDecay = 0 } = given;
    const norm = scale * Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0));
    const factor = scale * Math.min(1, (maxGradNorm ?? norm) / norm);
    numSteps++;
    // What all steps so far have left of a start at 0.
    const [biasOfFirst, biasOfSecond] = [1 - beta1 ** numSteps, 1 - beta2 ** numSteps];
    let at = 0;
    for (const [i, own] of values.entries()) {
      const decay = (parameters[i]?.shape.length ?? 0) > 1 ? weightDecay : 0;
      for (let j = 0; j < own.length; j++, at++) {
        const slope = factor * (gradient[at] as number);
        first[at] = beta1 * (first[at] as number) + (1 - beta1) * slope;
        second[at] = beta2 * (second[at] as number) + (1 - beta2) * slope * slope;
        const size = Math.sqrt((second[at] as number) / biasOfSecond) + epsilon;
        const value = own[j] as number;
        own[j] = value - learningRate * ((first[at] as number) / biasOfFirst / size + decay * value);
      }
    }
    return norm;
  };
  return { values, step };
}

export function trainingConformance(create: () => Promise<TestedTraining>, options?: ConformanceOptions): Conformance {
  const begun = async (): Promise<Begun> => {
    const tested = await create();
    const { engine, another } = tested;
    await Promise.all([engine.restore(), another.restore()]);
    const initial = [await engine.exportWeights(), await another.exportWeights()] as const;
    const fresh = await wholeOf(engine.save());
    return { engine, another, initial, fresh, close: () => tested.close() };
  };
  return casesOver<Begun>(
    begun,
    {
      "begins alike for one configuration and seed": async ({ initial: [one, other] }) => {
        assert.deepEqual(one.parameters, other.parameters);
        assert.deepEqual([one.policyVersion, other.policyVersion], [0, 0]);
      },

      "scores each token given those before it: what may come next sums up to 1, at each temperature": async ({
        engine,
      }) => {
        const { vocabSize } = conformingModel;
        for (const temperature of [1, 0.5, 2])
          for (const before of [[3], [1, 4], [0, 6, 2, 5]]) {
            const columns = before.length + 1;
            const tokens = Int32Array.from({ length: vocabSize * columns }, (_, i) =>
              i % columns < before.length ? (before[i % columns] as number) : Math.floor(i / columns),
            );
            const temperatures = new Float32Array(vocabSize).fill(temperature);
            const scored = await engine.logprobs({ rows: vocabSize, columns, tokens, temperatures });
            const next = Array.from({ length: vocabSize }, (_, row) => scored[(row + 1) * columns - 1] as number);
            assert.ok(next.every((logprob) => logprob < 0));
            assertClose([next.reduce((sum, logprob) => sum + Math.exp(logprob), 0)], [1], 1e-4);
            assert.equal(scored[0], 0);
          }
      },

      "what comes after a token, and other rows, change nothing": async ({ engine }) => {
        const row = Int32Array.of(3, 1, 4);
        const alone = await engine.logprobs({ rows: 1, columns: 3, tokens: row });
        const tokens = Int32Array.of(5, 5, 5, 5, 5, 5, ...row, 2, 0, 6);
        const padded = await engine.logprobs({ rows: 2, columns: 6, tokens });
        assertClose(padded.subarray(6, 9), alone, 1e-5);
      },

      "computes nothing for a batch without rows, which a rank has that is done before its fellow ranks": async ({
        engine,
      }) => {
        await zero(engine);
        const none = rowsOf(drawnBatch(1, 1), 0, 0);
        assert.equal((await engine.logprobs(none)).length, 0);
        const { loss: sum, weight } = await engine.forwardBackward(none, loss);
        assert.deepEqual([sum, weight], [0, 0]);
        assert.ok((await engine.gradients()).every((value) => value === 0));
      },

      "refuses tokens outside of the vocabulary, and losses without what they need": async ({ engine }) => {
        const outside = { rows: 1, columns: 2, tokens: Int32Array.of(1, conformingModel.vocabSize) };
        await assertRefused(engine.logprobs(outside), "engine.invalid-request");
        const { advantages: _, ...without } = drawnBatch(2, 1);
        await assertRefused(engine.forwardBackward(without, loss), "engine.invalid-request");
        await zero(engine);
      },

      "sums gradients: a batch in parts is the batch": async ({ engine }) => {
        const batch = drawnBatch(6, 23);
        for (const spec of Object.values(losses)) {
          const whole = await gradientOf(engine, batch, spec);
          assert.ok(normOf(whole) > 1e-3);
          for (const [from, to] of [
            [0, 1],
            [1, 4],
            [4, 6],
          ] as const)
            await engine.forwardBackward(rowsOf(batch, from, to), spec);
          assertSameGradient(await engine.gradients(), whole);
        }
        await zero(engine);
      },

      "what stands at an entry of weight 0 leaves no trace, not even NaN": async ({ engine }) => {
        const batch = drawnBatch(6, 24);
        const expected = await gradientOf(engine, batch);
        const unread = (values: Float32Array) => values.map((old, i) => (batch.weights[i] === 0 ? Number.NaN : old));
        const changed = {
          advantages: unread(batch.advantages),
          oldLogprobs: unread(batch.oldLogprobs),
          refLogprobs: unread(batch.refLogprobs),
        };
        assertSameGradient(await gradientOf(engine, { ...batch, ...changed }), expected);
      },

      "the gradient is the slope of the loss that it tells": async ({ engine }) => {
        const weights = await engine.exportWeights();
        for (const [name, spec] of Object.entries(losses)) {
          const batch = drawnBatch(5, 25);
          const gradient = await gradientOf(engine, batch, spec);
          const norm = normOf(gradient);
          const direction = gradient.map((value) => value / norm);
          const distance = 3e-3;
          const lossAt = async (by: number): Promise<number> => {
            await engine.loadWeights(moved(weights, direction, by));
            return (await engine.forwardBackward(batch, spec)).loss;
          };
          const slope = ((await lossAt(distance)) - (await lossAt(-distance))) / (2 * distance);
          await engine.loadWeights(weights);
          await zero(engine);
          assert.ok(
            Math.abs(slope - norm) < 0.03 * norm,
            `${name}: the slope is '${slope}', and the gradient says '${norm}'`,
          );
        }
      },

      "a step lowers the loss, makes one version of the weights, and leaves no gradient": async ({ engine }) => {
        const batch = drawnBatch(6, 26);
        const spec: LossSpec = { type: "cross-entropy" };
        await zero(engine);
        const before = await engine.forwardBackward(batch, spec);
        const norm = normOf(await engine.gradients());
        const version = engine.policyVersion;
        const { gradNorm } = await engine.optimStep({ learningRate: 1e-3, scale: 0.5 });
        assertClose([gradNorm], [0.5 * norm], 1e-3 * norm);
        assert.equal(engine.policyVersion, version + 1);
        assert.equal((await engine.exportWeights()).policyVersion, version + 1);
        assert.ok((await engine.gradients()).every((value) => value === 0));
        const after = await engine.forwardBackward(batch, spec);
        await zero(engine);
        assert.ok(after.loss < before.loss);
      },

      "a step is AdamW's, by the rate, the scale, the bound of the norm and the decay that it is given": async ({
        engine,
        fresh,
      }) => {
        await engine.load(piecesOf(fresh));
        const expected = referenceOf(await engine.exportWeights());
        for (const [number, given] of drawnSteps.entries()) {
          await zero(engine);
          await engine.forwardBackward(drawnBatch(6, 40 + number), { type: "cross-entropy" });
          const gradient = Float64Array.from(await engine.gradients());
          const norm = Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0));
          const { of, ...step } = given;
          // So large that a gradient's size counts, which AdamW's step would lose.
          const epsilon = norm / Math.sqrt(gradient.length);
          const asked = { ...step, epsilon, ...(of && { maxGradNorm: of * norm }) };
          const wanted = expected.step(gradient, asked);
          const { gradNorm } = await engine.optimStep(asked);
          assertClose([gradNorm], [wanted], 1e-4 * wanted);
          const { parameters } = await engine.exportWeights();
          for (const [i, { data }] of parameters.entries())
            assertClose(data, expected.values[i] as Float64Array, 1e-3 * step.learningRate);
        }
      },

      "ranks that sum their gradients take the step of one that has the whole batch": async ({ engine, another }) => {
        await follow(another, engine);
        const batch = drawnBatch(8, 22);
        const parts = [
          await gradientOf(another, rowsOf(batch, 0, 3)),
          await gradientOf(another, rowsOf(batch, 3, 8)),
        ] as const;
        await another.setGradients(parts[0].map((value, i) => value + (parts[1][i] as number)));
        await another.optimStep(step);
        await zero(engine);
        await engine.forwardBackward(batch, loss);
        await engine.optimStep(step);
        // A moment that is nearly 0 may have either sign, and moves its parameter by the learning rate.
        await assertSameWeights(another, engine, 2.5 * step.learningRate);
        const tokens = batch.tokens;
        const rows = { rows: 8, columns: batch.columns, tokens };
        assertClose(await another.logprobs(rows), await engine.logprobs(rows), 1e-2);
      },

      "a gradient that is not finite is refused, and nothing changes": async ({ engine }) => {
        const before = await engine.exportWeights();
        const gradient = await gradientOf(engine, drawnBatch(2, 27));
        gradient[gradient.length >> 1] = Number.NaN;
        await engine.setGradients(gradient);
        await assertRefused(engine.optimStep(step), "engine.diverged");
        assert.deepEqual(await engine.exportWeights(), before);
        await zero(engine);
      },

      "goes on from a saved state as if it had not stopped, its optimiser included": async ({ engine, another }) => {
        const train = async (one: TrainingEngine, seed: number): Promise<void> => {
          await zero(one);
          await one.forwardBackward(drawnBatch(4, seed), { type: "cross-entropy" });
          await one.optimStep(step);
        };
        await train(engine, 31);
        await follow(another, engine);
        for (const seed of [32, 33]) {
          await train(engine, seed);
          await train(another, seed);
        }
        await assertSameWeights(another, engine, 1e-5);
      },

      "a damaged state is refused, and nothing changes": async ({ engine }) => {
        const saved = await wholeOf(engine.save());
        const before = await engine.exportWeights();
        const flipped = saved.with(saved.length >> 1, (saved[saved.length >> 1] as number) ^ 1);
        for (const damaged of [flipped, saved.subarray(0, saved.length - 5)])
          await assertRefused(engine.load(piecesOf(damaged)), "checkpoint.corrupt");
        assert.deepEqual(await engine.exportWeights(), before);
      },

      "its weights are the same policy in another engine": async ({ engine, another }) => {
        await zero(engine);
        await engine.forwardBackward(drawnBatch(4, 34), { type: "cross-entropy" });
        await engine.optimStep(step);
        const weights = await engine.exportWeights();
        await another.loadWeights(weights);
        assert.equal(another.policyVersion, engine.policyVersion);
        const { rows, columns, tokens } = drawnBatch(5, 35);
        const [scored, expected] = [
          await another.logprobs({ rows, columns, tokens }),
          await engine.logprobs({ rows, columns, tokens }),
        ];
        assertClose(scored, expected, 1e-5);
        await assertRefused(another.loadWeights({ ...weights, checksum: "0" }), "engine.weights-mismatch");
      },

      "refuses to compute while released, tells what it has, and is restored as it was": async ({ engine }) => {
        const { rows, columns, tokens } = drawnBatch(3, 36);
        const expected = await engine.logprobs({ rows, columns, tokens });
        const weights = await engine.exportWeights();
        await engine.release();
        await engine.release();
        await assertRefused(engine.logprobs({ rows, columns, tokens }), "engine.released");
        await assertRefused(engine.forwardBackward(drawnBatch(3, 36), loss), "engine.released");
        assert.deepEqual(await engine.exportWeights(), weights);
        await engine.restore();
        await engine.restore();
        assertClose(await engine.logprobs({ rows, columns, tokens }), expected, 1e-6);
      },
    },
    options,
  );
}
