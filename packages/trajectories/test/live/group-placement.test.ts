import { type GroupConditions, GroupPlacement, WorkerLoads } from "@treadle/trajectories";
import fc from "fast-check";
import { expect, test } from "vitest";
import { fastestFirst } from "../../src/rollout/groups.ts";
import { nowhere } from "../../src/rollout/migration.ts";

const F = { type: "affine", slope: 0.3 } as const;
const places = 4;

type Given = Partial<GroupConditions> & {
  readonly placement?: "own" | "predicted";
  readonly migrate?: "never" | "pays" | "scaled";
  readonly own?: number;
  readonly numRanks?: number;
  readonly changed?: (episode: number) => void;
};

/** All ranks are up. */
function groupOf({ placement = "predicted", migrate = "never", own = 0, numRanks, changed, ...conditions }: Given) {
  const count = numRanks ?? conditions.tokenTimes?.length ?? 1;
  const group = new GroupPlacement({ placement, migrate, own, numRanks: count, changed });
  for (let rank = 0; rank < count; rank++) group.up(rank);
  group.conditions = { logSd: 0, F, places, ...conditions };
  return group;
}

const toldOf = (tokens: readonly number[], homes: readonly number[] = [], ended: readonly number[] = []) => ({
  episodes: Int32Array.from(tokens.keys()),
  tokens: Float64Array.from(tokens),
  remaining: Float64Array.from(tokens),
  homes: Int32Array.from(tokens, (_, at) => homes[at] ?? nowhere),
  ended: Int32Array.from(ended),
});

const homesOf = (group: GroupPlacement, count: number, numRanks: number): number[] => {
  const policy = group.policy(0, new WorkerLoads(numRanks));
  return Array.from({ length: count }, (_, episode) => policy.workerFor(episode, nowhere));
};

/** Of the slowest rank: of its longest or an even share of all over its places, each token of another one meanwhile makes it later. */
const makespan = (homes: readonly number[], lengths: readonly number[], tokenTimes: readonly number[]): number => {
  const spans = tokenTimes.map((seconds, rank) => {
    const own = lengths.filter((_, i) => homes[i] === rank);
    const sum = own.reduce((total, each) => total + each, 0);
    const lasts = Math.max(0, sum / places, ...own);
    return seconds * (lasts + F.slope * (sum - lasts));
  });
  return Math.max(...spans);
};

function* assignments(count: number, numRanks: number): Generator<number[]> {
  for (let code = 0; code < numRanks ** count; code++)
    yield Array.from({ length: count }, (_, i) => Math.floor(code / numRanks ** i) % numRanks);
}

const someTimes = fc.array(fc.constantFrom(0.018, 0.0115, 0.008, 0.0063), { minLength: 1, maxLength: 3 });

test("UG1: what all ranks took is placed as by one, which is the fastest with the longest at the fastest ranks", () => {
  const owned = fc.array(fc.tuple(fc.integer({ min: 1, max: 1000 }), fc.nat(2)), { minLength: 1, maxLength: 6 });
  fc.assert(
    fc.property(owned, someTimes, (drawn, tokenTimes) => {
      const numRanks = tokenTimes.length;
      const lengths = tokenTimes.map((_, rank) =>
        drawn.flatMap(([tokens, owner]) => (owner % numRanks === rank ? [tokens] : [])),
      );
      const homes = lengths.map((own, rank) => {
        const group = groupOf({ tokenTimes, own: rank });
        for (const [owner, tokens] of lengths.entries()) if (owner !== rank) group.hear(owner, toldOf(tokens));
        group.begin(0, own);
        group.place();
        return homesOf(group, own.length, numRanks);
      });
      const [all, at] = [lengths.flat(), homes.flat()];
      let least = Number.POSITIVE_INFINITY;
      const place = fastestFirst(tokenTimes).reduce(
        (places, rank, at) => places.set(rank, at),
        new Map<number, number>(),
      );
      const isSorted = (each: readonly number[]) =>
        all.every((a, i) => all.every((b, j) => a <= b || place.get(each[i]!)! <= place.get(each[j]!)!));
      expect(isSorted(at)).toBe(true);
      for (const each of assignments(all.length, numRanks))
        if (isSorted(each)) least = Math.min(least, makespan(each, all, tokenTimes));
      expect(makespan(at, all, tokenTimes)).toBeCloseTo(least, 9);
    }),
  );
});

