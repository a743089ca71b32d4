import type { EpisodeGroup } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
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
  const puts: EpisodeGroup[][] = [];
  const sink = {} as Sink<EpisodeGroup>;
  let ofTurn: EpisodeGroup[] | undefined;
  const commit = async (_to: unknown, group: EpisodeGroup) => {
    if (ofTurn === undefined) {
      ofTurn = [];
      puts.push(ofTurn);
      queueMicrotask(() => {
        ofTurn = undefined;
      });
    }
    ofTurn.push(group);
  };
  const source = {
    async *itemBatches() {
      yield groups.map((value) => ({ value, commit }));
    },
  } as unknown as Source<EpisodeGroup>;
  const { tokens } = await worker.score(source, sink);
  return { tokens, scored: puts.flat(), puts };
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

const seed = Number(process.env["TREADLE_SEED"]);

test(`each group is committed with its micro-batch, once and in order, scored as if it were alone (seed ${seed})`, async () => {
  const random = createRandom(seed).split("groups");
  const groups = Array.from({ length: 12 }, (_, at): EpisodeGroup => {
    const own = random.split(at);
    const episodes = Array.from({ length: 1 + own.integer(4) }, () =>
      makeEpisode({ policyTokens: 1 + own.integer(4), ...(own.float() < 0.2 && { finishReason: "abort" as const }) }),
    );
    return { promptId: `prompt-${at}`, episodes };
  });
  const together = await score(groups);
  const alone = await Promise.all(groups.map((group) => score([group])));
  expect(together.scored).toEqual(alone.flatMap(({ scored }) => scored));
  expect(together.tokens).toBe(alone.reduce((sum, { tokens }) => sum + tokens, 0));
  const sizeOf = ({ episodes }: EpisodeGroup) =>
    episodes.reduce((sum, { finishReason, tokens }) => sum + (finishReason === "abort" ? 0 : tokens.length), 0);
  const sizes = together.puts.map((put) => put.reduce((sum, group) => sum + sizeOf(group), 0));
  for (const [at, put] of together.puts.entries()) {
    expect(put.length === 1 || (sizes[at] as number) <= model.microBatchTokens).toBe(true);
    const next = together.puts[at + 1]?.[0];
    if (next)
      expect((sizes[at] as number) + sizeOf(next), "no put could take more").toBeGreaterThan(model.microBatchTokens);
  }
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
