import fc from "fast-check";
import { expect, test } from "vitest";
import { packByTokens } from "../src/index.ts";

test("each sequence is in one group, within the bound unless it is alone there; all groups but the last are more than half full", () => {
  const bounds = fc.oneof(fc.integer({ min: 1, max: 60 }), fc.constant(Number.POSITIVE_INFINITY));
  fc.assert(
    fc.property(fc.array(fc.nat(40), { maxLength: 30 }), bounds, (lengths, maxTokens) => {
      const groups = packByTokens(lengths, maxTokens);
      expect(groups.flat().toSorted((a, b) => a - b)).toEqual([...lengths.keys()]);
      const longestFirst = groups.flat().map((index) => lengths[index] as number);
      expect(longestFirst).toEqual(longestFirst.toSorted((a, b) => b - a));
      for (const [at, group] of groups.entries()) {
        const tokens = group.reduce((sum, index) => sum + (lengths[index] as number), 0);
        if (group.length > 1) expect(tokens).toBeLessThanOrEqual(maxTokens);
        if (at < groups.length - 1) expect(tokens).toBeGreaterThan(maxTokens / 2);
      }
    }),
  );
});
