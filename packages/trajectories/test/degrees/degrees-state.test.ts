import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type DegreesDecision,
  type DegreesSituation,
  DegreesState,
  drawEpisodes,
  joinParts,
  liveMigrations,
  type PlayedEpisode,
  PlayedStep,
  RolloutProblem,
  replaySeconds,
  Scheduler,
  type SharingWay,
  simulateRollout,
  workloadShapes,
} from "../../src/index.ts";

const seed = Number(process.env.TREADLE_SEED);
const F = { type: "affine" as const, slope: 0.05 };

const turn = fc.record({
  tokens: fc.integer({ min: 1, max: 40 }),
  toolSeconds: fc.constantFrom(0, 0.5, 3),
  observedTokens: fc.constantFrom(0, 5),
  predictedTokens: fc.constantFrom(1, 10, 60),
  predictedToolSeconds: fc.constantFrom(0, 2),
});
const episode = fc.record({ contextTokens: fc.nat(9), turns: fc.array(turn, { minLength: 1, maxLength: 3 }) });
const step = fc.record({ logSd: fc.constantFrom(0, 0.6), episodes: fc.array(episode, { minLength: 1, maxLength: 9 }) });
const way: fc.Arbitrary<SharingWay> = fc.record({
  tokenTime: fc.constantFrom<SharingWay["tokenTime"]>({ 1: 1, 2: 0.6, 4: 0.4 }, { 1: 1, 3: 0.2 }, { 2: 1, 4: 0.9 }),
  places: fc.integer({ min: 1, max: 4 }),
  scheduler: fc.constantFrom(...Scheduler.options),
  migrate: fc.constantFrom(...liveMigrations),
  prefillSteps: fc.constantFrom(0, 0.1),
});

/** A first step, which counts for nothing. */
const ignored: PlayedStep = {
  logSd: 0,
  episodes: [
    {
      contextTokens: 0,
      turns: [{ tokens: 999, toolSeconds: 0, observedTokens: 0, predictedTokens: 1, predictedToolSeconds: 0 }],
    },
  ],
};

/** Told of steps before it is asked. */
function decide(state: DegreesState, steps: readonly PlayedStep[], situation: DegreesSituation) {
  for (const each of steps) state.stepEnded(each);
  const looking = state.look(situation);
  for (;;) {
    const { done, value } = looking.next();
    if (done) return value;
  }
}

const free = (changes: Partial<DegreesSituation> = {}): DegreesSituation => ({
  ...{ current: [1, 1, 1, 1], devices: 4, stepsLeft: 100, changeSeconds: 0, canPlace: () => true },
  ...changes,
});

/** Every list within the devices, the largest first. */
function listsWithin(devices: number, degrees: readonly number[]): number[][] {
  const visit = (list: number[], left: number): number[][] => [
    ...(list.length > 0 ? [list] : []),
    ...degrees
      .filter((degree) => degree <= left && degree <= (list.at(-1) ?? degree))
      .flatMap((degree) => visit([...list, degree], left - degree)),
  ];
  return visit([], devices);
}

