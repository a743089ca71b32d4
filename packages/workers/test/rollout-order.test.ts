import type { EpisodeGroup, Prompt } from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import { createCharacterTokenizer } from "@treadle/learning";
import type { WorkerContext } from "@treadle/runtime";
import { PredictorState, Scheduler } from "@treadle/trajectories";
import { describe, expect, test } from "vitest";
import { RolloutConfig } from "../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { contextOf } from "./support/context.ts";
import { HandEngine, turns } from "./support/hand-engine.ts";
import { streamOf } from "./support/stream.ts";

const alphabet = "12+=";
const tokenizer = createCharacterTokenizer(alphabet);
// Far fewer places than episodes, so that most of them wait.
const model = { vocabSize: 6, layers: 1, width: 16, heads: 2, contextLength: 24, seed: 4, slots: 3 };
const usual = { model, alphabet, groupSize: 4, maxTokens: 16, reward: { name: "arithmetic" } };

const prompts: Prompt[] = ["1+1=", "2+1=", "1+2=", "12+1=", "2=", "21+2="].map((text) => ({
  id: text,
  tokens: tokenizer.encode(text),
  answer: "2",
}));

type Left = { readonly artifacts: Map<string, string>; readonly warnings: string[]; kept: string | undefined };

async function rank(given: Partial<RolloutConfig> = {}, left: Partial<Left> = {}) {
  const shown: Left = { artifacts: new Map(), warnings: [], kept: left.kept };
  let step = 0;
  const context = {
    ...contextOf(RolloutConfig.parse({ ...usual, ...given }), "rollout"),
    step: () => step,
    artifacts: { write: async (name: string, data: string) => void shown.artifacts.set(name, data) },
    predictors: {
      read: async () => (shown.kept === undefined ? undefined : { path: "kept/rollout-0.json", text: shown.kept }),
      write: async (text: string) => {
        shown.kept = text;
      },
    },
    log: { info() {}, error() {}, debug() {}, warn: (line: string) => shown.warnings.push(line) },
  } as unknown as WorkerContext<RolloutConfig>;
  const worker = new RolloutWorker(context);
  await worker.setup();
  const { engine } = worker as unknown as { engine: GenerationEngine };
  /** One step over all prompts, in batches of three. */
  const play = async () => {
    step++;
    const stream = streamOf([prompts.slice(0, 3), prompts.slice(3)]);
    const metrics = await worker.generate(stream.source, stream.sink);
    return { ...stream, metrics };
  };
  return { worker, engine, shown, play };
}

const byPrompt = (groups: readonly EpisodeGroup[]) => [...groups].sort((a, b) => (a.promptId < b.promptId ? -1 : 1));

describe("in whatever order a rank computes its episodes,", () => {
  test.each(Scheduler.options)("'%s' makes the same groups, each once", async (scheduler) => {
    const [plain, ordered] = [await rank({ scheduler: "fcfs" }), await rank({ scheduler })];
    for (let step = 0; step < 3; step++) {
      const [expected, made] = [await plain.play(), await ordered.play()];
      expect(byPrompt(made.groups)).toEqual(byPrompt(expected.groups));
      expect(made.groups).toHaveLength(prompts.length);
      expect(made.committed.size).toBe(prompts.length);
    }
  });

  test.each(["constant", "prompt-history", "tokens-so-far", "learned"] as const)(
    "predictor '%s' changes no episode",
    async (predictor) => {
      const [plain, ordered] = [await rank({ scheduler: "fcfs" }), await rank({ predictor })];
      for (let step = 0; step < 2; step++) {
        expect(byPrompt((await ordered.play()).groups)).toEqual(byPrompt((await plain.play()).groups));
      }
    },
  );
});

test("a group is put as soon as it is complete, while others are computed", async () => {
  const { engine, worker } = await rank();
  const stream = streamOf([prompts]);
  let numWhileComputing = 0;
  const put = stream.sink.put;
  stream.sink.put = (...items) => {
    if (engine.idle() !== undefined) numWhileComputing++;
    return put(...items);
  };
  await worker.generate(stream.source, stream.sink);
  expect(stream.groups).toHaveLength(prompts.length);
  expect(numWhileComputing).toBeGreaterThanOrEqual(prompts.length - model.slots);
});

test("the next prompt begins as soon as an episode has ended, while others are still long", async () => {
  const engine = new HandEngine();
  class ByHand extends RolloutWorker {
    protected override async createEngine() {
      return engine.asEngine;
    }
  }
  const config = RolloutConfig.parse({ ...usual, groupSize: 2, scheduler: "fcfs" });
  const worker = new ByHand(contextOf(config, "rollout"));
  await worker.setup();
  const stream = streamOf([prompts.slice(0, 2), prompts.slice(2, 4)]);
  const generating = worker.generate(stream.source, stream.sink);
  await turns();
  expect(engine.joined).toHaveLength(4); // two prompts, two samples of each
  const put = async (...indices: number[]) => {
    for (const index of indices) engine.end(index);
    await turns();
    return stream.groups.map(({ promptId }) => promptId);
  };
  expect(await put(0)).toEqual([]);
  expect(engine.joined).toHaveLength(6); // no place stays empty, though no group is complete
  expect(await put(2)).toEqual([]);
  expect(engine.joined).toHaveLength(6);
  expect(await put(3)).toEqual(["2+1="]);
  expect(engine.joined).toHaveLength(8);
  expect(await put(4, 5)).toEqual(["2+1=", "1+2="]);
  expect(await put(7, 6, 1)).toEqual(["2+1=", "1+2=", "12+1=", "1+1="]);
  await generating;
});