test("UG2, UG3: ranks that have come to know the same place alike, whatever they had heard before, and in whichever order", () => {
  const told = fc.array(fc.tuple(fc.nat(2), fc.nat(3), fc.integer({ min: 1, max: 4 })), { maxLength: 30 });
  const times = fc.constantFrom([1, 1, 1, 1], [0.5, 1, 1, 0.25]);
  fc.assert(
    fc.property(told, told, times, fc.nat(2), (noise, last, tokenTimes, died) => {
      const placed = [noise, []].map((before) => {
        const group = groupOf({ tokenTimes, own: 3 });
        const tell = (owner: number, episode: number, tokens: number) =>
          group.hear(owner, { ...toldOf([tokens]), episodes: Int32Array.of(episode) });
        group.begin(0, [2, 3]);
        for (const [owner, episode, tokens] of before) tell(owner, episode, tokens);
        // Whoever comes back has nothing of what it had.
        group.down(died);
        group.up(died);
        for (const owner of [0, 1, 2]) group.hear(owner, toldOf([], [], [0, 1, 2, 3]));
        const now = new Map(last.map(([owner, episode, tokens]) => [`${owner}/${episode}`, [owner, episode, tokens]]));
        const order = before.length > 0 ? [...now.values()].reverse() : [...now.values()];
        for (const [owner, episode, tokens] of order) tell(owner!, episode!, tokens!);
        group.place();
        return homesOf(group, 2, 4);
      });
      expect(placed[0]).toEqual(placed[1]);
    }),
  );
});

test("UG2: of equal predictions each owner has its share of every group", () => {
  const homes = [0, 1].map((own) => {
    const group = groupOf({ tokenTimes: [1, 1], own });
    group.hear(1 - own, toldOf([5, 5, 5, 5]));
    group.begin(0, [5, 5, 5, 5]);
    group.place();
    return homesOf(group, 4, 2);
  });
  expect(homes).toEqual([
    [0, 0, 1, 1],
    [0, 0, 1, 1],
  ]);
});

test("UG3: a rank that is down takes nothing and has nothing, and those that were to be there are placed elsewhere", () => {
  const group = groupOf({ tokenTimes: [1, 0.01] });
  group.hear(1, toldOf([900, 800], [1, 1]));
  group.begin(0, [700, 600]);
  group.place();
  expect(homesOf(group, 2, 2)).toEqual([1, 1]);
  group.down(1);
  expect(homesOf(group, 2, 2)).toEqual([0, 0]);
  group.hear(1, toldOf([900]));
  group.up(1);
  expect([...group.episodes]).toEqual([0, 1]);
});

test("UG4: whatever a rank tells, what is kept of it is bounded, and a home that is no rank is none", () => {
  const group = groupOf({ tokenTimes: [1, 1], migrate: "pays" });
  group.begin(0, [100]);
  for (let first = 0; first < 100_000; first += 4000) {
    const told = toldOf(new Array<number>(4000).fill(1), new Array<number>(4000).fill(7));
    group.hear(1, { ...told, episodes: told.episodes.map((each) => first + each) });
  }
  group.place();
  expect(homesOf(group, 1, 2)[0]).toBeGreaterThanOrEqual(0);
  expect(group.numKnown).toBe(65_536 + 1);
});

test("UG5: ranks that have measured other interference, and err by other amounts, place alike once each has told", () => {
  const tokens = fc.array(fc.integer({ min: 1, max: 900 }), { minLength: 1, maxLength: 12 });
  const rank = fc.record({
    own: tokens,
    logSd: fc.double({ min: 0, max: 1.5, noNaN: true }),
    slope: fc.option(fc.double({ min: 0, max: 0.9, noNaN: true })),
  });
  fc.assert(
    fc.property(fc.array(rank, { minLength: 2, maxLength: 4 }), fc.constantFrom("own", "heard"), (ranks, first) => {
      const tokenTimes = ranks.map((_, at) => 1 / (at + 1));
      const groups = ranks.map(({ logSd, slope }, own) =>
        groupOf({ tokenTimes, own, logSd, measured: slope === null ? undefined : { type: "affine", slope } }),
      );
      if (first === "own") for (const [at, group] of groups.entries()) group.begin(0, ranks[at]!.own);
      const hearAll = () => {
        for (const [owner, teller] of groups.entries())
          for (const [own, group] of groups.entries())
            if (own !== owner) group.hear(owner, teller.tell([...ranks[owner]!.own.keys()]));
      };
      hearAll();
      if (first === "heard") for (const [at, group] of groups.entries()) group.begin(0, ranks[at]!.own);
      hearAll();
      for (const group of groups) group.place();
      // What one places of another is where that one has placed it.
      const placed = groups.map((group, at) => group.tell([...ranks[at]!.own.keys()]).homes);
      const all = ranks.flatMap(({ own }, owner) => own.map((each, episode) => ({ each, owner, episode })));
      const alone = groupOf({
        tokenTimes,
        own: 0,
        logSd: ranks.reduce((sum, { logSd }) => sum + logSd, 0) / ranks.length,
        measured: middleOf(ranks.flatMap(({ slope }) => slope ?? [])),
      });
      // Equal ones go by number, then by owner (UG2).
      all.sort((a, b) => a.episode - b.episode || a.owner - b.owner);
      alone.begin(
        0,
        all.map(({ each }) => each),
      );
      alone.place();
      const { homes } = alone.tell([...all.keys()]);
      expect(all.map(({ owner, episode }) => placed[owner]![episode])).toEqual([...homes]);
    }),
  );
});

