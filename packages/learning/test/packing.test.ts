import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  createAlgorithm,
  type Normalisation,
  packForScoring,
  packSamples,
  packSupervised,
  type TrainSample,
  unpackEntries,
} from "../src/index.ts";
import { makeEpisode } from "../src/testing/index.ts";

const { loss } = createAlgorithm({ name: "grpo" });
const options = {
  contextLength: 8,
  microBatchTokens: 32,
  paddingToken: 0,
  loss,
  normalisation: { type: "sequence-mean" },
} as const;

function sample(given: Parameters<typeof makeEpisode>[0] = {}): TrainSample {
  const episode = makeEpisode(given);
  return {
    episode,
    advantages: episode.tokens.reduce((array, _, at) => array.fill(at, at), new Float64Array(episode.tokens.length)),
  };
}

test("a rectangle by hand", () => {
  const first = sample({ tokens: Int32Array.of(5, 6, 7), mask: Float32Array.of(0, 1, 1) });
  const second = sample({ tokens: Int32Array.of(5, 6, 7, 8), mask: Float32Array.of(0, 1, 0, 0) });
  const [packed, ...rest] = packSamples([first, second], options);
  expect(rest).toEqual([]);
  // sequence mean: two policy tokens weigh 0.5 each, a single one 1
  expect(packed).toEqual({
    batch: {
      rows: 2,
      columns: 4, // the longest goes first
      tokens: Int32Array.of(5, 6, 7, 8, 5, 6, 7, 0),
      temperatures: Float32Array.of(1, 1),
      weights: Float32Array.of(0, 1, 0, 0, 0, 0.5, 0.5, 0),
      advantages: Float32Array.of(0, 1, 0, 0, 0, 1, 2, 0),
      oldLogprobs: Float32Array.of(0, -1, 0, 0, 0, -1, -1, 0),
    },
    divisor: 2,
    sampleIndexes: Int32Array.of(1, 0),
    lengths: Int32Array.of(4, 3),
  });
});

describe("weights and divisor", () => {
  // two sequences of 1 and 3 policy tokens
  const samples = [sample({ policyTokens: 1 }), sample({ policyTokens: 3 })];
  const cases: [Normalisation, number[], number][] = [
    [{ type: "sequence-mean" }, [1 / 3, 1 / 3, 1 / 3, 1], 2],
    [{ type: "token-mean" }, [1, 1, 1, 1], 4],
    [{ type: "constant", tokens: 10 }, [0.1, 0.1, 0.1, 0.1], 2],
  ];

  test.each(cases)("of %o", (normalisation, expected, divisor) => {
    const [packed] = packSamples(samples, { ...options, normalisation });
    const weights = [...packed!.batch.weights].filter((weight) => weight > 0);
    expect(weights).toEqual(expected.map(Math.fround));
    expect(packed!.divisor).toBe(divisor);
  });

  test("are equal in sum for the means", () => {
    const lengths = fc.array(fc.integer({ min: 0, max: 7 }), { minLength: 1, maxLength: 9 });
    fc.assert(
      fc.property(lengths, fc.constantFrom("sequence-mean" as const, "token-mean" as const), (tokens, type) => {
        const given = tokens.map((policyTokens) => sample({ policyTokens }));
        for (const { batch, divisor } of packSamples(given, { ...options, normalisation: { type } })) {
          expect(batch.weights.reduce((sum, weight) => sum + weight, 0)).toBeCloseTo(divisor, 5);
        }
      }),
    );
  });
});

const episodes = fc.array(
  fc.record({ promptLength: fc.integer({ min: 1, max: 4 }), policyTokens: fc.integer({ min: 0, max: 8 }) }),
  { minLength: 1, maxLength: 12 },
);
const layouts = fc.record({
  contextLength: fc.constantFrom(12, 20),
  microBatchTokens: fc.integer({ min: 1, max: 60 }),
});

test("packing loses nothing, whatever the layout", () => {
  fc.assert(
    fc.property(episodes, layouts, (given, layout) => {
      const samples = given.map(sample);
      const packed = packSamples(samples, { ...options, ...layout });
      const advantages = unpackEntries(
        packed,
        packed.map(({ batch }) => batch.advantages!),
        samples.length,
      );
      const logprobs = unpackEntries(
        packed,
        packed.map(({ batch }) => batch.oldLogprobs!),
        samples.length,
      );
      const seen = packed.flatMap(({ sampleIndexes }) => [...sampleIndexes]);
      expect(seen.sort((a, b) => a - b)).toEqual(samples.map((_, index) => index));
      samples.forEach(({ episode, advantages: expected }, index) => {
        const masked = expected.map((value, token) => (episode.mask[token] === 1 ? value : 0));
        expect([...advantages[index]!]).toEqual([...masked]);
        expect([...logprobs[index]!].map(Math.abs)).toEqual([...episode.logprobs].map(Math.abs));
      });
      for (const { batch, sampleIndexes, lengths } of packed) {
        const tokens = lengths.reduce((sum, length) => sum + length, 0);
        if (batch.rows > 1) expect(tokens).toBeLessThanOrEqual(layout.microBatchTokens);
        expect(batch.columns).toBe(Math.max(...lengths));
        sampleIndexes.forEach((index, row) => {
          const tokens = batch.tokens.subarray(row * batch.columns, (row + 1) * batch.columns);
          const expected = [...samples[index]!.episode.tokens];
          expect(lengths[row]).toBe(expected.length);
          expect([...tokens]).toEqual([...expected, ...new Array(batch.columns - expected.length).fill(0)]);
        });
      }
    }),
  );
});

