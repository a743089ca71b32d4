import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { findStaleGroups, oldestPolicyVersion, truncateImportance } from "../src/index.ts";
import { makeEpisode } from "../src/testing/index.ts";

const withVersions = (...versions: number[]) =>
  makeEpisode({ policyTokens: versions.length, policyVersions: Int32Array.of(-1, ...versions) });
const groupOf = (...episodes: ReturnType<typeof makeEpisode>[]) => ({ promptId: "prompt", episodes });

describe("W2", () => {
  test("a group is as old as the oldest token of any of its episodes", () => {
    const fresh = groupOf(withVersions(5, 5));
    const mixed = groupOf(withVersions(5), withVersions(5, 3));
    expect(findStaleGroups([fresh, mixed], 5, 1)).toEqual([{ group: mixed, oldestVersion: 3, staleness: 2 }]);
    expect(findStaleGroups([fresh, mixed], 5, 2)).toEqual([]);
    expect(findStaleGroups([fresh], 5, 0)).toEqual([]);
  });

  test("no group that passes has a token older than the bound, and every other is returned", () => {
    const versions = fc.array(fc.integer({ min: 0, max: 9 }), { minLength: 1, maxLength: 4 });
    fc.assert(
      fc.property(fc.array(fc.array(versions, { minLength: 1, maxLength: 3 })), fc.nat(9), (given, maxStaleness) => {
        const groups = given.map((episodes) => groupOf(...episodes.map((tokens) => withVersions(...tokens))));
        const stale = findStaleGroups(groups, 9, maxStaleness).map(({ group }) => group);
        expect(stale).toEqual(groups.filter((_, index) => 9 - Math.min(...given[index]!.flat()) > maxStaleness));
      }),
    );
  });

  test("prompt and tool tokens have no age", () => {
    expect(oldestPolicyVersion(withVersions(7, 6))).toBe(6);
    expect(oldestPolicyVersion(withVersions())).toBeUndefined();
    expect(findStaleGroups([groupOf(withVersions())], 5, 0)).toEqual([]);
  });

  test("versions that cannot be are refused", () => {
    expect(() => findStaleGroups([groupOf(withVersions(6))], 5, 1)).toThrow(/policy version '6'.*0 to .* 5/);
    expect(() => findStaleGroups([groupOf(withVersions(-1))], 5, 1)).toThrow(/policy version '-1'/);
  });
});

describe("truncated importance", () => {
  test("multiplies advantages by the ratio of recomputed to sampled, cut at the cap", () => {
    // ratios 4 (cut to 2) and 0.5: advantages 3 · 2 and 3 · 0.5; mean of 4 and 0.5 is 2.25; one of two was cut
    const logprobs = Float32Array.of(0, -2, -2);
    const oldLogprobs = Float32Array.of(0, -2 + Math.log(4), -2 + Math.log(0.5));
    const episode = makeEpisode({ logprobs, oldLogprobs });
    const { samples, meanImportance, truncatedFraction } = truncateImportance(
      [{ episode, advantages: Float64Array.of(0, 3, 3) }],
      2,
    );
    expect([...samples[0]!.advantages].map((value) => Math.round(value * 1e4) / 1e4)).toEqual([0, 6, 1.5]);
    expect(meanImportance).toBeCloseTo(2.25, 5);
    expect(truncatedFraction).toBe(0.5);
  });

  test("needs recomputed log-probabilities", () => {
    const sample = { episode: makeEpisode(), advantages: new Float64Array(3) };
    expect(() => truncateImportance([sample], 2)).toThrow(/has no oldLogprobs: score it with inference/);
    expect(() => truncateImportance([], 0)).toThrow(/cap is '0'/);
  });
});
