/** The suites that engines of other projects are held to: the shipped ones pass, and each promise that is broken is found. */
import { type Completion, TreadleError } from "@treadle/contracts";
import type { GenerationEngine, TrainingEngine } from "@treadle/engines";
import { afterAll, describe, expect, test } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { TransformerConfig } from "../src/embedded/transformer-config.ts";
import { TransformerEngine } from "../src/embedded/transformer-engine.ts";
import { sealWeights } from "../src/parameters.ts";
import { type Conformance, type ConformanceOptions, conformingModel } from "../src/testing/conformance.ts";
import { generationConformance } from "../src/testing/generation-conformance.ts";
import { trainingConformance } from "../src/testing/training-conformance.ts";
import { TorchEngine } from "../src/torch/torch-engine.ts";

const model = { ...conformingModel, layers: 2, width: 8, heads: 2, slots: 4, seed: 5 };
const reason = lacksTorch();
type Whole = GenerationEngine & TrainingEngine;

/** Some of what an engine does, done otherwise. */
type Broken = (engine: Whole) => Partial<Whole>;
function brokenBy(engine: Whole, broken: Broken | undefined): Whole {
  const changes: Partial<Whole> = broken?.(engine) ?? {};
  return new Proxy(engine, {
    get: (_, name) => {
      const own = Object.getOwnPropertyDescriptor(changes, name);
      if (own) return own.get ? own.get() : own.value;
      const value: unknown = Reflect.get(engine, name, engine);
      return typeof value === "function" ? value.bind(engine) : value;
    },
  });
}

/** What is broken may never end. */
const fast = { limitMs: 3000 };
const training = (create: () => Promise<Whole>, broken?: Broken): Conformance =>
  trainingConformance(async () => {
    const [engine, another] = await Promise.all([create(), create()]);
    const close = async () => void (await Promise.all([engine.close(), another.close()]));
    return { engine: brokenBy(engine, broken), another: brokenBy(another, broken), close };
  });

const embedded = (): Promise<Whole> => TransformerEngine.create(TransformerConfig.parse(model));
const kinds: readonly [string, string | undefined, () => Promise<Whole>][] = [
  ["embedded", undefined, embedded],
  ["torch", reason, () => TorchEngine.create(TransformerConfig.parse(model), { kind: "torch" }) as Promise<Whole>],
];

describe.each(kinds)("training by an engine of kind %s", (_, lacks, create) => {
  describe.skipIf(lacks)(lacks ?? "conforms", () => {
    const { cases, close } = training(create);
    for (const { name, run } of cases) test(name, run);
    afterAll(close);
  });
});

const generating = (limits: ConformanceOptions, broken?: Broken): Conformance =>
  generationConformance(async () => {
    const engine = await embedded();
    const own = sealWeights({ policyVersion: 0, parameters: (await engine.exportWeights()).parameters });
    const changed = own.parameters.map((each) => ({ ...each, data: each.data.map((x) => 2 * x + 1) }));
    return {
      engine: brokenBy(engine, broken),
      score: async (tokens, temperature) =>
        engine.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
      weights: [own, sealWeights({ policyVersion: 0, parameters: changed })],
      places: model.slots,
      close: () => engine.close(),
    };
  }, limits);
const generation = (broken: Broken): Conformance => generating(fast, broken);
const trained = (broken: Broken): Conformance => training(embedded, broken);

describe("generation by an engine of kind embedded", () => {
  const { cases, close } = generating({});
  for (const { name, run } of cases) test(name, run);
  afterAll(close);
});

test("a release that an engine refuses while it computes keeps the promise, too", async () => {
  const { cases, close } = generation((engine) => ({
    release: async () => {
      if (engine.idle()) throw new TreadleError("engine.busy", "it computes");
      await engine.release();
    },
  }));
  for (const { name, run } of cases) if (name.startsWith("refuses to compute while released")) await run();
  await close();
});

/** Of completions that hide, or make up, which weights chose what. */
const told = (completion: Completion, policyVersion: number, versions?: Completion["versions"]): Completion => {
  const { versions: _, ...rest } = completion;
  return { ...rest, policyVersion, ...(versions && { versions }) };
};

