import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { findStaleGroups, oldestPolicyVersion } from "../src/index.ts";
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
