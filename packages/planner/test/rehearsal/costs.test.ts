/** What estimates promise, whatever the model, the device and the lengths. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  generationBytes,
  generationSeconds,
  type Hardware,
  type Lengths,
  meanResponse,
  placesOf,
  scoringSeconds,
  trainingBytes,
  trainingSeconds,
  weightBytes,
} from "../../src/rehearsal/costs.ts";
import { deviceFigures, efficiencies } from "../../src/rehearsal/device-figures.ts";
import type { ModelShape } from "../../src/rehearsal/model-shape.ts";

const shape = fc
  .record({
    layers: fc.integer({ min: 2, max: 80 }),
    heads: fc.integer({ min: 4, max: 64 }),
    vocabSize: fc.integer({ min: 1000, max: 200_000 }),
  })
  .map(({ layers, heads, vocabSize }): ModelShape => {
    const width = heads * 128;
    const parameters = layers * 12 * width ** 2 + vocabSize * width;
    const cachedNumbers = 2 * layers * Math.max(1, heads / 4) * 128;
    const none = { expertParameters: 0, experts: 0, expertsPerToken: 0 };
    return { type: "llama", layers, width, vocabSize, attentionWidth: width, parameters, cachedNumbers, ...none };
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
