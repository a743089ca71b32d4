import type { EpisodeGroup } from "@treadle/contracts";
import { makeEpisode } from "@treadle/learning/testing";
import type { Sink, Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { InferenceConfig, InferenceWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6, microBatchRows: 8, valueHead: true };

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
