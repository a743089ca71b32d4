import type { EpisodeGroup } from "@treadle/contracts";
import { makeEpisode } from "@treadle/learning/testing";
import type { Sink, Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { InferenceConfig, InferenceWorker, RolloutConfig, RolloutWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";

const model = {
  vocabSize: 12,
  layers: 1,
  width: 16,
  heads: 2,
  contextLength: 6,
  microBatchTokens: 24,
  valueHead: true,
};

async function score(groups: readonly EpisodeGroup[]) {
  const worker = new InferenceWorker(contextOf(InferenceConfig.parse({ model }), "inference"));
  await worker.setup();
  const source = {
    async *batches() {
      yield groups;
    },
  } as unknown as Source<EpisodeGroup>;
  const scored: EpisodeGroup[] = [];
  const sink = { put: async (...some: EpisodeGroup[]) => void scored.push(...some) } as unknown as Sink<EpisodeGroup>;
  const { tokens } = await worker.score(source, sink);
  return { tokens, scored };
}

test("an aborted episode passes as it is, whatever its numbers, and the others are scored as without it", async () => {
  const aborted = makeEpisode({
    finishReason: "abort",
    reward: Number.NaN,
    logprobs: new Float32Array(3).fill(Number.NaN),
  });
  const [one, two] = [makeEpisode({ reward: 1 }), makeEpisode({ policyTokens: 4 })];
  const alone = await score([{ promptId: "prompt", episodes: [one, two] }]);
  const mixed = await score([
    { promptId: "prompt", episodes: [one, aborted, two] },
    { promptId: "gone", episodes: [aborted] },
  ]);
  const [first, second] = alone.scored[0]!.episodes;
  expect(first!.oldLogprobs).toHaveLength(3);
  expect(mixed.scored.map(({ episodes }) => episodes)).toEqual([[first, aborted, second], [aborted]]);
  expect(mixed.tokens).toBe(alone.tokens);
});

test.each([0.5, 1, 1.3])(
  "what rollout has sampled at temperature %s inference scores at the same one",
  async (temperature) => {
    const alphabet = "0123456789";
    const rollout = new RolloutWorker(
      contextOf(
        RolloutConfig.parse({
          model,
          alphabet,
          groupSize: 8,
          maxTokens: 4,
          temperature,
          reward: { name: "arithmetic" },
        }),
        "rollout",
      ),
    );
    await rollout.setup();
    const { source, sink, groups } = streamOf([[{ id: "one", tokens: Int32Array.of(2, 3), answer: "1" }]]);
    await rollout.generate(source, sink);
    const { scored } = await score(groups);
    const episodes = scored.flatMap((group) => group.episodes);
    expect(episodes).toHaveLength(8);
    for (const episode of episodes) {
      expect(episode.temperature).toBe(temperature);
      expect(episode.logprobs.some((own) => own < 0)).toBe(true);
      episode.mask.forEach((own, token) => {
        if (own === 1) expect(Math.abs(episode.oldLogprobs![token]! - episode.logprobs[token]!)).toBeLessThan(1e-5);
      });
    }
  },
);
