/** Engines attached to doubles of SGLang and vLLM, of a tiny model in a folder of the test file that imports this. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Clock, Completion, Sampling, Weights } from "@treadle/contracts";
import { type GenerateOptions, ServerEngine, type SglangConfig, type VllmConfig } from "@treadle/engines";
import {
  type DoubleOptions,
  type ServerDouble,
  SglangDouble,
  tinyWeights,
  VllmDouble,
  writeTinyModel,
} from "@treadle/engines/testing";
import { afterAll, afterEach, beforeAll } from "vitest";
import type { z } from "zod";
import { conformingModel } from "../../src/testing/conformance.ts";
import type { TestedGeneration } from "../../src/testing/generation-conformance.ts";

export const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
export const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
export const prompts = [[1, 2], [3], [4, 5, 6], [0, 0, 1]].map((tokens) => Int32Array.from(tokens));
export const own = tinyWeights(conformingModel, 1);
export const newer = (seed: number, policyVersion: number): Weights =>
  tinyWeights(conformingModel, seed, policyVersion);

export let folder: string;
export let weightsFolder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-server-test-"));
  weightsFolder = join(folder, "weights");
  await writeTinyModel(join(folder, "tiny"), conformingModel, own);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

export type Kind = "sglang" | "vllm";
export type Changes = Partial<Omit<z.input<typeof SglangConfig> | z.input<typeof VllmConfig>, "kind">>;
export type Started = {
  readonly engine: ServerEngine;
  readonly double: ServerDouble;
  readonly warnings: readonly string[];
};

const opened: Started[] = [];
afterEach(async () => {
  for (const { engine, double } of opened.splice(0)) {
    await double.kill();
    await engine.close();
  }
});

export const doubleOf = (kind: Kind, options: Partial<DoubleOptions> = {}) =>
  new ({ sglang: SglangDouble, vllm: VllmDouble })[kind]({ model: join(folder, "tiny"), ...options });

export async function attach(
  kind: Kind,
  double: ServerDouble,
  changes: Changes = {},
  clock?: Clock,
): Promise<Omit<Started, "double">> {
  const warnings: string[] = [];
  const config = { kind, url: double.url, model: join(folder, "tiny"), weightsFolder, ...changes };
  const engine = await ServerEngine.create(model, config, { warn: (message) => void warnings.push(message), clock });
  return { engine, warnings };
}

export async function start(
  kind: Kind,
  options: Partial<DoubleOptions> = {},
  changes: Changes = {},
  clock?: Clock,
): Promise<Started> {
  const double = await doubleOf(kind, options).start();
  const started = { double, ...(await attach(kind, double, changes, clock)) };
  opened.push(started);
  return started;
}

/** The engine, whose calls are all told of as they go on. */
const streamed = (engine: ServerEngine): ServerEngine =>
  new Proxy(engine, {
    get(target, name) {
      if (name === "generate")
        return (given: readonly Int32Array[], how: Sampling, options: GenerateOptions = {}) =>
          target.generate(given, how, { onProgress: () => {}, ...options });
      const value = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });

export const contract = async (kind: Kind, changes: Changes, tellsAtOnce?: true): Promise<TestedGeneration> => {
  const double = await doubleOf(kind, { waitsForQuestions: tellsAtOnce }).start();
  const { engine } = await attach(kind, double, changes);
  return {
    engine: tellsAtOnce ? streamed(engine) : engine,
    ...(tellsAtOnce && { tellsAtOnce }),
    score: async (tokens, temperature) => double.score([...tokens], temperature),
    weights: [own, newer(2, 0)],
    ...(kind === "vllm" && { drawsByRequest: true }),
    close: async () => {
      await engine.close();
      await double.kill();
    },
  };
};

export const tokensOf = (completions: readonly Completion[]) => completions.map(({ tokens }) => [...tokens]);
export const generatePath = { sglang: "/generate", vllm: "/inference/v1/generate" } as const;
export const loadPath = { sglang: "/update_weights_from_disk", vllm: "/collective_rpc" } as const;
export const kinds: readonly Kind[] = ["sglang", "vllm"];
