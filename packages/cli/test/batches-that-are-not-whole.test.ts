import { expect, test } from "vitest";
import { renderMismatch } from "../src/view/mismatch-text.ts";

const none = { tokens: 0, meanKl: 0, maxKl: 0 };
const batch: Parameters<typeof renderMismatch>[0] = {
  ...{ step: 3, policyVersion: 2, engine: "torch", alarm: 0.1, meanKl: 1, effectiveSamples: 0.5, cut: 0 },
  ...{ numEpisodes: 6, numKept: 6, numRanks: 4, missingRanks: [], strayFiles: [], passedOver: [] },
  ...{ tokens: 12, samplerAndTrainer: none, worst: [] },
};

test("of a batch that is whole, it says how much is kept and nothing else", () => {
  const text = renderMismatch(batch, undefined);
  expect(text).toMatch(/^step 3: all 6 episodes, 12 tokens/);
  expect(text).not.toMatch(/whole|left out/);
});

test("ranks that are missing, files of another batch and newer steps that are not whole are named", () => {
  const partial = { ...batch, missingRanks: [1, 3], strayFiles: ["rank-1.json", "rank-7.json"], passedOver: [9] };
  expect(renderMismatch(partial, undefined).split("\n").slice(0, 4)).toEqual([
    expect.stringMatching(/^step 3: all 6 episodes of 2 of 4 ranks, 12 tokens/),
    "  not whole: nothing is kept of ranks 1, 3, so what is below is of the others alone",
    "  left out, since of another batch: rank-1.json, rank-7.json",
    "  newer, but not whole: step 9",
  ]);
});
