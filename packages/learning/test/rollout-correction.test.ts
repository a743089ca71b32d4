import type { Episode } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type CorrectedSamples, correctRollout, RolloutCorrectionConfig } from "../src/index.ts";
import { makeEpisode } from "../src/testing/index.ts";

const ratios = (...each: number[]) =>
  makeEpisode({
    policyTokens: each.length,
    logprobs: Float32Array.of(0, ...each.map(() => -2)),
    oldLogprobs: Float32Array.of(0, ...each.map((ratio) => -2 + Math.log(ratio))),
  });
const of3 = (episode: Episode) => ({ episode, advantages: Float64Array.from(episode.mask, (own) => 3 * own) });
const rounded = ({ samples }: CorrectedSamples) =>
  samples.map(({ advantages }) => [...advantages].map((value) => Math.round(value * 1e4) / 1e4));
const configured = (given: object) => RolloutCorrectionConfig.parse(given);

describe("a rollout's correction", () => {
  test("by token multiplies advantages by the ratio of recomputed to sampled, cut at the cap", () => {
    // ratios 4 (cut to 2) and 0.5: advantages 3 · 2 and 3 · 0.5
    const { mismatch, ...corrected } = correctRollout([of3(ratios(4, 0.5))], configured({ cap: 2 }), "token");
    expect(rounded({ ...corrected, mismatch })).toEqual([[0, 6, 1.5]]);
    expect(mismatch).toMatchObject({ tokens: 2, cut: 1 });
    expect(mismatch.weights).toBeCloseTo(4.5, 5);
    expect(mismatch.squaredWeights).toBeCloseTo(16.25, 4);
    // k3 of a ratio r is r − 1 − log r
    expect(mismatch.kl).toBeCloseTo(3 - Math.log(4) - 0.5 - Math.log(0.5), 5);
    expect(mismatch.maxKl).toBeCloseTo(3 - Math.log(4), 5);
  });

  test("of a sequence that is one action is the product of its tokens' ratios, cut once", () => {
    // 4 · 0.5 is 2, where each by itself would have been cut to 1.5 and 0.5; 4 · 4 is cut to 3
    const samples = [of3(ratios(4, 0.5)), of3(ratios(4, 4))];
    const expected = [
      [0, 6, 6],
      [0, 9, 9],
    ];
    const asAction = correctRollout(samples, configured({ cap: 3 }), "sequence-product");
    expect(rounded(asAction)).toEqual(expected);
    expect(asAction.mismatch.weights).toBeCloseTo(2 + 2 + 16 + 16, 3);
    expect(asAction.mismatch.cut).toBe(2);
    for (const ratio of ["token", "sequence", "sequence-product"] as const)
      expect(rounded(correctRollout(samples, configured({ level: "sequence", cap: 3 }), ratio))).toEqual(expected);
  });

  test("of a sequence whose ratio is a geometric mean is that mean, cut once", () => {
    // sqrt(4 · 1) is 2, whatever the length of the sequence; sqrt(9 · 9) is cut to 3
    const samples = [of3(ratios(4, 1)), of3(ratios(9, 9))];
    const corrected = correctRollout(samples, configured({ cap: 3 }), "sequence");
    expect(rounded(corrected)).toEqual([
      [0, 6, 6],
      [0, 9, 9],
    ]);
    expect(corrected.mismatch.cut).toBe(2);
    // By token, 4 and 1 are weights of their own.
    expect(rounded(correctRollout(samples, configured({ level: "token", cap: 3 }), "sequence"))[0]).toEqual([0, 9, 3]);
  });

  test("that masks lets nothing be learnt of what is beyond the cap, and weighs the rest", () => {
    const samples = [of3(ratios(4, 0.5)), of3(ratios(4, 4))];
    const byToken = correctRollout(samples, configured({ mode: "mask", cap: 2 }), "token");
    expect(rounded(byToken)).toEqual([
      [0, 0, 1.5],
      [0, 0, 0],
    ]);
    expect(byToken.mismatch).toMatchObject({ tokens: 4, cut: 3 });
    const bySequence = correctRollout(samples, configured({ level: "sequence", mode: "mask", cap: 3 }), "token");
    expect(rounded(bySequence)).toEqual([
      [0, 6, 6],
      [0, 0, 0],
    ]);
  });

  test("leaves what nobody has rescored as it is: its ratio is against the sampler itself", () => {
    const plain = of3(makeEpisode({ logprobs: Float32Array.of(0, -2, -2) }));
    const corrected = correctRollout([plain, of3(ratios(4, 1))], configured({ cap: 2 }), "token");
    expect(rounded(corrected)).toEqual([
      [0, 3, 3],
      [0, 6, 3],
    ]);
    expect(corrected.mismatch).toMatchObject({ tokens: 2, cut: 1 });
  });

  test("has no weight beyond its cap and is finite, whatever the log-probabilities", () => {
    const logprob = fc.oneof(fc.float({ min: -800, max: 0, noNaN: true }), fc.constantFrom(-20, -100, -800, 0));
    const tokens = fc.array(fc.tuple(logprob, logprob), { minLength: 1, maxLength: 6 });
    const config = fc.record({
      level: fc.constantFrom("action" as const, "token" as const, "sequence" as const),
      mode: fc.constantFrom("truncate" as const, "mask" as const),
      cap: fc.double({ min: 1e-3, max: 1e4, noNaN: true }),
    });
    const ratio = fc.constantFrom("token" as const, "sequence" as const, "sequence-product" as const);
    fc.assert(
      fc.property(fc.array(tokens), config, ratio, (episodes, given, of) => {
        const samples = episodes.map((each) =>
          of3(
            makeEpisode({
              policyTokens: each.length,
              logprobs: Float32Array.of(0, ...each.map(([sampled]) => sampled)),
              oldLogprobs: Float32Array.of(0, ...each.map(([, old]) => old)),
            }),
          ),
        );
        const { samples: corrected, mismatch } = correctRollout(samples, given, of);
        const weights = corrected.flatMap(({ advantages }) => [...advantages].map((value) => value / 3));
        for (const weight of weights) expect(weight >= 0 && weight <= given.cap * (1 + 1e-12)).toBe(true);
        for (const sum of Object.values(mismatch)) expect(Number.isFinite(sum) && sum >= 0).toBe(true);
        expect(mismatch.cut).toBeLessThanOrEqual(mismatch.tokens);
        // Cauchy and Schwarz: no more samples are effective than there are.
        expect(mismatch.weights ** 2).toBeLessThanOrEqual(mismatch.tokens * mismatch.squaredWeights * (1 + 1e-9));
      }),
    );
  });

  test("refuses a cap that is none", () => {
    expect(() => configured({ cap: 0 })).toThrow(/>0/);
    expect(() => configured({ mode: "drop" })).toThrow(/truncate/);
  });
});