const middleOf = (slopes: readonly number[]): GroupConditions["F"] | undefined =>
  slopes.length === 0
    ? undefined
    : { type: "affine", slope: slopes.toSorted((a, b) => a - b)[Math.floor(slopes.length / 2)]! };

test("UG5: of a rank that is down nothing counts, not even what it measured", () => {
  const predictions = [100, 90, 80, 70, 60, 50];
  const homes = (hears: boolean, dies: boolean) => {
    const group = groupOf({ tokenTimes: [1, 0.5, 0.9], F: { type: "affine", slope: 0 } });
    if (hears) group.hear(1, { ...toldOf([]), measured: { logSd: 0, slope: 0.9 } });
    if (dies) {
      group.down(1);
      group.up(1);
    }
    group.begin(0, predictions);
    group.place();
    return homesOf(group, predictions.length, 3);
  };
  expect(homes(true, false)).not.toEqual(homes(false, false));
  expect(homes(true, true)).toEqual(homes(false, true));
});

test("what begins at its own rank is of its company as soon as it waits there, so others keep away and it may leave", () => {
  const told = new Set<number>();
  const group = groupOf({ numRanks: 2, placement: "own", migrate: "pays", changed: (episode) => told.add(episode) });
  group.begin(0, [100, 90, 80, 70]);
  expect([...group.tell([...told]).homes]).toEqual([0, 0, 0, 0]);
  const policy = group.policy(0, new WorkerLoads(2));
  // One runs, and three wait for its place.
  policy.moved(3, 0);
  expect(policy.worksOnAt(3, 0, { remainingTokens: 60, generatedTokens: 10, transferSeconds: 1 })).toBe(1);
});

test("what waits to begin wherever there is room counts as company of every rank alike", () => {
  const isMoved = (waiting: number) => {
    const group = groupOf({
      tokenTimes: [1, 0.8],
      placement: "own",
      migrate: "pays",
      F: { type: "affine", slope: 0.3 },
    });
    group.begin(0, [100]);
    const policy = group.policy(0, new WorkerLoads(2));
    policy.moved(0, 0);
    group.hear(1, toldOf(new Array<number>(waiting).fill(90)));
    // Alone it is over sooner at the fast rank by a fifth; what the move costs is little beside what all that company does.
    return policy.worksOnAt(0, 0, { remainingTokens: 90, generatedTokens: 10, transferSeconds: 15 }) === 1;
  };
  expect(isMoved(0)).toBe(false);
  expect(isMoved(12)).toBe(true);
});

test("what others are told of is what has changed: where each is or shall be, and what has ended", () => {
  const changed = new Set<number>();
  const group = groupOf({ tokenTimes: [1, 0.001], migrate: "pays", changed: (episode) => changed.add(episode) });
  const told = () => {
    const { episodes, tokens, remaining, homes, ended } = group.tell([...changed]);
    changed.clear();
    return [[...episodes], [...tokens], [...remaining], [...homes], [...ended]];
  };
  group.begin(3, [50, 40]);
  expect(told()).toEqual([[3, 4], [50, 40], [50, 40], [nowhere, nowhere], []]);
  group.place();
  const policy = group.policy(3, new WorkerLoads(2));
  expect(told()).toEqual([[3, 4], [50, 40], [50, 40], [1, 1], []]);
  policy.worksOnAt(0, 1, { remainingTokens: 70, generatedTokens: 10, transferSeconds: 0 });
  policy.moved(0, 0);
  policy.moved(1, 1);
  expect(told()).toEqual([[3], [80], [70], [0], []]);
  policy.finished(1);
  expect(told()).toEqual([[], [], [], [], [4]]);
});

