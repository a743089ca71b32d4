import { ActorCriticEngine, type ControlBatch, type ControlLoss } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { sequence } from "./small-transformer.ts";

const config = { observationSize: 3, actionSize: 2, hidden: [6, 5], seed: 4, microBatchRows: 4 };
const loss: ControlLoss = { clipLow: 0.1, clipHigh: 0.3, valueCoefficient: 0.5, entropyCoefficient: 0.02 };

function randomBatch(rows: number): ControlBatch {
  const random = sequence(8);
  const fill = (size: number, from: number, to: number) =>
    Float32Array.from({ length: size }, () => from + (to - from) * random());
  return {
    rows,
    observations: fill(rows * 3, -1, 1),
    actions: fill(rows * 2, -0.8, 0.8),
    weights: fill(rows, 0.1, 1).map((weight, row) => (row === 2 ? 0 : weight)),
    advantages: fill(rows, -1, 1),
    oldLogprobs: fill(rows, -2.2, -0.8),
    returns: fill(rows, -1, 1),
    oldValues: fill(rows, -1, 1),
  };
}

type Matrices = Record<string, Float64Array>;

/** The loss in float64, one row after another. */
function referenceLoss(weights: Matrices, batch: ControlBatch, spec: ControlLoss) {
  const network = (name: string, inputs: number[]) => {
    let x = inputs;
    for (let layer = 0; weights[`${name}.${layer}.matrix`]; layer++) {
      const [matrix, bias] = [weights[`${name}.${layer}.matrix`]!, weights[`${name}.${layer}.bias`]!];
      const last = !weights[`${name}.${layer + 1}.matrix`];
      x = [...bias].map((b, j) => {
        const sum = x.reduce((total, value, i) => total + value * matrix[i * bias.length + j]!, b);
        return last ? sum : Math.tanh(sum);
      });
    }
    return x;
  };
  const logDeviation = weights["actor.logDeviation"]!;
  const metrics = { loss: 0, weight: 0, kl: 0, entropy: 0, clipFraction: 0, valueLoss: 0 };
  for (let row = 0; row < batch.rows; row++) {
    const weight = batch.weights[row]!;
    const observation = [...batch.observations.subarray(row * 3, row * 3 + 3)];
    const density = network("actor", observation).map((mean, i) => {
      const distance = (batch.actions[row * 2 + i]! - mean) / Math.exp(logDeviation[i]!);
      return -0.5 * distance ** 2 - logDeviation[i]! - 0.5 * Math.log(2 * Math.PI);
    });
    const logRatio = density[0]! + density[1]! - batch.oldLogprobs[row]!;
    const [ratio, advantage] = [Math.exp(logRatio), batch.advantages[row]!];
    const clipped = Math.min(Math.max(ratio, 1 - spec.clipLow), 1 + spec.clipHigh) * advantage;
    const objective = Math.min(ratio * advantage, clipped);
    const value = network("critic", observation)[0]!;
    const [target, old] = [batch.returns[row]!, batch.oldValues[row]!];
    let error = (value - target) ** 2;
    if (spec.valueClip !== undefined) {
      const moved = old + Math.min(Math.max(value - old, -spec.valueClip), spec.valueClip);
      error = Math.max(error, (moved - target) ** 2);
    }
    const entropy = logDeviation[0]! + logDeviation[1]! + Math.log(2 * Math.PI * Math.E);
    metrics.weight += weight;
    metrics.kl += weight * (ratio - 1 - logRatio);
    metrics.entropy += weight * entropy;
    metrics.clipFraction += clipped < ratio * advantage ? weight : 0;
    metrics.valueLoss += weight * 0.5 * error;
    metrics.loss += weight * (-objective + spec.valueCoefficient * 0.5 * error - spec.entropyCoefficient * entropy);
  }
  return metrics;
}

let engine: ActorCriticEngine;
beforeAll(async () => {
  engine = await ActorCriticEngine.create(config);
});
afterAll(() => engine.close());

