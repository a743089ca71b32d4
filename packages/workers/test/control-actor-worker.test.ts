import { ActorCriticConfig } from "@treadle/engines";
import type { Source } from "@treadle/runtime";
import { expect, test, vi } from "vitest";
import { ControlActorConfig, ControlActorWorker } from "../src/actor/control-actor-worker.ts";
import type { Trajectory } from "../src/simulator/items.ts";
import { contextOf } from "./support/context.ts";

const model = ActorCriticConfig.parse({ observationSize: 1, actionSize: 1, hidden: [4], microBatchRows: 8 });
const configOf = (maxStaleness: number, others: object = {}) =>
  ControlActorConfig.parse({
    model,
    epochs: 1,
    minibatches: 2,
    learningRate: 0.01,
    maxGradNorm: 1,
    discount: 0.9,
    lambda: 0.9,
    clip: 0.2,
    valueCoefficient: 0.5,
    entropyCoefficient: 0,
    maxStaleness,
    ...others,
  });

const trajectory = (environment: number, policyVersion: number): Trajectory => ({
  environment,
  policyVersion,
  observations: Float32Array.from({ length: 4 }, (_, time) => time + environment),
  actions: Float32Array.of(0.1, -0.2, 0.3, 0.1),
  logprobs: new Float32Array(4).fill(-0.5),
  values: new Float32Array(4),
  rewards: Float32Array.of(1, 0, environment, 1),
  terminated: new Uint8Array(4),
  truncated: new Uint8Array(4),
  finalValues: new Float32Array(4),
  lastValue: 0.5,
});

const sourceOf = (...batches: Trajectory[][]): Source<Trajectory> =>
  ({
    async *batches() {
      yield* batches;
    },
  }) as unknown as Source<Trajectory>;

async function started(maxStaleness: number, others: object = {}): Promise<ControlActorWorker> {
  const worker = new ControlActorWorker(contextOf(configOf(maxStaleness, others), "control-actor"));
  await worker.setup();
  return worker;
}

test("W2: a trajectory of more steps ago than flow.maxStaleness allows is refused, one within it is trained", async () => {
  const strict = await started(0);
  await strict.train(sourceOf([trajectory(0, 0)]));
  await expect(strict.train(sourceOf([trajectory(0, 0)]))).rejects.toThrow(
    "environment '0' is '2' policy versions old, at most 0 are allowed (flow.maxStaleness)",
  );
  const lenient = await started(1);
  await lenient.train(sourceOf([trajectory(0, 0)]));
  await lenient.train(sourceOf([trajectory(0, 0)]));
  expect((await lenient.weights())?.policyVersion).toBe(4);
});

test("a trajectory of a version that does not exist yet is refused", async () => {
  await expect((await started(1)).train(sourceOf([trajectory(4, 7)]))).rejects.toMatchObject({
    code: "learning.invalid-batch",
    message: expect.stringMatching(/environment '4' has policy version '7': allowed is 0 to the current version 0/),
  });
});