describe("a decision on the devices of each rank", () => {
  const situation = fc.record({
    steps: fc.tuple(step, step),
    way,
    devices: fc.integer({ min: 4, max: 7 }),
    stepsLeft: fc.constantFrom(0, 1, 30),
    changeSeconds: fc.constantFrom(0, 5, 1000),
    forbidden: fc.constantFrom("nothing", "unequal", "wide"),
  });
  const isAllowed = (forbidden: string) => (degrees: readonly number[]) =>
    forbidden === "unequal"
      ? new Set(degrees).size === 1
      : forbidden === "wide"
        ? degrees.every((each) => each < 4)
        : true;

  test("is that of brute force over the lists that were simulated, which are never fewer than the equal ones that can be placed (DG1 to DG3)", () => {
    fc.assert(
      fc.property(situation, ({ steps, way, devices, stepsLeft, changeSeconds, forbidden }) => {
        const known = Object.keys(way.tokenTime).map(Number);
        const current = new Array<number>(Math.floor(devices / known[0]!)).fill(known[0]!);
        const canPlace = isAllowed(forbidden);
        const decision = decide(
          new DegreesState({ ...way, F }),
          [ignored, ...steps],
          free({ current, devices, stepsLeft, changeSeconds, canPlace }),
        ) as DegreesDecision;
        const secondsOf = (degrees: readonly number[]) => steps.map((each) => replaySeconds(each, degrees, F, way));
        const product = (degrees: readonly number[]) => secondsOf(degrees).reduce((all, each) => all * each, 1);
        const mean = (degrees: readonly number[]) => secondsOf(degrees).reduce((sum, each) => sum + each, 0) / 2;
        const { best, bestEqual, changes, reason } = decision;
        for (const { degrees, seconds } of [best, decision.current]) expect(seconds).toBeCloseTo(mean(degrees), 9);
        const all = listsWithin(devices, known);
        expect(all.map(String)).toContain(`${best.degrees}`);
        const equal = known
          .filter((degree) => degree <= devices)
          .map((degree) => new Array<number>(Math.floor(devices / degree)).fill(degree))
          .filter((list) => canPlace(list) || `${list}` === `${current}`);
        for (const list of equal) expect(product(best.degrees)).toBeLessThanOrEqual(product(list));
        if (bestEqual) expect(product(bestEqual.degrees)).toBe(Math.min(...equal.map(product)));
        expect(product(best.degrees)).toBeGreaterThanOrEqual(Math.min(...all.map(product)) * (1 - 1e-12));
        if (`${best.degrees}` !== `${current}`) expect(canPlace(best.degrees)).toBe(true);
        const [before, after] = [secondsOf(current), secondsOf(best.degrees)];
        const isFaster = after.every((seconds, at) => seconds < before[at]!);
        const isEnough = isFaster && product(best.degrees) <= product(current) * 0.95 ** 2;
        const pays = (mean(current) - mean(best.degrees)) * Math.min(16, stepsLeft) > changeSeconds;
        expect(changes).toBe(isEnough && pays);
        expect(changes).toBe(reason === "gains");
      }),
    );
  });

  test("finds unequal ranks where few episodes are long and many short, and keeps them", () => {
    const short = { tokens: 20, toolSeconds: 0, observedTokens: 0, predictedTokens: 20, predictedToolSeconds: 0 };
    const of = (tokens: number): PlayedEpisode => ({
      contextTokens: 0,
      turns: [{ ...short, tokens, predictedTokens: tokens }],
    });
    const tailed: PlayedStep = { logSd: 0, episodes: [of(400), ...Array.from({ length: 40 }, () => of(60))] };
    const sharing: SharingWay = {
      ...{ tokenTime: { 1: 0.016, 2: 0.012, 4: 0.009 }, places: 16 },
      ...{ scheduler: "pps", migrate: "pays", prefillSteps: 0 },
    };
    const state = new DegreesState({ ...sharing, F });
    const current = [1, 1, 1, 1, 1, 1];
    const first = decide(state, [ignored, tailed, tailed], free({ current, devices: 6 })) as DegreesDecision;
    expect(first).toMatchObject({ changes: true, reason: "gains" });
    expect(new Set(first.best.degrees).size).toBeGreaterThan(1);
    expect(first.best.seconds).toBeLessThan(first.bestEqual!.seconds);
    const again = decide(state, [tailed, tailed], free({ current: first.best.degrees, devices: 6 }));
    expect(again).toMatchObject({ changes: false, reason: "is-best" });
  });

  test("does not waver with the noise of steps: what it left it does not come back to (DG3)", () => {
    const sharing: SharingWay = {
      ...{ tokenTime: { 1: 0.018, 2: 0.0115, 4: 0.008 }, places: 100 },
      ...{ scheduler: "pps", migrate: "pays", prefillSteps: 0.01 },
    };
    const drawn = drawEpisodes(workloadShapes.coding, {
      ...{ steps: 40, promptsPerStep: 20, samples: 8, prompts: 40, seed },
    });
    const steps = drawn.map(
      (episodes): PlayedStep => ({
        logSd: 0.4,
        episodes: episodes.map(({ contextTokens, turns }) => {
          const rests = turns.map((_, at) => turns.slice(at).reduce((sum, { tokens }) => sum + tokens, 0));
          return {
            contextTokens,
            turns: turns.map(({ tokens, toolSeconds = 0, observedTokens = 0 }, at) => ({
              ...{ tokens, toolSeconds, observedTokens, predictedToolSeconds: 0 },
              predictedTokens: rests[at]! * (at % 2 === 0 ? 1.3 : 0.7),
            })),
          };
        }),
      }),
    );
    const state = new DegreesState({ ...sharing, F: { type: "affine", slope: 0.04 } });
    let current: readonly number[] = new Array<number>(16).fill(1);
    const had = [`${current}`];
    for (const each of steps) {
      const decision = decide(state, [each], free({ current, devices: 16 }));
      if (!decision?.changes) continue;
      current = decision.best.degrees;
      had.push(`${current}`);
    }
    expect(new Set(had).size).toBe(had.length);
    expect(had.length).toBeLessThanOrEqual(4);
  });

  test("is due after three steps, and later each time that nothing changes, up to a limit (DG4)", () => {
    const alike: PlayedStep = {
      logSd: 0,
      episodes: [
        {
          contextTokens: 0,
          turns: [{ tokens: 4, toolSeconds: 0, observedTokens: 0, predictedTokens: 4, predictedToolSeconds: 0 }],
        },
      ],
    };
    const sharing: SharingWay = {
      ...{ tokenTime: { 1: 1 }, places: 1, scheduler: "fcfs" as const, migrate: "never" as const, prefillSteps: 0 },
    };
    const state = new DegreesState({ ...sharing, F });
    const looked: number[] = [];
    for (let at = 1; at <= 70; at++) if (decide(state, [alike], free({ devices: 4 })) !== undefined) looked.push(at);
    expect(looked).toEqual([3, 9, 21, 37, 53, 69]);
    const none = new DegreesState({ ...sharing, F });
    for (let at = 0; at < 9; at++) none.stepEnded({ logSd: 0, episodes: [] });
    expect(none.isDue).toBe(false);
  });
});

