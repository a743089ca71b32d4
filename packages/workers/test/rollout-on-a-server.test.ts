/** A rollout worker whose model a server runs, and an actor that hands its weights out under Hugging Face's names. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EpisodeGroup, Prompt, Weights } from "@treadle/contracts";
import { weightsIdOf } from "@treadle/engines";
import { SglangDouble, TinyModel, tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { checkEpisode, createCharacterTokenizer } from "@treadle/learning";
import type { WorkerGroup } from "@treadle/runtime";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { type ActorWorker, RolloutConfig, RolloutWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { Group } from "./support/group.ts";
import { streamOf } from "./support/stream.ts";

const alphabet = "12+=";
const tokenizer = createCharacterTokenizer(alphabet);
const sizes = { vocabSize: tokenizer.vocabularySize, contextLength: 12 };
const model = { ...sizes, layers: 1, width: 8, heads: 1 };

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-rollout-"));
  await writeTinyModel(join(folder, "tiny"), sizes, tinyWeights(sizes, 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** An actor of one rank whose newest weights are given. */
function actorWith(newest: () => Weights): WorkerGroup<ActorWorker> {
  const group = {
    size: 1,
    onRanks: () => group,
    weights: (known?: string) => ({ first: async () => (weightsIdOf(newest()) === known ? undefined : newest()) }),
  };
  return group as unknown as WorkerGroup<ActorWorker>;
}

const prompt = (text: string): Prompt => ({ id: text, tokens: tokenizer.encode(text), answer: "2" });

async function rollOut(worker: RolloutWorker, prompts: readonly Prompt[]): Promise<readonly EpisodeGroup[]> {
  const { source, sink, groups } = streamOf([[...prompts]]);
  await worker.generate(source, sink);
  return [...groups].sort((a, b) => (a.promptId < b.promptId ? -1 : 1));
}

describe.each([
  ["sglang", SglangDouble],
  ["vllm", VllmDouble],
] as const)("rollout with an engine of kind %s", (kind, Double) => {
  test.each([1, 0.8])(
    "W1, W3 samples by the actor's newest weights, at temperature %s, with log-probabilities of what was sampled",
    async (temperature) => {
      const double = await new Double({ model: join(folder, "tiny") }).start();
      const path = join(folder, "tiny");
      const engine = { kind, url: [double.url], model: path, weightsFolder: join(folder, "weights") };
      const config = RolloutConfig.parse({
        model,
        engine,
        alphabet,
        groupSize: 4,
        maxTokens: 6,
        temperature,
        reward: { name: "arithmetic" },
        completions: { everySteps: 1, episodes: 0 },
      });
      const worker = new RolloutWorker(contextOf(config, "rollout"));
      await worker.setup();
      await worker.load();
      let newest = tinyWeights(sizes, 1);
      const actor = actorWith(() => newest);
      const texts: string[] = [];
      for (const policyVersion of [0, 1, 2]) {
        newest = tinyWeights(sizes, policyVersion + 1, policyVersion);
        await worker.pullWeights(actor);
        const groups = await rollOut(worker, [prompt("1+1="), prompt("2+1=")]);
        const exact = new TinyModel(newest.parameters);
        expect(groups.map(({ episodes }) => episodes.length)).toEqual([4, 4]);
        for (const episode of groups.flatMap(({ episodes }) => episodes)) {
          checkEpisode(episode, model.vocabSize);
          const { tokens, promptLength, logprobs, policyVersions } = episode;
          const scored = exact.score([...tokens], temperature);
          for (let at = promptLength; at < tokens.length; at++) {
            expect(logprobs[at]).toBeCloseTo(scored[at]!, 4);
            expect(policyVersions[at]).toBe(policyVersion);
          }
          expect(episode).toMatchObject({ engine: kind, temperature });
        }
        texts.push(JSON.stringify(groups.map(({ episodes }) => episodes.map(({ tokens }) => [...tokens]))));
      }
      expect(new Set(texts).size).toBe(3);
      await worker.offload();
      await double.kill();
    },
  );

  test("ranks with a server each share episodes, which have the tokens that they have where nothing is shared", async () => {
    const path = join(folder, "tiny");
    const doubles = await Promise.all([0, 1].map(() => new Double({ model: path }).start()));
    const engine = {
      kind,
      url: doubles.map(({ url }) => url),
      model: path,
      weightsFolder: join(folder, "weights"),
      maxRunning: 3,
    };
    const play = async (sharing: Partial<RolloutConfig>) => {
      const reward = { name: "arithmetic" };
      const config = RolloutConfig.parse({ model, engine, alphabet, groupSize: 4, maxTokens: 6, reward, ...sharing });
      RolloutWorker.checkConfig(config);
      const group = new Group(2);
      const ranks = [0, 1].map((rank) => new RolloutWorker(contextOf(config, "rollout", { rank, group })));
      for (const rank of ranks) {
        await rank.setup();
        await rank.load();
      }
      // Nearly all are taken by the first, and nobody's server chooses anything before the other has heard of it.
      const streams = [streamOf([["1+1=", "2+1=", "1=", "12="].map(prompt)]), streamOf([[prompt("2=")]])];
      for (const double of doubles) double.hold();
      const asked = doubles[1]!.calls.length;
      const generating = ranks.map((rank, at) => rank.generate(streams[at]!.source, streams[at]!.sink));
      const isMore = () => doubles[1]!.calls.length - asked >= engine.maxRunning;
      await vi.waitFor(() => expect(isMore()).toBe(true), 30_000);
      for (const double of doubles) double.letGo();
      const metrics = await Promise.all(generating);
      for (const rank of ranks) await rank.offload();
      const groups = streams.flatMap((stream) => stream.groups).sort((a, b) => (a.promptId < b.promptId ? -1 : 1));
      const calls = doubles[1]!.calls.length - asked;
      return { groups, calls, busy: metrics.map(({ rolloutBusy }) => rolloutBusy ?? 0) };
    };
    const apart = await play({});
    const shared = await play({ placement: "least-load" });
    expect(shared.groups).toEqual(apart.groups);
    expect(shared.calls).toBeGreaterThan(apart.calls);
    for (const share of shared.busy) expect(share).toBeGreaterThan(0);
    for (const double of doubles) await double.kill();
  });
});