test("a rank of which nothing is known makes all of them equal", () => {
  const given = [900, 500, 20, 10, 7, 3];
  const homes = (tokenTimes: readonly (number | undefined)[]) => {
    const group = groupOf({ tokenTimes });
    group.begin(0, given);
    group.place();
    return homesOf(group, given.length, 3);
  };
  expect(homes([0.018, 0.0063, undefined])).toEqual(homes([1, 1, 1]));
  expect(homes([0.018, 0.0063, 0.008])).not.toEqual(homes([1, 1, 1]));
});

test("what keeps its rank at first goes on at a faster one where that pays, and never at a slower one of no company", () => {
  const moved = (tokenTimes: readonly number[]) => {
    const group = groupOf({ tokenTimes, placement: "own", migrate: "pays" });
    group.begin(0, [1000, 10]);
    const policy = group.policy(0, new WorkerLoads(2));
    for (const episode of [0, 1]) policy.moved(episode, 0);
    return policy.worksOnAt(0, 0, { remainingTokens: 900, generatedTokens: 100, transferSeconds: 10 });
  };
  expect(moved([0.018, 0.0063])).toBe(1);
  expect(moved([0.0063, 0.018])).toBe(0);
});

test("'pays' counts what others have at a rank, and moves where that is over sooner", () => {
  const moves = (beside: number): number => {
    const predictions = [100, 90, 80, 70];
    const group = groupOf({ numRanks: 2, placement: "own", migrate: "pays", F: { type: "affine", slope: 0.5 } });
    group.begin(0, predictions);
    const policy = group.policy(0, new WorkerLoads(2));
    for (const episode of predictions.keys()) policy.moved(episode, 0);
    group.hear(1, toldOf(new Array<number>(beside).fill(500), new Array<number>(beside).fill(1)));
    return predictions.filter((remainingTokens, episode) => {
      const target = policy.worksOnAt(episode, 0, { remainingTokens, generatedTokens: 0, transferSeconds: 1 });
      policy.moved(episode, target);
      return target === 1;
    }).length;
  };
  expect(moves(0)).toBeGreaterThan(0);
  expect(moves(8)).toBe(0);
});

test("'pays' counts a queue by what its episodes have still to come, here and at others, whatever they have generated", () => {
  /** Two places a rank: four of 1000 tokens here, of which the last has 100 to come, and four of 500 at the other. */
  const goesOnAt = (left: { readonly here: number; readonly there: number }): number => {
    const flat = { type: "affine", slope: 0 } as const;
    const group = groupOf({ numRanks: 2, migrate: "pays", F: flat, places: 2 });
    group.begin(0, [1000, 1000, 1000, 1000]);
    const policy = group.policy(0, new WorkerLoads(2));
    const worksOnAt = (episode: number, remainingTokens: number) =>
      policy.worksOnAt(episode, 0, { remainingTokens, generatedTokens: 1000 - remainingTokens, transferSeconds: 0 });
    for (const episode of [0, 1, 2, 3]) policy.moved(episode, 0);
    for (const episode of [0, 1, 2]) worksOnAt(episode, left.here);
    const told = toldOf([500, 500, 500, 500], [1, 1, 1, 1]);
    group.hear(1, { ...told, remaining: new Float64Array(4).fill(left.there) });
    return worksOnAt(3, 100);
  };
  // The queue here is nearly over; the other one is in its midst.
  expect(goesOnAt({ here: 10, there: 500 })).toBe(0);
  // The other one is nearly over, which its owner alone knows.
  expect(goesOnAt({ here: 300, there: 10 })).toBe(1);
});

test("UG5, PG4: ranks lengthen their longest to the largest limit that any has told, so they place alike", () => {
  const homes = (mostTokens: number | undefined, told: number | undefined) => {
    const group = groupOf({ tokenTimes: [1, 0.5], logSd: 1, mostTokens });
    group.hear(1, { ...toldOf([]), measured: { logSd: 1, mostTokens: told } });
    group.begin(0, [400, 150, 150, 150, 150, 150]);
    group.place();
    return homesOf(group, 6, 2);
  };
  expect(homes(500, 9000)).toEqual(homes(9000, 500));
  expect(homes(500, 9000)).toEqual(homes(9000, 9000));
  expect(homes(500, undefined)).toEqual(homes(undefined, undefined));
  expect(homes(500, 450)).not.toEqual(homes(undefined, undefined));
});

test("rules that do not go together, and a factor that falls, are refused", () => {
  expect(() => groupOf({ placement: "own", migrate: "scaled" })).toThrow(/'scaled' where placement is 'own'/);
  expect(() => groupOf({ F: { type: "table", values: [1, 3, 2], extend: "linear" } })).toThrow(/never falls/);
});
