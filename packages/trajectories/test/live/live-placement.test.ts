import { interferenceFactor, livePlacement, WorkerLoads } from "@treadle/trajectories";
import fc from "fast-check";
import { expect, test } from "vitest";
import { nowhere } from "../../src/rollout/placement.ts";

const F = { type: "affine", slope: 0.3 } as const;
const places = 8;

const policyOf = (predictions: readonly number[], tokenTimes: readonly (number | undefined)[], migrate = false) =>
  livePlacement({
    placement: migrate ? "own" : "predicted",
    migrate: migrate ? "pays" : "never",
    predictions,
    tokenTimes,
    logSd: 0,
    own: 0,
    loads: new WorkerLoads(tokenTimes.length),
    F,
    places,
    beside: () => 0,
  });

/** The slowest rank, where every owner has placed as many alike. */
const makespan = (homes: readonly number[], lengths: readonly number[], tokenTimes: readonly number[]): number => {
  const factor = interferenceFactor(F);
  const spans = tokenTimes.map((seconds, rank) => {
    const own = lengths.filter((_, i) => homes[i] === rank);
    const all = own.length * tokenTimes.length;
    const slowdown = all <= places ? factor(all) : (factor(places) * all) / places;
    return own.length === 0 ? 0 : seconds * Math.max(...own) * slowdown;
  });
  return Math.max(...spans);
};

function* assignments(count: number, numRanks: number): Generator<number[]> {
  for (let code = 0; code < numRanks ** count; code++)
    yield Array.from({ length: count }, (_, i) => Math.floor(code / numRanks ** i) % numRanks);
}

test("with the ranks' own token times, predicted groups are the fastest of all with the longest at the fastest ranks", () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 1000 }), { minLength: 1, maxLength: 6 });
  const times = fc.array(fc.constantFrom(0.018, 0.0115, 0.008, 0.0063), { minLength: 1, maxLength: 3 });
  fc.assert(
    fc.property(lengths, times, (given, tokenTimes) => {
      const policy = policyOf(given, tokenTimes);
      const homes = given.map((_, episode) => policy.workerFor(episode, nowhere));
      let least = Number.POSITIVE_INFINITY;
      const isSorted = (each: readonly number[]) =>
        given.every((a, i) =>
          given.every((b, j) => a <= b || (tokenTimes[each[i]!] as number) <= (tokenTimes[each[j]!] as number)),
        );
      expect(isSorted(homes)).toBe(true);
      for (const each of assignments(given.length, tokenTimes.length))
        if (isSorted(each)) least = Math.min(least, makespan(each, given, tokenTimes));
      expect(makespan(homes, given, tokenTimes)).toBeCloseTo(least, 9);
    }),
  );
});

test("a rank of which nothing is known makes all of them equal", () => {
  const given = [900, 500, 20, 10, 7, 3];
  const homes = (times: readonly (number | undefined)[]) => {
    const policy = policyOf(given, times);
    return given.map((_, episode) => policy.workerFor(episode, nowhere));
  };
  expect(homes([0.018, 0.0063, undefined])).toEqual(homes([1, 1, 1]));
  expect(homes([0.018, 0.0063, 0.008])).not.toEqual(homes([1, 1, 1]));
});

test("what keeps its rank at first goes on at a faster one where that pays, and never at a slower one of no company", () => {
  const moved = (tokenTimes: readonly number[]) => {
    const policy = policyOf([1000, 10], tokenTimes, true);
    return policy.worksOnAt(0, 0, { remainingTokens: 900, generatedTokens: 100, transferSeconds: 10 });
  };
  expect(moved([0.018, 0.0063])).toBe(1);
  expect(moved([0.0063, 0.018])).toBe(0);
});