test("sequences of like length share a micro-batch, the longest first; one beyond the bound has its own", () => {
  const samples = [6, 1, 5, 2].map((policyTokens) => sample({ policyTokens }));
  const batchesWithin = (microBatchTokens: number) =>
    packSamples(samples, { ...options, microBatchTokens }).map(({ batch, sampleIndexes }) => [
      batch.columns,
      ...sampleIndexes,
    ]);
  expect(batchesWithin(13)).toEqual([
    [7, 0, 2],
    [3, 3, 1],
  ]);
  expect(batchesWithin(6)).toEqual([
    [7, 0],
    [6, 2],
    [3, 3, 1],
  ]);
});

test("recomputed log-probabilities replace the sampler's, and reference ones come along when all have them", () => {
  const oldLogprobs = Float32Array.of(Number.NaN, -2, -2);
  const refLogprobs = Float32Array.of(Number.NaN, -3, -3);
  const both = sample({ oldLogprobs, refLogprobs });
  const [packed] = packSamples([both], options);
  expect(packed!.batch.oldLogprobs).toEqual(Float32Array.of(0, -2, -2));
  expect(packed!.batch.refLogprobs).toEqual(Float32Array.of(0, -3, -3));
  expect(packSamples([both, sample()], options)[0]!.batch.refLogprobs).toBeUndefined();
});

test("a critic's targets are packed into the batch", () => {
  const targets = { returns: Float64Array.of(0, 4, 5), oldValues: Float32Array.of(0, 2, 3) };
  const [packed] = packSamples([{ ...sample(), ...targets }], options);
  expect(packed!.batch).toMatchObject({ returns: Float32Array.of(0, 4, 5), oldValues: Float32Array.of(0, 2, 3) });
});

test("scoring weighs every token of the policy", () => {
  const [packed] = packForScoring([makeEpisode({ policyTokens: 2 })], options);
  expect(packed!.batch.weights).toEqual(Float32Array.of(0, 1, 1));
  const scored = unpackEntries([packed!], [Float32Array.of(7, -1, -2)], 1);
  expect(scored).toEqual([Float32Array.of(0, -1, -2)]);
});

test("every row keeps the temperature that its episode was sampled at, wherever it is put", () => {
  const of = [0.5, 1, 1.3];
  const episodes = of.map((temperature, at) => makeEpisode({ temperature, policyTokens: 5 - at }));
  const narrow = { ...options, microBatchTokens: 9 };
  const samples = episodes.map((episode) => ({ episode, advantages: new Float64Array(episode.tokens.length) }));
  for (const packed of [packSamples(samples, narrow), packForScoring(episodes, narrow)]) {
    const found = packed.flatMap(({ batch, sampleIndexes }) =>
      [...sampleIndexes].map((sample, row) => [sample, batch.temperatures![row]] as const),
    );
    const expected = [
      [0, 0.5],
      [1, 1],
      [2, Math.fround(1.3)],
    ];
    expect(found).toEqual(expected);
  }
});

test("supervised sequences learn where the mask says", () => {
  const sequence = { tokens: Int32Array.of(4, 5, 6), mask: [0, 0, 1] };
  const [packed] = packSupervised([sequence], { ...options, normalisation: undefined });
  expect(packed!.batch.weights).toEqual(Float32Array.of(0, 0, 1));
  expect(packed!.divisor).toBe(1);
  expect(() => packSupervised([{ ...sequence, mask: [1, 0, 0] }], options)).toThrow(/mask '1' at token '0'/);
});

describe("packing refuses", () => {
  const tokens = Int32Array.of(2, 3, 4);
  const refused: [string, TrainSample, object, RegExp][] = [
    ["a sequence longer than the context", sample({ policyTokens: 9 }), {}, /'10' tokens: allowed is at most 8; raise/],
    ["a token outside the vocabulary", sample(), { vocabularySize: 3 }, /token '3' at '1': allowed is 0 up to/],
    [
      "a mask at the first token",
      sample({ tokens, mask: Float32Array.of(1, 1, 1), promptLength: 0 }),
      {},
      /mask '1' at token '0'/,
    ],
    [
      "a mask inside the prompt",
      sample({ tokens, mask: Float32Array.of(0, 1, 1), promptLength: 2 }),
      {},
      /mask '1' at token '1'/,
    ],
    ["a fractional mask", sample({ mask: Float32Array.of(0, 0.5, 1) }), {}, /mask '0.5'/],
    ["short log-probabilities", sample({ logprobs: Float32Array.of(0) }), {}, /'1' logprobs.*'3' tokens/],
    ["infinite log-probabilities", sample({ logprobs: Float32Array.of(0, -Infinity, 0) }), {}, /logprobs '-Infinity'/],
    ["short advantages", { ...sample(), advantages: new Float64Array(1) }, {}, /'1' advantages/],
    ["advantages that are no numbers", { ...sample(), advantages: Float64Array.of(0, NaN, 0) }, {}, /advantages 'NaN'/],
    ["advantages beyond float32", { ...sample(), advantages: Float64Array.of(0, 1e39, 0) }, {}, /advantages '1e\+39'/],
    ["a temperature of 0", sample({ temperature: 0 }), {}, /temperature '0'/],
    [
      "a temperature beyond float32",
      sample({ temperature: 1e39 }),
      {},
      /prompt 'prompt' has temperature '1e\+39': allowed is a number >= 0.001 that float32 holds/,
    ],
    ["no reference where the loss needs one", sample(), { loss: { ...loss, klCoefficient: 0.1 } }, /no refLogprobs/],
    ["micro-batches of no tokens", sample(), { microBatchTokens: 0 }, /microBatchTokens is '0'/],
    ["a context of half a token", sample(), { contextLength: 0.5 }, /contextLength is '0.5'/],
  ];

  test.each(refused)("%s", (_, given, changed, message) => {
    expect(() => packSamples([given], { ...options, ...changed })).toThrow(message);
  });
});
