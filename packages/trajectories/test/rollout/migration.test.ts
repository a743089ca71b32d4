import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { busyUntil } from "../../src/rollout/busy-rank.ts";
import { formGroups, paperEstimate, scheduledEstimate } from "../../src/rollout/groups.ts";
import { type MigrationRule, nowhere, UnfinishedGroups } from "../../src/rollout/migration.ts";
import { busyUntilListed, ListedQueues } from "./listed-queues.ts";

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

test("whatever came, moved, changed and ended: a move pays by what is at both workers now, and by a share of what waits for any", () => {
  const [numWorkers, places] = [3, 4];
  const tokenTimes = [3, 2, 1];
  const event = fc.record({
    trajectory: fc.nat(19),
    // No whole numbers, or sums in another order would be the same.
    tokens: fc.double({ min: 1, max: 200, noNaN: true }),
    worker: fc.integer({ min: nowhere, max: numWorkers - 1 }),
    what: fc.constantFrom("moves", "moves", "is predicted", "is predicted", "ends"),
  });
  fc.assert(
    fc.property(fc.array(event, { maxLength: 80 }), (events) => {
      const workers = [2, 1, 0];
      const groups = new UnfinishedGroups("pays", {
        ...{ workers, tokenTimes, factor, places },
        estimate: scheduledEstimate(factor, places, 0),
      });
      const queues = new ListedQueues(tokenTimes, factor, places);
      for (const { trajectory, tokens, worker, what } of events) {
        if (!queues.has(trajectory)) {
          groups.add(trajectory, tokens, worker);
          queues.add(trajectory, tokens, worker);
        } else if (what === "moves") {
          groups.moved(trajectory, worker);
          queues.moved(trajectory, worker);
        } else if (what === "is predicted") {
          groups.predicted(trajectory, { rankedTokens: tokens, remainingTokens: tokens });
          queues.predicted(trajectory, tokens);
        } else {
          groups.finished(trajectory);
          queues.finished(trajectory);
        }
      }
      for (const [trajectory, home] of queues.homes) {
        if (home === nowhere) continue;
        const target = groups.workerOf(trajectory);
        const [there, here] = [queues.secondsAt(target, trajectory), queues.secondsAt(home, trajectory)];
        // At what the move may take at most, and beside it, the estimates must be the same to the last bits.
        const most = 0.9 * here - there;
        for (const transferSeconds of [0, 1, most - 1e-12 * here, most, most + 1e-12 * here]) {
          const remainingTokens = queues.tokensOf(trajectory);
          const pays = target !== home && there + transferSeconds <= 0.9 * here;
          expect(groups.target(trajectory, { home, remainingTokens, transferSeconds })).toBe(pays ? target : home);
        }
      }
    }),
  );
});

test("an estimate of a queue is, to the last bit, the one of a list of those beside the episode", () => {
  const tokens = fc.oneof(
    fc.double({ min: 0, max: 1000, noNaN: true }),
    fc.nat(3).map((each) => 10 ** each),
  );
  const drawn = fc.record({
    rest: tokens,
    others: fc.array(tokens, { maxLength: 30 }),
    at: fc.nat(30),
    places: fc.integer({ min: 1, max: 12 }),
    numMore: fc.nat(12),
    eachMore: tokens,
  });
  fc.assert(
    fc.property(drawn, ({ rest, others, at, places, numMore, eachMore }) => {
      const except = at < others.length ? at : -1;
      const beside = [...others.filter((_, i) => i !== except), ...new Array<number>(numMore).fill(eachMore)];
      const estimated = busyUntil(rest, others, places, { except, numMore, eachMore });
      expect(estimated).toEqual(busyUntilListed(rest, beside, places));
    }),
  );
});
