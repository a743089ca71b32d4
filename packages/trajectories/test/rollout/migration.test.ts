import { describe, expect, test } from "vitest";
import { formGroups, paperEstimate } from "../../src/rollout/groups.ts";
import { type MigrationRule, nowhere, UnfinishedGroups } from "../../src/rollout/migration.ts";

const factor = (k: number) => 1 + 0.5 * (k - 1);
const estimate = paperEstimate(factor, 10, 0);

/** A fast worker for the longest of five trajectories, and a slow one for the rest. */
function rules() {
  const predictions = [100, 20, 18, 16, 14];
  const tokenTimes = [2, 1];
  const groups = formGroups({ predictions, tokenTimes, estimate, isMonotone: true });
  const by = (rule: MigrationRule) =>
    UnfinishedGroups.of(rule, groups, predictions, { tokenTimes, factor, places: 10, estimate });
  return { groups, scaled: by("scaled"), anew: by("anew"), pays: by("pays") };
}

const target = (rule: UnfinishedGroups, trajectory: number, home: number, tokens: number, transferSeconds = 0) => {
  rule.predicted(trajectory, { rankedTokens: tokens, remainingTokens: tokens });
  return rule.target(trajectory, { home, remainingTokens: tokens, transferSeconds });
};

describe("where a trajectory goes on", () => {
  test("the groups that everything starts from", () => {
    expect(rules().groups).toMatchObject({ workers: [1, 0], sizes: [1, 4] });
  });

  test("while nothing has finished, all rules leave it where its rank is", () => {
    const { scaled, anew, pays } = rules();
    for (const rule of [scaled, anew, pays]) {
      expect(target(rule, 0, 1, 90)).toBe(1);
      expect(target(rule, 4, 0, 12)).toBe(0);
    }
  });

  test("as short ones finish, groups that shrink in proportion send the longest to the slow worker, and placing anew does not", () => {
    const { scaled, anew } = rules();
    for (const rule of [scaled, anew]) for (const short of [3, 4]) rule.finished(short);
    // Of the fast worker's one place three fifths are left, which still hold the first; the second may have it alone.
    expect(target(scaled, 0, 1, 80)).toBe(1);
    expect(target(scaled, 1, 0, 79)).toBe(0);
    expect(target(anew, 1, 0, 79)).toBe(1);
  });

  test("a move that pays is made, and one whose transfer takes longer than it saves is not", () => {
    const moves = (rule: "anew" | "pays", transferSeconds: number) => {
      const groups = rules()[rule];
      for (const short of [2, 3, 4]) groups.finished(short);
      return target(groups, 1, 0, 79, transferSeconds) === 1;
    };
    // Alone on the slow worker it takes 158 s, as one of two on the fast one 118.5 s.
    expect([moves("pays", 0), moves("pays", 20), moves("pays", 30)]).toEqual([true, true, false]);
    // Without a threshold every difference is a move.
    expect(moves("anew", 30)).toBe(true);
  });

  test("groups that shrink in proportion are made anew when trajectories come", () => {
    const { scaled } = rules();
    for (const short of [1, 2, 3, 4]) scaled.finished(short);
    for (const [at, tokens] of [90, 80, 70, 60].entries()) scaled.add(5 + at, tokens, nowhere);
    const { groups } = rules();
    const fresh = formGroups({ predictions: [100, 90, 80, 70, 60], tokenTimes: [2, 1], estimate, isMonotone: true });
    expect(fresh.sizes).not.toEqual(groups.sizes);
    expect([0, 5, 6, 7, 8].map((each) => scaled.workerOf(each))).toEqual([...fresh.workerOf]);
  });
});
