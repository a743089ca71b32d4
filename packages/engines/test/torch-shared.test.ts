/** Engines that sample and score in the process of a trainer, with the module that it trains. */
import { spawn } from "node:child_process";
import { readdir } from "node:fs/promises";
import { once } from "node:events";
import type { Completion, HostFiles, Sampling } from "@treadle/contracts";
import { SharedTorchEngine, TorchEngine } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { describeGeneration } from "./generation-contract.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const model = { ...smallConfig, valueHead: true };
const torch = { kind: "torch", process: "shared", startTimeoutMs: 60_000 } as const;
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const rows = { rows: 2, columns: 6, tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1) };

let numRuns = 0;
/** Names of files as those of one run. */
function hostFilesOf(): HostFiles {
  const runPrefix = `treadle-shared${process.pid}-${numRuns++}-`;
  return { folder: "/dev/shm", ownPrefix: `${runPrefix}1-`, runPrefix };
}
const leftOf = async ({ folder, runPrefix }: HostFiles) =>
  (await readdir(folder)).filter((name) => name.startsWith(runPrefix));
const rankOf = (component: string, rank = 0, devices = ["cpu:0"], worldSize = 1) => ({
  component,
  rank,
  devices,
  worldSize,
});
const trainerOf = (hostFiles: HostFiles, options: Partial<Parameters<typeof TorchEngine.create>[1]> = {}) =>
  TorchEngine.create(model, { ...torch, ...options }, { hostFiles, offer: rankOf("actor") });
const attach = async (hostFiles: HostFiles, component = "rollout") => {
  const engine = await SharedTorchEngine.attach(model, torch, { rank: rankOf(component), hostFiles });
  await engine.restore();
  return engine;
};
const step = async (trainer: TorchEngine, seed = trainer.policyVersion) => {
  await trainer.forwardBackward(randomBatch(3, 6, seed), { type: "cross-entropy" });
  await trainer.optimStep({ learningRate: 0.05 });
};
const expectClose = (actual: ArrayLike<number>, expected: ArrayLike<number>) => {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(actual[i]).toBeCloseTo(expected[i]!, 5);
};
function expectAlike(actual: readonly Completion[], expected: readonly Completion[]) {
  expect(actual.map(({ tokens }) => [...tokens])).toEqual(expected.map(({ tokens }) => [...tokens]));
  for (const [index, { logprobs }] of actual.entries()) expectClose(logprobs, expected[index]!.logprobs);
}

let contracted: { trainer: TorchEngine; sampler: SharedTorchEngine; hostFiles: HostFiles } | undefined;
describeGeneration("torch in its trainer's process", reason, async () => {
  const hostFiles = hostFilesOf();
  const trainer = await trainerOf(hostFiles);
  const sampler = await attach(hostFiles);
  contracted = { trainer, sampler, hostFiles };
  const { parameters } = await trainer.exportWeights();
  const changed = parameters.map(({ name, shape, data }) => ({ name, shape, data: data.map((x) => 2 * x + 1) }));
  // It takes what its trainer has loaded, and is asked for it by the name that its trainer gives that.
  const engine = new Proxy(sampler, {
    get(target, key) {
      if (key === "loadWeights")
        return async (weights: Parameters<TorchEngine["loadWeights"]>[0]) => {
          await trainer.loadWeights(weights);
          await target.takeShared(trainer.shared!);
        };
      if (key === "weightsId") return target.weightsId && trainer.weightsId;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  return {
    engine,
    score: (tokens, temperature) =>
      trainer.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
    weights: [await trainer.exportWeights(), sealWeights({ policyVersion: 0, parameters: changed })],
    close: async () => {
      await sampler.close();
      await trainer.close();
      expect(await leftOf(hostFiles)).toEqual([]);
    },
  };
});
