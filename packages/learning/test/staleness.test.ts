import type { Episode } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { findStaleGroups, oldestPolicyVersion, type TruncatedImportance, truncateImportance } from "../src/index.ts";
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

  test("an aborted episode, of which nothing is learnt, has no age", () => {
    for (const version of [0, 9, -1]) {
      const aborted = { ...withVersions(version), finishReason: "abort" as const };
      expect(findStaleGroups([groupOf(withVersions(5), aborted), groupOf(aborted)], 5, 0)).toEqual([]);
    }
  });

  test("versions that cannot be are refused", () => {
    expect(() => findStaleGroups([groupOf(withVersions(6))], 5, 1)).toThrow(/policy version '6'.*0 to .* 5/);
    expect(() => findStaleGroups([groupOf(withVersions(-1))], 5, 1)).toThrow(/policy version '-1'/);
  });
});

describe("truncated importance", () => {
  const logprobs = Float32Array.of(0, -2, -2);
  const ratios = (...each: number[]) =>
    makeEpisode({
      policyTokens: each.length,
      logprobs: Float32Array.of(0, ...each.map(() => -2)),
      oldLogprobs: Float32Array.of(0, ...each.map((ratio) => -2 + Math.log(ratio))),
    });
  const of3 = (episode: Episode) => ({ episode, advantages: Float64Array.from(episode.mask, (own) => 3 * own) });
  const rounded = ({ samples }: TruncatedImportance) =>
    samples.map(({ advantages }) => [...advantages].map((value) => Math.round(value * 1e4) / 1e4));

  test("of a token multiplies advantages by the ratio of recomputed to sampled, cut at the cap", () => {
    // ratios 4 (cut to 2) and 0.5: advantages 3 · 2 and 3 · 0.5; mean of 4 and 0.5 is 2.25; one of two was cut
    const importance = truncateImportance([of3(ratios(4, 0.5))], { cap: 2, ratio: "token" });
    expect(rounded(importance)).toEqual([[0, 6, 1.5]]);
    expect(importance.meanImportance).toBeCloseTo(2.25, 5);
    expect(importance.truncatedFraction).toBe(0.5);
  });

  test("of a sequence that is one action is the product of its tokens' ratios, cut once", () => {
    // 4 · 0.5 is 2, where each by itself would have been cut to 1.5 and 0.5; 4 · 4 is cut to 3
    const importance = truncateImportance([of3(ratios(4, 0.5)), of3(ratios(4, 4))], {
      cap: 3,
      ratio: "sequence-product",
    });
    expect(rounded(importance)).toEqual([
      [0, 6, 6],
      [0, 9, 9],
    ]);
    expect(importance.meanImportance).toBeCloseTo((2 + 2 + 16 + 16) / 4, 4);
    expect(importance.truncatedFraction).toBe(0.5);
  });

  test("of a sequence whose ratio is a geometric mean is that mean, cut once", () => {
    // sqrt(4 · 1) is 2, whatever the length of the sequence; sqrt(9 · 9) is cut to 3
    const importance = truncateImportance([of3(ratios(4, 1)), of3(ratios(9, 9))], { cap: 3, ratio: "sequence" });
    expect(rounded(importance)).toEqual([
      [0, 6, 6],
      [0, 9, 9],
    ]);
    expect(importance.truncatedFraction).toBe(0.5);
  });

  test("is 1 for what nobody has rescored: its ratio is against the sampler itself", () => {
    const plain = of3(makeEpisode({ logprobs }));
    const importance = truncateImportance([plain, of3(ratios(4, 1))], { cap: 2, ratio: "token" });
    expect(rounded(importance)).toEqual([
      [0, 3, 3],
      [0, 6, 3],
    ]);
    expect(importance).toMatchObject({ tokens: 2, truncatedFraction: 0.5 });
    expect(() => truncateImportance([], { cap: 0, ratio: "token" })).toThrow(/cap is '0'/);
  });
});
