/** What estimates promise, whatever the model, the device and the lengths. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  generationBytes,
  generationSeconds,
  type Hardware,
  holdsLongest,
  optimiserSeconds,
  placesOf,
  scoringBytes,
  scoringSeconds,
  swapSeconds,
  trainingBytes,
  trainingSeconds,
  weightBytes,
  weightsSeconds,
} from "../../src/rehearsal/costs.ts";
import { deviceFigures, efficiencies } from "../../src/rehearsal/device-figures.ts";
import { type Lengths, meanResponse } from "../../src/rehearsal/lengths.ts";
import { type ModelShape, modelShapeOf } from "../../src/rehearsal/model-shape.ts";

const shape = fc
  .record({
    layers: fc.integer({ min: 2, max: 80 }),
    heads: fc.integer({ min: 4, max: 64 }),
    vocabSize: fc.integer({ min: 1000, max: 200_000 }),
  })
  .map(({ layers, heads, vocabSize }): ModelShape => {
    const width = heads * 128;
    const parameters = layers * 12 * width ** 2 + vocabSize * width;
    const cache = { cachedPerHead: 2 * layers * 128, keyHeads: Math.max(1, Math.floor(heads / 4)) };
    const none = { lookedUpParameters: 0, expertParameters: 0, experts: 0, expertsPerToken: 0 };
    return { layers, width, vocabSize, attentionWidth: width, parameters, ...cache, ...none };
  });
const lengths = fc
  .record({
    promptTokens: fc.integer({ min: 1, max: 4000 }),
    responseTokens: fc.integer({ min: 1, max: 8000 }),
    spread: fc.double({ min: 0, max: 1.5, noNaN: true }),
    room: fc.double({ min: 1, max: 20, noNaN: true }),
  })
  .map(({ room, ...each }): Lengths => ({ ...each, maxResponseTokens: Math.ceil(each.responseTokens * room) }));
const hardware: fc.Arbitrary<Hardware> = fc.record({
  figures: fc.constantFrom(...Object.values(deviceFigures)),
  shape,
  lengths,
});
const count = fc.integer({ min: 1, max: 400 });
const degree = fc.constantFrom(1, 2, 4, 8);
const slightly = 1 + 1e-9;

test("the mean of responses lies between the median's half and their end, and is the lognormal's where none is cut", () => {
  fc.assert(
    fc.property(lengths, (given) => {
      const mean = meanResponse(given);
      expect(mean).toBeLessThanOrEqual(given.maxResponseTokens * slightly);
      expect(mean).toBeGreaterThanOrEqual(given.responseTokens / 2);
      const uncut = { ...given, maxResponseTokens: Number.MAX_SAFE_INTEGER };
      const expected = given.responseTokens * Math.exp(given.spread ** 2 / 2);
      expect(Math.abs(meanResponse(uncut) / expected - 1)).toBeLessThan(0.05);
    }),
  );
});

test("one sequence alone takes at least what reading the weights for each token takes, and what its arithmetic does", () => {
  fc.assert(
    fc.property(hardware, degree, (given, ranks) => {
      const { figures } = given;
      const one = generationSeconds(given, ranks, { count: 1, places: 1, all: 1, samples: 1 });
      const tokens = Math.min(given.lengths.maxResponseTokens, given.lengths.responseTokens);
      expect(one * slightly).toBeGreaterThanOrEqual((tokens * weightBytes(given.shape)) / (ranks * figures.memoryRate));
      const flops = 2 * given.shape.parameters * (tokens + given.lengths.promptTokens);
      expect(one * slightly).toBeGreaterThanOrEqual(flops / (ranks * figures.flops));
    }),
  );
});

test("a rank never takes less for more sequences, longer ones, or fewer places", () => {
  fc.assert(
    fc.property(hardware, degree, count, count, (given, ranks, sequences, places) => {
      const seconds = (more: Partial<{ count: number; places: number }>, of = given) =>
        generationSeconds(of, ranks, { count: sequences, places, all: 1000, samples: 1, ...more });
      const base = seconds({});
      expect(seconds({ count: sequences + 1 }) * 1.02).toBeGreaterThanOrEqual(base);
      expect(seconds({ places: places + 1 })).toBeLessThanOrEqual(base * 1.02);
      const { promptTokens, responseTokens, maxResponseTokens } = given.lengths;
      const longer = {
        ...given.lengths,
        promptTokens: promptTokens * 2,
        responseTokens: responseTokens * 2,
        maxResponseTokens: maxResponseTokens * 2,
      };
      // With room for as many: longer ones need more of it.
      const roomy = (each: Lengths): Hardware => ({
        ...given,
        lengths: each,
        figures: { ...given.figures, memoryBytes: 1e18 },
      });
      expect(seconds({}, roomy(longer))).toBeGreaterThanOrEqual(seconds({}, roomy(given.lengths)));
    }),
  );
});

test("training and scores are shared by devices, and never faster than the devices' peaks", () => {
  fc.assert(
    fc.property(hardware, fc.integer({ min: 0, max: 9 }), count, (given, power, sequences) => {
      const devices = 2 ** power;
      const tokens = sequences * (given.lengths.promptTokens + meanResponse(given.lengths));
      const peak = (2 * given.shape.parameters * tokens) / (devices * given.figures.flops);
      expect(scoringSeconds(given, devices, 1, sequences)).toBeGreaterThanOrEqual(peak);
      expect(trainingSeconds(given, devices, sequences)).toBeGreaterThanOrEqual((4 * peak) / efficiencies.training);
      expect(trainingBytes(given, devices * 2)).toBeLessThanOrEqual(
        trainingBytes(given, devices) + 2 * weightBytes(given.shape),
      );
      expect(trainingSeconds(given, devices, 2 * sequences)).toBeGreaterThanOrEqual(
        trainingSeconds(given, devices, sequences),
      );
    }),
  );
});

test("what a rank holds fits on its devices wherever it has room for one sequence", () => {
  fc.assert(
    fc.property(hardware, degree, count, (given, ranks, sequences) => {
      fc.pre(placesOf(given, ranks) >= 1);
      expect(generationBytes(given, ranks, sequences)).toBeLessThanOrEqual(given.figures.memoryBytes);
    }),
  );
});

/** Worked out by hand from data sheets and sizes: 8.19 G parameters, of which 0.62 G are looked up alone; 144 KiB of cache a token. */
test("of Qwen3-8B on an H200, with prompts of 1,000 and responses of 1,000 tokens each", () => {
  const eight = modelShapeOf(
    {
      ...{
        model_type: "qwen3",
        hidden_size: 4096,
        num_hidden_layers: 36,
        num_attention_heads: 32,
        num_key_value_heads: 8,
      },
      ...{ head_dim: 128, intermediate_size: 12288, vocab_size: 151936 },
    },
    "config.json",
  );
  const even = { promptTokens: 1000, responseTokens: 1000, spread: 0, maxResponseTokens: 1000 };
  const given: Hardware = { figures: deviceFigures.h200, shape: eight, lengths: even };
  const near = (value: number, expected: number) => expect(value / expected).toBeCloseTo(1, 2);
  const weights = 16.3815e9;
  const read = 15.1368e9; // without the input embedding
  const cache = 147_456;
  near(placesOf(given, 1), (0.9 * 141e9 - weights) / (2000 * cache));
  near(placesOf(given, 8), (0.9 * 8 * 141e9 - weights) / (2000 * cache));
  near(placesOf(given, 16), (0.9 * 16 * 141e9 - weights) / (2000 * 2 * cache)); // heads are there twice
  near(generationBytes(given, 2, 10), (weights + 10 * 2000 * cache) / 2);
  // 1,000 passes over weights and 1,500 cached tokens, after one over the prompt; a reduction's time is its latency.
  const onePass = (15.1368e12 + 4 * 36 * 4096 * 500 * 1000) / (0.5 * 989e12);
  const alone = { count: 1, places: 1, all: 1, samples: 1 };
  near(generationSeconds(given, 1, alone), onePass + (1000 * (read + 1500 * cache)) / (0.6 * 4.8e12));
  const reductions = 2 * 36 * (10e-6 + (2 * 4096 * 2) / 2 / (0.7 * 450e9));
  const prompt = onePass / 2 + 2 * 36 * (10e-6 + (2 * 1000 * 4096 * 2) / 2 / (0.7 * 450e9));
  near(generationSeconds(given, 2, alone), prompt + 1000 * ((read + 1500 * cache) / (2 * 0.6 * 4.8e12) + reductions));
  // Four responses to one prompt, of which two have a place: the prompt is read once, and each place serves two.
  const two = 1000 * ((read + 2 * 1500 * cache) / (0.6 * 4.8e12));
  near(generationSeconds(given, 1, { count: 4, places: 2, all: 4, samples: 4 }), onePass + 2 * two);
  // 2,000 tokens with 1,000 before each on average.
  const sequence = 2000 * (15.1368e9 + 4 * 36 * 4096 * 1000);
  near(
    scoringSeconds(given, 4, 2, 8),
    (4 * sequence) / (2 * 0.5 * 989e12) + 2 * 36 * (10e-6 + (8000 * 4096 * 2) / (0.7 * 450e9)),
  );
  near(trainingSeconds(given, 8, 8 * 64), (4 * 64 * sequence) / (0.5 * 989e12));
  // One short sequence a device: gathering twice and scattering gradients takes longer, in a node and between nodes.
  const short: Hardware = { ...given, lengths: { ...even, promptTokens: 100, responseTokens: 100 } };
  near(trainingSeconds(short, 8, 8), ((weights / 2) * 8 * (7 / 8)) / (0.7 * 450e9));
  near(trainingSeconds(short, 16, 16), ((weights / 2) * 8 * (15 / 16)) / (0.7 * 400e9));
  near(optimiserSeconds(given, 8), (30 * 8.19074e9) / 8 / (0.6 * 4.8e12));
  near(weightsSeconds(given, 8, 2), weights / 2 / (0.7 * 450e9));
  near(weightsSeconds(given, 16, 2), weights / 2 / (0.7 * 50e9));
  near(swapSeconds(given, 64e9), 1 / 0.7);
  const pass = 8192 * 4096 * 2;
  const logits = 8192 * 151936 * 4;
  near(scoringBytes(given, 2), (weights + 17 * pass + logits) / 2);
  near(trainingBytes(given, 8), (18 * 8.19074e9) / 8 + (2 * weights) / 36 + (36 + 17) * pass + logits);
  // One sequence that is longer than a pass is a pass of its own.
  const long: Hardware = { ...given, lengths: { ...even, maxResponseTokens: 99_000 } };
  near(trainingBytes(long, 1), 18 * 8.19074e9 + ((36 + 17) * pass * 100_000) / 8192 + logits);
  expect([holdsLongest(given, 1), holdsLongest({ ...given, lengths: { ...even, maxResponseTokens: 1e6 } }, 1)]).toEqual(
    [true, false],
  );
});
