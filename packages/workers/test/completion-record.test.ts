import { CompletionRecord, type Episode, maxMetadataBytes } from "@treadle/contracts";
import { createCharacterTokenizer } from "@treadle/learning";
import fc from "fast-check";
import { expect, test } from "vitest";
import { completionRecord, sampleOf } from "../src/rollout/completion-record.ts";

const alphabet = "0123456789+=<>|";
const tokenizer = createCharacterTokenizer(alphabet);

const parts = fc.array(
  fc.record({
    isPolicy: fc.boolean(),
    text: fc.string({ unit: fc.constantFrom(...alphabet), minLength: 1, maxLength: 6 }),
  }),
  { maxLength: 6 },
);

function episodeOf(prompt: string, written: readonly { isPolicy: boolean; text: string }[], reward = 1): Episode {
  const tokens = tokenizer.encode(prompt + written.map(({ text }) => text).join(""));
  const mask = Float32Array.from([
    ...Array(prompt.length).fill(0),
    ...written.flatMap(({ isPolicy, text }) => Array(text.length).fill(isPolicy ? 1 : 0)),
  ]);
  return {
    ...{
      promptId: "p",
      promptLength: prompt.length,
      tokens,
      mask,
      finishReason: "stop" as const,
      reward,
      temperature: 1,
    },
    logprobs: mask.map((one, i) => (one === 1 ? (i % 3 === 0 ? Number.NEGATIVE_INFINITY : -0.5) : 0)),
    policyVersions: Int32Array.from(mask, (one) => (one === 1 ? 7 : -1)),
  };
}

test("a record has every token in its place: who wrote it, and of the policy's each piece", () => {
  fc.assert(
    fc.property(parts, (written) => {
      const where = { step: 3, worker: "rollout/0", tokenizer };
      const prompt = { id: "p", tokens: tokenizer.encode("1+1="), answer: "2" };
      const record = JSON.parse(JSON.stringify(completionRecord(episodeOf("1+1=", written), prompt, where)));
      const { turns, length } = CompletionRecord.parse(record);
      expect(turns.map(({ text }) => text).join("")).toBe(`1+1=${written.map(({ text }) => text).join("")}`);
      expect(length).toBe(written.reduce((sum, { text }) => sum + text.length, 0));
      for (const { by, text, pieces, logprobs, versions } of turns) {
        expect(pieces?.join("")).toBe(by === "policy" ? text : undefined);
        expect([logprobs?.length, versions?.length]).toEqual([pieces?.length, pieces?.length]);
      }
      const written1 = turns.slice(1).map(({ by }) => by);
      expect(written1.every((by, i) => by !== written1[i - 1])).toBe(true);
    }),
  );
});

test("a record has its prompt's metadata as they are, unless they are too large, and what turns have earned", () => {
  const written = [
    { isPolicy: true, text: "<1" },
    { isPolicy: false, text: "2|" },
    { isPolicy: true, text: "3" },
  ];
  const turnRewards = [
    { end: 6, reward: 0.25 },
    { end: 9, reward: -1 },
  ];
  const recordOf = (metadata: Record<string, unknown>) => {
    const prompt = { id: "p", tokens: tokenizer.encode("1+1="), metadata };
    const record = completionRecord({ ...episodeOf("1+1=", written), turnRewards }, prompt, {
      step: 3,
      worker: "rollout/0",
      tokenizer,
    });
    return CompletionRecord.parse(JSON.parse(JSON.stringify(record)));
  };
  const metadata = { level: { of: [1, null, "é"] }, "": false };
  const { turns, ...record } = recordOf(metadata);
  expect(record.metadata).toEqual(metadata);
  expect(turns.map(({ by, reward }) => [by, reward])).toEqual([
    ["prompt", undefined],
    ["policy", 0.25],
    ["tool", undefined],
    ["policy", -1],
  ]);
  const least = JSON.stringify({ a: "" }).length;
  expect(recordOf({ a: "x".repeat(maxMetadataBytes - least) }).metadata).toBeDefined();
  expect(recordOf({ a: "x".repeat(maxMetadataBytes - least + 1) }).metadata).toBeUndefined();
});

test("a sample takes the first of each group before the second of any", () => {
  const group = (rewards: number[]) => ({
    promptId: "p",
    episodes: rewards.map((reward) => episodeOf("1", [], reward)),
  });
  const chosen = sampleOf([group([1, 2]), group([3]), group([4, 5])], 4);
  expect(chosen.map(({ group: of, episode }) => [of, episode.reward])).toEqual([
    [0, 1],
    [1, 3],
    [2, 4],
    [0, 2],
  ]);
});