test.each<[string, Partial<Trajectory>, string]>([
  ["a reward that is no number", { rewards: Float32Array.of(1, Number.NaN, 0, 0) }, "rewards 'NaN' at step '1'"],
  ["an infinite reward", { rewards: Float32Array.of(1, 0, 0, -Infinity) }, "rewards '-Infinity' at step '3'"],
  ["a reward whose square overflows", { rewards: Float32Array.of(1e20, 0, 0, 0) }, "rewards '100000002004087730000'"],
  ["an observation", { observations: Float32Array.of(0, 0, Number.NaN, 0) }, "observations 'NaN' at step '2'"],
  ["an action", { actions: Float32Array.of(Number.NaN, 0, 0, 0) }, "actions 'NaN' at step '0'"],
  ["a log-probability", { logprobs: Float32Array.of(0, 0, -Infinity, 0) }, "logprobs '-Infinity' at step '2'"],
  ["a value", { values: Float32Array.of(0, Number.NaN, 0, 0) }, "values 'NaN' at step '1'"],
  [
    "the value after a truncation",
    { truncated: Uint8Array.of(0, 1, 0, 0), finalValues: Float32Array.of(0, Number.NaN, 0, 0) },
    "finalValues 'NaN' at step '1'",
  ],
  ["the value after the last step", { lastValue: Number.NaN }, "lastValue 'NaN'"],
  ["a value after the last step that float32 cannot square", { lastValue: 1e30 }, "lastValue '1e+30'"],
  [
    "a value that float32 cannot square",
    { values: Float32Array.of(0, 2 ** 99, 0, 0) },
    `values '${2 ** 99}' at step '1'`,
  ],
  [
    "a value after a truncation that float32 cannot square",
    { truncated: Uint8Array.of(0, 1, 0, 0), finalValues: Float32Array.of(0, -(2 ** 99), 0, 0) },
    `finalValues '${-(2 ** 99)}' at step '1'`,
  ],
  ["a flag that is neither 0 nor 1", { truncated: Uint8Array.of(0, 0, 2, 0) }, "truncated '2' at step '2'"],
  ["an end that is neither 0 nor 1", { terminated: Uint8Array.of(0, 255, 0, 0) }, "terminated '255' at step '1'"],
  ["too few actions", { actions: new Float32Array(3) }, "'3' actions: allowed is '4', 1 for each of its 4 steps"],
])("%s is refused, with its environment, before it reaches a weight", async (_, spoiled, message) => {
  const worker = await started(0);
  const before = await worker.weights();
  const bad = { ...trajectory(7, 0), ...spoiled };
  await expect(worker.train(sourceOf([trajectory(0, 0)], [bad]))).rejects.toMatchObject({
    code: "learning.invalid-batch",
    message: expect.stringContaining(`trajectory of environment '7' has ${message}`),
  });
  expect(await worker.weights()).toEqual(before);
});

test("says how many steps of trajectories were trained, whatever part of them is in a minibatch and however often", async () => {
  const worker = await started(0, { epochs: 3 });
  const rows = 2 * trajectory(0, 0).rewards.length;
  expect(await worker.train(sourceOf([trajectory(0, 0)], [trajectory(1, 0)]))).toMatchObject({ samples: rows });
});

test("the gradient of a call that failed does not count in the next one", async () => {
  class FailsOnce extends ControlActorWorker {
    failNextStep() {
      vi.spyOn(this.engine, "optimStep").mockRejectedValueOnce(new Error("the step is lost"));
    }
  }
  const worker = new FailsOnce(contextOf(configOf(0), "control-actor"));
  await worker.setup();
  worker.failNextStep();
  await expect(worker.train(sourceOf([trajectory(3, 0)]))).rejects.toThrow("the step is lost");
  const fresh = await started(0);
  expect(await worker.train(sourceOf([trajectory(0, 0)]))).toEqual(await fresh.train(sourceOf([trajectory(0, 0)])));
  expect(await worker.weights()).toEqual(await fresh.weights());
});

test("what is never used may be anything", async () => {
  const worker = await started(0);
  const ended = {
    ...trajectory(0, 0),
    terminated: Uint8Array.of(0, 0, 0, 1),
    lastValue: Number.NaN,
    finalValues: new Float32Array(4).fill(Number.NaN),
  };
  await worker.train(sourceOf([ended]));
  const { parameters } = (await worker.weights())!;
  expect(parameters.every(({ data }) => data.every(Number.isFinite))).toBe(true);
});

test("the order in which trajectories come does not change what is learnt", async () => {
  const [first, second] = [await started(0), await started(0)];
  await first.train(sourceOf([trajectory(0, 0), trajectory(1, 0)], [trajectory(2, 0)]));
  await second.train(sourceOf([trajectory(2, 0)], [trajectory(1, 0), trajectory(0, 0)]));
  expect(await second.weights()).toEqual(await first.weights());
});

test("beta2 reaches the optimiser: two steps of different gradients end elsewhere with the papers' 0.999", async () => {
  const after = async (others: object) => {
    const worker = await started(0, others);
    await worker.train(sourceOf([trajectory(0, 0), trajectory(3, 0)]));
    return worker.weights();
  };
  const usual = await after({});
  expect(await after({ beta2: 0.99 })).toEqual(usual);
  expect(await after({ beta2: 0.999 })).not.toEqual(usual);
  expect(() => configOf(0, { beta2: 1 })).toThrow("beta2");
});