describe("a played step", () => {
  test("takes again what a simulation says that it took, with its predictions as they were, and groups as ranks of a run estimate them", () => {
    const plain = way.map((each) => ({
      ...each,
      migrate: each.migrate === "never" ? ("never" as const) : ("scaled" as const),
    }));
    fc.assert(
      fc.property(step, plain, (played, sharing) => {
        const { tokenTime, places, scheduler, migrate, prefillSteps } = sharing;
        const degrees = Object.keys(tokenTime).map(Number).reverse();
        const problem = {
          trajectories: played.episodes.map(({ contextTokens: context, turns }) => ({
            context,
            steps: turns.map(
              ({ tokens, toolSeconds: tool, observedTokens: observe, predictedTokens, predictedToolSeconds }) => ({
                ...{ tokens, tool, observe, pred: predictedTokens, predTool: predictedToolSeconds },
              }),
            ),
          })),
          workers: degrees.map((degree) => ({ tokenTime: tokenTime[degree]! })),
          ...{ F, maxBatch: places, scheduler, prefillRatio: prefillSteps },
          placement: {
            ...{ type: "dp", robust: played.logSd / 2 },
            ...(migrate === "never" ? {} : { migrate: true, rankBy: "total" }),
          },
          migration: { perToken: prefillSteps * Math.max(...Object.values(tokenTime)) },
        };
        const rule = migrate === "never" ? undefined : migrate;
        const { makespan } = simulateRollout(RolloutProblem.parse(problem), {
          estimate: "scheduled",
          migrationRule: rule,
        });
        expect(replaySeconds(played, degrees, F, sharing)).toBe(makespan);
      }),
    );
  });

  test("is what all ranks said of it, with the middle one's interference", () => {
    const [a, b] = fc.sample(episode, { numRuns: 2, seed });
    const part = (slope: number | undefined, logSd: number, episodes: PlayedEpisode[]): PlayedStep =>
      PlayedStep.parse({ logSd, episodes, ...(slope === undefined ? {} : { F: { type: "affine", slope } }) });
    const whole = joinParts([part(0.1, 0.2, [a!, b!]), part(undefined, 0.8, [a!]), part(0.3, 0, []), part(0.2, 0, [])]);
    expect(whole).toMatchObject({ F: { type: "affine", slope: 0.2 }, episodes: [a, b, a] });
    expect(whole.logSd).toBeCloseTo((0.2 * 2 + 0.8) / 3, 12);
    expect(joinParts([])).toEqual({ logSd: 0, episodes: [] });
  });
});