const withContext = (contextLength: number): Partial<RolloutConfig> => {
  const { model: whole } = RolloutConfig.parse({ ...usual, model: { ...model, contextLength } });
  return { model: whole };
};

test("answers that the model's context cuts before 'maxTokens' are warned of, once a rank", async () => {
  const { play, shown } = await rank(withContext(20));
  await play();
  await play();
  expect(shown.warnings).toEqual([
    "prompt '12+1=' has '5' tokens, which leaves its answers '15' of the 'maxTokens' ('16'); raise 'model.contextLength' ('20') to '21', or lower 'maxTokens'",
  ]);
  const fits = await rank(withContext(21));
  await fits.play();
  expect(fits.shown.warnings).toEqual([]);
});

test("a reward that fails fails the call, and the groups that were complete are put once", async () => {
  const { worker } = await rank();
  const reward = (worker as unknown as { reward: { score: (...given: never[]) => unknown } }).reward;
  const own = reward.score.bind(reward);
  let numScored = 0;
  reward.score = (...given) => {
    if (++numScored === 9) throw new Error("no reward");
    return own(...given);
  };
  const stream = streamOf([prompts]);
  await expect(worker.generate(stream.source, stream.sink)).rejects.toThrow("no reward");
  expect(stream.groups.length).toBeLessThan(prompts.length);
  expect(new Set(stream.groups.map(({ promptId }) => promptId)).size).toBe(stream.groups.length);
});

describe("what a rank learns of lengths", () => {
  test("is reported by step, beside prompt history, and left in full for people", async () => {
    const { play, shown } = await rank({ completions: { everySteps: 1, episodes: 1 } });
    await play();
    const { metrics } = await play();
    expect(Object.keys(metrics)).toEqual(
      expect.arrayContaining(["predictionRecall", "predictionLogSd", "predictionCoverage", "historyLogSd"]),
    );
    const left = JSON.parse(shown.artifacts.get("predictions/step-000002-rollout-0.json")!);
    const models = left.rows.filter(({ quantity }: { quantity: string }) => quantity === "tokens");
    expect(models.map(({ model: name }: { model: string }) => name).sort()).toEqual(
      ["constant", "learned", "oracle", "prompt-history", "served", "tokens-so-far"].sort(),
    );
    for (const { count } of models) expect(count).toBe(prompts.length * usual.groupSize);
  });

  test("is kept for later runs, which begin with it", async () => {
    const first = await rank();
    for (let step = 0; step < 3; step++) await first.play();
    await first.worker.teardown();
    const kept = PredictorState.parse(JSON.parse(first.shown.kept!));
    const later = await rank({}, { kept: first.shown.kept });
    await later.worker.teardown();
    expect(PredictorState.parse(JSON.parse(later.shown.kept!))).toEqual(kept);
    expect(kept.tokens.models.prompts.prompts.length).toBe(prompts.length);
  });

  test.each([
    ["no JSON", "{", /kept\/rollout-0.json' is no predictor/],
    ["of another version", '{"version":7}', /kept\/rollout-0.json' is no predictor: .*version/s],
    ["not finite", '{"version":1,"tokens":{"models":null}}', /is no predictor/],
  ])("is ignored and named where it is %s", async (_name, kept, message) => {
    const { shown, play } = await rank({}, { kept });
    expect(shown.warnings).toEqual([expect.stringMatching(message)]);
    expect((await play()).groups).toHaveLength(prompts.length);
  });

  test.each([
    ["'fcfs'", { scheduler: "fcfs" as const }],
    ["answers of few tokens", { maxTokens: 15 }],
  ])("is nothing with %s, where nobody is asked", async (_name, given) => {
    const { play } = await rank(given);
    for (let step = 0; step < 2; step++) expect(Object.keys((await play()).metrics)).toEqual(["tokens"]);
  });
});

test("an order is refused where the engine makes its own batches, and not asked for where none is named", () => {
  const engine = { kind: "torch", model: "anything" } as unknown as NonNullable<RolloutConfig["engine"]>;
  const config = { ...RolloutConfig.parse(usual), engine };
  expect(() => RolloutWorker.checkConfig({ ...config, scheduler: "pps" })).toThrow(
    /'scheduler' is 'pps', but an engine of kind 'torch' makes its own batches/,
  );
  expect(() => RolloutWorker.checkConfig(config)).not.toThrow();
  expect(() => RolloutWorker.checkConfig({ ...config, scheduler: "fcfs" })).not.toThrow();
});