describe("the actor-critic", () => {
  test.each([
    ["without", undefined],
    ["with", 0.1],
  ])("has gradients equal to finite differences in float64, %s clipped values", async (_name, valueClip) => {
    const spec = { ...loss, valueClip };
    const batch = randomBatch(10);
    const { parameters } = engine.exportWeights();
    const reference = Object.fromEntries(parameters.map(({ name, data }) => [name, Float64Array.from(data)]));
    engine.setGradients(new Float32Array(engine.numParameters));
    const metrics = await engine.forwardBackward(batch, spec);
    const expected = referenceLoss(reference, batch, spec);
    expect(expected.clipFraction).toBeGreaterThan(0);
    for (const name of Object.keys(expected) as (keyof typeof expected)[]) {
      expect(metrics[name], name).toBeCloseTo(expected[name], 4);
    }
    const gradients = engine.gradients();
    let offset = 0;
    for (const { name, data } of parameters) {
      for (let at = 0; at < data.length; at += Math.ceil(data.length / 4)) {
        const lossAt = (change: number) => {
          const moved = {
            ...reference,
            [name]: reference[name]!.map((value, i) => (i === at ? value + change : value)),
          };
          return referenceLoss(moved, batch, spec).loss;
        };
        const slope = (lossAt(1e-5) - lossAt(-1e-5)) / 2e-5;
        expect(Math.abs(gradients[offset + at]! - slope), name).toBeLessThan(1e-4 + 1e-3 * Math.abs(slope));
      }
      offset += data.length;
    }
  });

  test("reports log-probabilities that training agrees with: the divergence from the acting policy is zero", async () => {
    const { observations } = randomBatch(10);
    const acted = await engine.act(observations, 10, { seed: 3 });
    const { kl, weight, valueLoss } = await engine.forwardBackward(
      {
        ...randomBatch(10),
        actions: acted.actions,
        oldLogprobs: acted.logprobs,
        returns: acted.values,
        oldValues: acted.values,
      },
      loss,
    );
    expect(weight).toBeGreaterThan(1);
    expect(kl).toBeCloseTo(0, 6);
    expect(valueLoss).toBeCloseTo(0, 6);
  });

  test("acts the same for the same seed, otherwise for another, and at the mean when greedy", async () => {
    const { observations } = randomBatch(10);
    const acted = await engine.act(observations, 10, { seed: 3 });
    expect(await engine.act(observations, 10, { seed: 3 })).toEqual(acted);
    expect((await engine.act(observations, 10, { seed: 4 })).actions).not.toEqual(acted.actions);
    const first = await engine.act(observations.subarray(0, 3), 1, { seed: 3 });
    expect(first.actions).toEqual(acted.actions.subarray(0, 2));
    const greedy = await engine.act(observations, 10, { greedy: true, seed: 1 });
    expect(greedy).toEqual(await engine.act(observations, 10, { greedy: true, seed: 2 }));
    await expect(engine.act(observations, 9)).rejects.toMatchObject({ code: "engine.invalid-request" });
  });

  test("with a seed for each row acts in each as alone, whatever rows are beside it and in whatever order", async () => {
    const { observations } = randomBatch(10);
    const seeds = Uint32Array.from({ length: 10 }, (_, row) => 7 + 3 * (row % 9));
    const together = await engine.act(observations, 10, { seeds });
    for (let row = 0; row < 10; row++) {
      const alone = await engine.act(observations.slice(3 * row, 3 * row + 3), 1, { seed: seeds[row] });
      expect(alone.actions).toEqual(together.actions.slice(2 * row, 2 * row + 2));
      expect(alone.logprobs).toEqual(together.logprobs.slice(row, row + 1));
      expect(alone.values).toEqual(together.values.slice(row, row + 1));
    }
    const backwards = Float32Array.from({ length: 30 }, (_, i) => observations[3 * (9 - Math.floor(i / 3)) + (i % 3)]!);
    const reversed = await engine.act(backwards, 10, { seeds: seeds.toReversed() });
    expect(reversed.logprobs.toReversed()).toEqual(together.logprobs);
    await expect(engine.act(observations, 10, { seeds: seeds.slice(1) })).rejects.toThrow("'seeds' has '9' entries");
  });

  test("continues from a checkpoint, takes weights, and survives release", async () => {
    const other = await ActorCriticEngine.create({ ...config, seed: 77 });
    await engine.forwardBackward(randomBatch(10), loss);
    await engine.optimStep({ learningRate: 0.01 });
    await other.load(engine.save());
    await other.release();
    await expect(other.act(new Float32Array(3), 1)).rejects.toMatchObject({ code: "engine.released" });
    expect(other.memory().residentBytes).toBe(0);
    await other.restore();
    for (const each of [engine, other]) {
      await each.forwardBackward(randomBatch(6), loss);
      await each.optimStep({ learningRate: 0.01 });
    }
    expect(other.exportWeights()).toEqual(engine.exportWeights());
    const third = await ActorCriticEngine.create(config);
    await third.loadWeights(engine.exportWeights());
    expect(third.policyVersion).toBe(engine.policyVersion);
    const { observations } = randomBatch(10);
    expect(await third.act(observations, 10)).toEqual(await engine.act(observations, 10));
    await Promise.all([other.close(), third.close()]);
  });

  test("learns which action an observation asks for", async () => {
    const learner = await ActorCriticEngine.create({
      observationSize: 1,
      actionSize: 1,
      hidden: [16],
      microBatchRows: 64,
    });
    const rows = 64;
    const random = sequence(5);
    let reward = 0;
    for (let step = 0; step < 120; step++) {
      const observations = Float32Array.from({ length: rows }, () => 2 * random() - 1);
      const { actions, logprobs, values } = await learner.act(observations, rows, { seed: step });
      const returns = actions.map((action, i) => -((action - 0.7 * observations[i]!) ** 2));
      const advantages = returns.map((value, i) => value - values[i]!);
      reward = returns.reduce((a, b) => a + b, 0) / rows;
      const weights = new Float32Array(rows).fill(1 / rows);
      const batch = {
        rows,
        observations,
        actions,
        weights,
        advantages,
        oldLogprobs: logprobs,
        returns,
        oldValues: values,
      };
      await learner.forwardBackward(batch, { ...loss, entropyCoefficient: 0 });
      await learner.optimStep({ learningRate: 0.02, maxGradNorm: 1 });
    }
    expect(reward).toBeGreaterThan(-0.1);
    const { actions } = await learner.act(Float32Array.of(-0.8, 0.8), 2, { greedy: true });
    expect(actions[1]! - actions[0]!).toBeGreaterThan(0.7);
    await learner.close();
  });
});