const breaks: readonly [what: string, suite: (broken: Broken) => Conformance, broken: Broken, found: string][] = [
  [
    "log-probabilities of another distribution",
    generation,
    (engine) => ({
      generate: async (...asked) =>
        (await engine.generate(...asked)).map((each) => ({ ...each, logprobs: each.logprobs.map((x) => x - 0.001) })),
    }),
    "gives the log-probabilities",
  ],
  [
    "draws by place in the call",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options) => engine.generate(prompts, sampling, { ...options, keys: undefined }),
    }),
    "draws the same tokens by seed and key",
  ],
  [
    "stop tokens that stop nothing",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options) => engine.generate(prompts, { ...sampling, stopTokens: [] }, options),
    }),
    "ends at a stop token",
  ],
  [
    "completions that are told of twice",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options) =>
        engine.generate(prompts, sampling, {
          ...options,
          onCompletion: (...told) => {
            options?.onCompletion?.(...told);
            options?.onCompletion?.(...told);
          },
        }),
    }),
    "reports each completion once",
  ],
  [
    "weights that nobody checks",
    generation,
    (engine) => ({ loadWeights: (weights) => engine.loadWeights(sealWeights(weights)) }),
    "refuses weights that are not whole",
  ],
  [
    "one version for all weights",
    generation,
    (engine) => ({
      loadWeights: ({ parameters }) => engine.loadWeights(sealWeights({ parameters, policyVersion: 0 })),
    }),
    "W3 starts completions over",
  ],
  [
    "completions of which two versions have made one",
    generation,
    (engine) => ({
      generate: async (prompts, sampling, options = {}) => {
        if (options.onNewWeights) return engine.generate(prompts, sampling, options);
        const { onCompletion } = options;
        const made = await engine.generate(prompts, sampling, {
          ...{ ...options, onNewWeights: "keep" },
          ...(onCompletion && {
            onCompletion: (index, ended) => onCompletion(index, told(ended, engine.policyVersion)),
          }),
        });
        return made.map((each) => told(each, engine.policyVersion));
      },
    }),
    "W3 weights that come while completions run",
  ],
  [
    "a word to heed new weights, by what begins again",
    generation,
    (engine) => ({
      generate: async (prompts, sampling, options) => {
        const made = await engine.generate(prompts, sampling, { ...options, onNewWeights: undefined });
        if (!options?.onNewWeights) return made;
        return made.map((each) => told(each, each.policyVersion, [[each.policyVersion, each.tokens.length]]));
      },
    }),
    "W1 keeps what it was asked about",
  ],
  [
    "versions that say the newest of all tokens",
    generation,
    (engine) => ({
      generate: async (prompts, sampling, options) => {
        const made = await engine.generate(prompts, sampling, options);
        if (!options?.onNewWeights) return made;
        return made.map((each) => told(each, each.policyVersion, [[each.policyVersion, each.tokens.length]]));
      },
    }),
    "W1 keeps what it was asked about",
  ],
  [
    "versions that an earlier call has told and nobody keeps",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options = {}) => {
        const { join } = options;
        return engine.generate(prompts, sampling, {
          ...options,
          ...(join && {
            join: (add, cut) =>
              join(
                ({ begun, ...joining }) =>
                  add({ ...joining, ...(begun && { begun: { ...begun, versions: undefined } }) }),
                cut,
              ),
          }),
        });
      },
    }),
    "W1 keeps what it was asked about",
  ],
  [
    "a mode that is taken though none is heeded",
    generation,
    (engine) => ({
      heedsNewWeights: false,
      generate: async (prompts, sampling, options) => {
        if (options?.onNewWeights === "recompute") throw new TreadleError("engine.invalid-request", "it does not");
        return engine.generate(prompts, sampling, { ...options, onNewWeights: undefined });
      },
    }),
    "W1 keeps what it was asked about",
  ],
  [
    "an order that nobody heeds",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options) => engine.generate(prompts, sampling, { ...options, order: undefined }),
    }),
    "an order changes no token",
  ],
  ["an engine that always says it is idle", generation, () => ({ idle: () => undefined }), "is not idle while"],
  [
    "an engine that is never done",
    generation,
    (engine) => ({ idle: () => engine.idle() ?? Promise.resolve() }),
    "is not idle while",
  ],
  [
    "joining that gives another index, told outside of the call",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options = {}) => {
        const { join } = options;
        return engine.generate(prompts, sampling, {
          ...options,
          ...(join && {
            join: (add, cut) => {
              const added = (...joining: Parameters<typeof add>) => (add(...joining) ?? 0) + 1;
              setImmediate(() => join(added, cut));
            },
          }),
        });
      },
    }),
    "what joins a call",
  ],
  [
    "turns that end for another reason, asked about where nobody looks",
    generation,
    (engine) => ({
      generate: (prompts, sampling, options = {}) => {
        const { extend } = options;
        return engine.generate(prompts, sampling, {
          ...options,
          ...(extend && {
            extend: async (index, turn) => {
              setImmediate(() => void extend(index, { ...turn, finishReason: "length" }));
              return undefined;
            },
          }),
        });
      },
    }),
    "goes on after what is appended",
  ],
  [
    "a release that frees nothing",
    generation,
    () => ({ release: async () => {} }),
    "refuses to compute while released",
  ],
  [
    "a gradient of twice the loss",
    trained,
    (engine) => ({ gradients: async () => (await engine.gradients()).map((value) => 2 * value) }),
    "the gradient is the slope",
  ],
  [
    "a gradient that outlives its step",
    trained,
    (engine) => ({
      optimStep: async (step) => {
        const before = Float32Array.from(await engine.gradients());
        const taken = await engine.optimStep(step);
        await engine.setGradients(before);
        return taken;
      },
    }),
    "a step lowers the loss",
  ],
  [
    "gradients that replace each other",
    trained,
    (engine) => ({
      forwardBackward: async (...batch) => {
        await engine.setGradients(new Float32Array((await engine.gradients()).length));
        return engine.forwardBackward(...batch);
      },
    }),
    "sums gradients",
  ],
  [
    "temperatures that count for nothing",
    trained,
    (engine) => ({
      forwardBackward: (batch, loss) => engine.forwardBackward({ ...batch, temperatures: undefined }, loss),
      logprobs: async ({ temperatures, ...rows }) => {
        const scored = await engine.logprobs(rows);
        return scored.map((value, i) => value / (temperatures?.[Math.floor(i / rows.columns)] ?? 1));
      },
    }),
    "scores each token given those before it",
  ],
  [
    "moments that no state has",
    trained,
    (engine) => ({
      load: async (pieces) => {
        await engine.load(pieces);
        const { policyVersion } = engine;
        const weights = await engine.exportWeights();
        const fresh = await embedded();
        await fresh.restore();
        await engine.load(fresh.save());
        await engine.loadWeights(sealWeights({ policyVersion, parameters: weights.parameters }));
        await fresh.close();
      },
    }),
    "goes on from a saved state",
  ],
  ["a state that nobody checks", trained, () => ({ load: async () => {} }), "a damaged state is refused"],
  [
    "a step by what is not finite",
    trained,
    (engine) => ({
      optimStep: async (step) => {
        const finite = (await engine.gradients()).map((value) => (Number.isFinite(value) ? value : 0));
        await engine.setGradients(finite);
        return engine.optimStep(step);
      },
    }),
    "a gradient that is not finite",
  ],
  [
    "a step without weight decay",
    trained,
    (engine) => ({ optimStep: (step) => engine.optimStep({ ...step, weightDecay: 0 }) }),
    "a step is AdamW's",
  ],
  [
    "a step of any norm",
    trained,
    (engine) => ({ optimStep: (step) => engine.optimStep({ ...step, maxGradNorm: undefined }) }),
    "a step is AdamW's",
  ],
  [
    "a step ten times as long",
    trained,
    (engine) => ({ optimStep: (step) => engine.optimStep({ ...step, learningRate: 10 * step.learningRate }) }),
    "a step is AdamW's",
  ],
  [
    "a step by the whole gradient, said to be scaled",
    trained,
    (engine) => ({
      optimStep: async ({ scale = 1, maxGradNorm, ...step }) => {
        const { gradNorm } = await engine.optimStep({
          ...step,
          ...(maxGradNorm !== undefined && { maxGradNorm: maxGradNorm / scale }),
        });
        return { gradNorm: scale * gradNorm };
      },
    }),
    "a step is AdamW's",
  ],
  [
    "a step by its own betas",
    trained,
    (engine) => ({ optimStep: (step) => engine.optimStep({ ...step, beta1: undefined, beta2: undefined }) }),
    "a step is AdamW's",
  ],
  [
    "a norm that is told after it was bounded",
    trained,
    (engine) => ({
      optimStep: async (step) => {
        const { gradNorm } = await engine.optimStep(step);
        return { gradNorm: Math.min(gradNorm, step.maxGradNorm ?? gradNorm) };
      },
    }),
    "a step is AdamW's",
  ],
  [
    "a trainer's release that frees nothing",
    trained,
    () => ({ release: async () => {} }),
    "refuses to compute while released",
  ],
];

test.each(breaks)("%s: found", async (_, suite, broken, found) => {
  const { cases, close } = suite(broken);
  const promise = cases.find(({ name }) => name.startsWith(found));
  if (!promise) throw new Error(`no case begins with '${found}'`);
  await expect(promise.run()).rejects.toMatchObject({ code: "ERR_ASSERTION" });
  await close();
});
