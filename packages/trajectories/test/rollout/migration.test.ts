import { describe, expect, test } from "vitest";
import { formGroups } from "../../src/rollout/groups.ts";
import { ReplacedGroups, ScaledGroups } from "../../src/rollout/migration.ts";

const factor = (k: number) => 1 + 0.5 * (k - 1);

/** A fast worker for the longest of five trajectories, and a slow one for the rest. */
function rules(worthwhile: number) {
  const predictions = [100, 20, 18, 16, 14];
  const tokenTimes = [2, 1];
  const groups = formGroups({ predictions, tokenTimes, factor, isMonotone: true });
  return {
    groups,
    scaled: new ScaledGroups(groups, predictions),
    replaced: new ReplacedGroups({ groups, predictions, tokenTimes, factor, placingFactor: factor, worthwhile }),
  };
}

const predicted = (home: number, tokens: number, transferSeconds = 0) => ({
  home,
  rankedTokens: tokens,
  remainingTokens: tokens,
  transferSeconds,
});

describe("where a trajectory goes on", () => {
  test("the groups that everything starts from", () => {
    expect(rules(0).groups).toMatchObject({ workers: [1, 0], sizes: [1, 4] });
  });

  test("while nothing has finished, all rules leave it where its rank is", () => {
    const { scaled, replaced } = rules(0);
    for (const rule of [scaled, replaced]) {
      expect(rule.target(0, predicted(1, 90))).toBe(1);
      expect(rule.target(4, predicted(0, 12))).toBe(0);
    }
  });

  test("as short ones finish, groups that shrink in proportion send the longest to the slow worker, and placing anew does not", () => {
    const { scaled, replaced } = rules(0);
    for (const rule of [scaled, replaced]) for (const short of [3, 4]) rule.finished(short);
    // Of the fast worker's one place three fifths are left, which still hold the first; the second may have it alone.
    expect(scaled.target(0, predicted(1, 80))).toBe(1);
    expect(scaled.target(1, predicted(0, 79))).toBe(0);
    expect(replaced.target(1, predicted(0, 79))).toBe(1);
  });

  test("a move that pays is made, and one whose transfer takes longer than it saves is not", () => {
    const moves = (worthwhile: number, transferSeconds: number) => {
      const { replaced } = rules(worthwhile);
      for (const short of [2, 3, 4]) replaced.finished(short);
      return replaced.target(1, predicted(0, 79, transferSeconds)) === 1;
    };
    // Alone on the slow worker it takes 158 s, as one of two on the fast one 118.5 s.
    expect([moves(0.1, 0), moves(0.1, 20), moves(0.1, 30), moves(0.3, 0)]).toEqual([true, true, false, false]);
    // Without a threshold every difference is a move.
    expect(moves(0, 30)).toBe(true);
  });
});