test.each(["observations", "actions", "weights", "advantages", "oldLogprobs", "returns", "oldValues"] as const)(
  "a number of %s that counts and is not finite is refused, and what does not count changes nothing",
  async (name) => {
    const engine = await ActorCriticEngine.create(config);
    const batch = randomBatch(6);
    const width = batch[name].length / batch.rows;
    const clean = await engine.forwardBackward(batch, loss);
    const gradients = engine.gradients();
    for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
      const bad = { ...batch, [name]: batch[name].with(4 * width, value) };
      await expect(engine.forwardBackward(bad, loss)).rejects.toMatchObject({
        code: "engine.invalid-request",
        message: expect.stringContaining(`'${name}' has '${value}' in row '4'`),
      });
    }
    expect(engine.gradients()).toEqual(gradients);
    if (name !== "weights") {
      engine.setGradients(new Float32Array(engine.numParameters));
      const masked = { ...batch, [name]: batch[name].with(2 * width, Number.NaN) }; // row 2 has weight 0
      expect(await engine.forwardBackward(masked, loss)).toEqual(clean);
      expect(engine.gradients()).toEqual(gradients);
    }
    await engine.close();
  },
);

test("a negative weight is refused, and an observation to act on that is no number", async () => {
  const engine = await ActorCriticEngine.create(config);
  const batch = randomBatch(3);
  await expect(engine.forwardBackward({ ...batch, weights: Float32Array.of(1, -1, 1) }, loss)).rejects.toMatchObject({
    code: "engine.invalid-request",
    message: expect.stringContaining("'weights' has '-1' in row '1'"),
  });
  await expect(engine.act(batch.observations.with(5, Number.NaN), 3)).rejects.toMatchObject({
    code: "engine.invalid-request",
    message: expect.stringContaining("'observations' has 'NaN' in row '1'"),
  });
  await engine.close();
});
