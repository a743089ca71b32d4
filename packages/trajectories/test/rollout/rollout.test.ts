import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { migrationRules, type RolloutAnswer, solvePlace, solveRollout } from "../../src/index.ts";
import { type RolloutObserver, runEvents } from "../../src/rollout/events.ts";
import { RolloutProblem } from "../../src/rollout/problem.ts";
import { type Rollout, rolloutOf } from "./problems.ts";

const withoutStats = ({ stats: _, ...answer }: RolloutAnswer) => answer;

/** What must be the same whichever way it is computed; both ways are asked. */
function solve(input: Rollout) {
  const answer = withoutStats(solveRollout(input));
  expect(withoutStats(solveRollout(input, { method: "naive" }))).toEqual(answer);
  return answer;
}

const byHand: Rollout = {
  trajectories: [
    {
      steps: [
        { tokens: 10, tool: 2, pred: 30 },
        { tokens: 20, pred: 20 },
      ],
    },
    { steps: [{ tokens: 40, pred: 40 }] },
  ],
  workers: [{ tokenTime: 0.1 }],
  F: { type: "affine", slope: 0.5 },
  maxBatch: 1,
  scheduler: "rr",
  placement: { type: "cache" },
};

/** One step a trajectory, of as many tokens as predicted, on equal workers of one second a token. */
const singleSteps = (lengths: readonly number[], over: Partial<Rollout>): Rollout => ({
  ...byHand,
  trajectories: lengths.map((tokens) => ({ steps: [{ tokens, pred: tokens }] })),
  F: { type: "affine", slope: 0 },
  ...over,
});
const seconds = (...tokenTimes: number[]) => tokenTimes.map((tokenTime) => ({ tokenTime }));

describe("by hand", () => {
  test.each([
    [{ maxBatch: 1, scheduler: "rr" }, 7],
    [{ maxBatch: 1, scheduler: "pps" }, 9],
    [{ maxBatch: 2, scheduler: "rr" }, 6],
  ] as const)("%j takes %d s", (over, makespan) => {
    expect(solve({ ...byHand, ...over }).makespan).toBeCloseTo(makespan, 9);
  });

  test("under round-robin the longest waits for the first step, and the tool's seconds are used", () => {
    const answer = solve(byHand);
    expect(answer).toMatchObject({ tokens: 70, longest: 1, preemptions: 0, cacheMisses: 0, groupSizes: null });
    expect(answer.finish[1]).toBeCloseTo(5, 9);
    // The first waits from 3 to 5 for its second step, the other from 0 to 1.
    expect(answer.longestQueueDelay).toBeCloseTo(1, 9);
    expect(answer.meanQueueDelay).toBeCloseTo(1.5, 9);
    expect(answer.medianFinish).toBeCloseTo(5, 9);
    expect(answer.throughput).toBeCloseTo(10, 9);
  });

  test("a step that is predicted longer takes the place of one that runs, which goes on later with what it had", () => {
    const answer = solve({
      ...byHand,
      scheduler: "pps",
      trajectories: [
        { steps: [{ tokens: 30, pred: 30 }] },
        {
          steps: [
            { tokens: 10, tool: 0.5, pred: 40 },
            { tokens: 20, pred: 50 },
          ],
        },
      ],
    });
    // 1 runs to 1.0; 0 to 1.5; 1 again to 3.5; 0 has 25 left
    expect(answer).toMatchObject({ preemptions: 1 });
    expect(answer.finish[1]).toBeCloseTo(3.5, 9);
    expect(answer.finish[0]).toBeCloseTo(6, 9);
    expect(answer.longestQueueDelay).toBeCloseTo(3, 9);
  });

  test.each([
    ["rr", [1, 3, 6]],
    ["fcfs", [1, 3, 6]],
    ["sjf", [1, 3, 6]],
    ["las", [1, 3, 6]],
    ["pps", [6, 5, 3]],
  ] as const)("%s serves queued steps of 1, 2 and 3 tokens so that they finish at %j", (scheduler, finish) => {
    expect(solve(singleSteps([1, 2, 3], { workers: seconds(1), scheduler })).finish).toEqual(finish);
  });

  test("sjf and las differ from first come, first served once steps return", () => {
    const twoSteps = { steps: [1, 1].map((tokens) => ({ tokens, pred: 9 })) };
    const late = { steps: [{ tokens: 3, pred: 1 }] };
    const at = (scheduler: Rollout["scheduler"]) =>
      solve({ ...singleSteps([], { workers: seconds(1), scheduler }), trajectories: [twoSteps, late] }).finish;
    expect(at("fcfs")).toEqual([2, 5]);
    expect(at("las")).toEqual([5, 4]);
    expect(at("sjf")).toEqual([5, 3]);
  });

  test("moving to another worker computes the context anew, and the first time is no miss", () => {
    const answer = solve({
      ...singleSteps([], { workers: seconds(1, 1), maxBatch: 4 }),
      placement: { type: "least-load" },
      prefillRatio: 0.5,
      trajectories: [
        {
          context: 4,
          steps: [
            { tokens: 1, tool: 2, observe: 3, pred: 2 },
            { tokens: 1, pred: 1 },
          ],
        },
        { steps: [{ tokens: 1, pred: 1 }] },
        { steps: [{ tokens: 20, pred: 20 }] },
      ],
    });
    // 0 and 2 go to the first worker; at 5, when 0 returns with a context of 8, the second is free
    expect(answer.cacheMisses).toBe(1);
    expect(answer.finish).toEqual([10, 1, 20]);
  });

  test("hybrid stays with the cache until the loads are skewed", () => {
    const of = (threshold: number) =>
      solve({
        ...singleSteps([2, 2, 2], { workers: seconds(1, 1), maxBatch: 1, placement: { type: "hybrid", threshold } }),
      }).finish;
    expect(of(9)).toEqual([2, 2, 4]);
    const byPrompt = (threshold: number) =>
      solve({
        ...singleSteps([], { workers: seconds(1, 1), maxBatch: 1 }),
        trajectories: [2, 2, 2].map((tokens) => ({ prompt: 0, steps: [{ tokens, pred: tokens }] })),
        placement: { type: "hybrid", threshold, by: "prompt" },
      }).finish;
    expect(byPrompt(9)).toEqual([2, 4, 6]);
    // The second finds loads of 1 and 0: 1 / max(1, 0) is not above 1; the third finds 2 and 0.
    expect(byPrompt(1)).toEqual([2, 4, 2]);
  });

  test("groups go to workers from the fastest, and are as large as the least makespan allows", () => {
    const answer = solve(singleSteps([2, 8, 2, 2], { workers: seconds(2, 1), maxBatch: 4, placement: { type: "dp" } }));
    expect(answer).toMatchObject({ groupSizes: [4, 0], makespan: 8 });
    const interfering = solve(
      singleSteps([2, 8, 2, 2], {
        workers: seconds(2, 1),
        maxBatch: 4,
        placement: { type: "dp" },
        F: { type: "affine", slope: 1 },
      }),
    );
    expect(interfering).toMatchObject({ groupSizes: [1, 3], finish: [12, 8, 12, 12] });
  });

  test("a trajectory that turns out longer than another changes places with it, while its tool works", () => {
    const input: Rollout = {
      ...singleSteps([], { workers: seconds(1, 2), maxBatch: 1, F: { type: "affine", slope: 0 } }),
      placement: { type: "dp", migrate: true },
      migration: { base: 1, perToken: 0.5 },
      trajectories: [
        { steps: [{ tokens: 10, pred: 10 }] },
        {
          steps: [
            { tokens: 1, tool: 1, observe: 1, pred: 4 },
            { tokens: 30, pred: 30 },
          ],
        },
      ],
    };
    // Ends at 2 on the slow worker; moving takes 1 + 0.5 * 2, one second more than its tool; then it waits until 10.
    expect(solve(input)).toMatchObject({
      groupSizes: [1, 1],
      migrations: 1,
      exposedMigration: 1,
      cacheMisses: 0,
      finish: [10, 40],
      longestQueueDelay: 6,
    });
    expect(solve({ ...input, placement: { type: "dp" } })).toMatchObject({ migrations: 0, finish: [10, 63] });
  });

  test("no trajectory takes no time", () => {
    expect(solve(singleSteps([], {}))).toMatchObject({ makespan: 0, tokens: 0, longest: null, finish: [] });
  });
});

test("both methods answer the same", () => {
  fc.assert(
    fc.property(rolloutOf(9), (input) => void solve(input)),
    { numRuns: 1500 },
  );
});

test("both methods answer the same for many trajectories", () => {
  fc.assert(
    fc.property(rolloutOf(120), (input) => void solve(input)),
    { numRuns: 15 },
  );
});

test("RO1, RO2, RO3: every token is generated once, by at most maxBatch requests of a worker, each in one place", () => {
  fc.assert(
    fc.property(rolloutOf(9), fc.constantFrom(...migrationRules), (input, migrationRule) => {
      const problem = RolloutProblem.parse(input);
      const runsAt = new Map<number, number>();
      const generated = problem.trajectories.map(() => 0);
      let isWithin = true;
      let now = 0;
      const count = (worker: number) => [...runsAt.values()].filter((at) => at === worker).length;
      const observer: RolloutObserver = {
        admitted: (trajectory, worker, at) => {
          isWithin &&= !runsAt.has(trajectory) && at >= now;
          now = at;
          runsAt.set(trajectory, worker);
          isWithin &&= count(worker) <= problem.maxBatch;
        },
        evicted: (trajectory, worker) => {
          isWithin &&= runsAt.get(trajectory) === worker;
          runsAt.delete(trajectory);
        },
        ended: (trajectory, worker, tokens) => {
          isWithin &&= runsAt.get(trajectory) === worker;
          runsAt.delete(trajectory);
          generated[trajectory]! += tokens;
        },
      };
      const outcome = runEvents(problem, { observer, migrationRule });
      expect(isWithin).toBe(true);
      const lengths = problem.trajectories.map(({ steps }) => steps.reduce((sum, { tokens }) => sum + tokens, 0));
      expect(generated).toEqual(lengths);
      expect(outcome.events).toBe(2 * problem.trajectories.reduce((sum, { steps }) => sum + steps.length, 0));
    }),
    { numRuns: 300 },
  );
});

test("with single steps and no queues, the groups are those of place, and its makespan is an upper bound", () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 12 });
  const tokenTimes = fc.array(fc.constantFrom(0.5, 1, 2), { minLength: 1, maxLength: 3 });
  fc.assert(
    fc.property(lengths, tokenTimes, fc.double({ min: 0, max: 1, noNaN: true }), (tokens, times, slope) => {
      const F = { type: "affine" as const, slope };
      const workers = [...times].sort((a, b) => a - b);
      const answer = solve(
        singleSteps(tokens, { workers: seconds(...times), F, maxBatch: 20, placement: { type: "dp" } }),
      );
      const placed = solvePlace({ lengths: tokens, workers, F });
      expect(answer.groupSizes).toEqual(placed.sizes);
      // Those that end first leave the others faster than `place` takes them to be.
      expect(answer.makespan).toBeLessThanOrEqual(placed.makespan! * (1 + 1e-9));
    }),
    { numRuns: 200 },
  );
});

describe("refuses", () => {
  const step = { tokens: 1, pred: 1 };
  test.each<[unknown, string]>([
    [{ trajectories: [{ steps: [] }] }, "trajectories[0].steps: '[]' is not allowed: expected at least one step"],
    [{ trajectories: [{ steps: [{ ...step, tokens: 0 }] }] }, "trajectories[0].steps[0].tokens: '0' is not allowed"],
    [{ trajectories: [{ steps: [{ ...step, pred: -1 }] }] }, "trajectories[0].steps[0].pred: '-1' is not allowed"],
    [{ trajectories: [{ steps: [{ ...step, tool: Number.NaN }] }] }, "trajectories[0].steps[0].tool: "],
    [{ trajectories: [{ steps: [{ tokens: 1 }] }] }, "trajectories[0].steps[0].pred: is missing"],
    [{ workers: [] }, "expected at least one worker"],
    [{ workers: [{ tokenTime: -1 }] }, "workers[0].tokenTime: '-1' is not allowed"],
    [{ maxBatch: 0 }, "maxBatch: '0' is not allowed"],
    [{ prefillRatio: -0.1 }, "prefillRatio: '-0.1' is not allowed"],
    [{ migration: { base: -1 } }, "migration.base: '-1' is not allowed"],
    [
      { maxBatch: 3, F: { type: "affine", slope: 0, max: 2 } },
      "expected a positive, finite factor up to maxBatch, and not F(3) = Infinity",
    ],
    [{ maxBatch: 3, F: { type: "table", values: [3, 1] } }, "up to maxBatch, and not F(3) = -1"],
    [{ scheduler: "lifo" }, "scheduler: 'lifo' is not allowed"],
    [{ priority: "most" }, "priority: 'most' is not allowed"],
    [{ placement: { type: "random" } }, "placement.type: 'random' is not allowed"],
    [{ placement: { type: "hybrid" } }, "placement.threshold: is missing"],
    [{ placement: { type: "cache", migrate: true } }, "placement.migrate: 'true' is not allowed: only 'dp' takes it"],
    [{ placement: { type: "least-load", robust: 1 } }, "placement.robust: '1' is not allowed: only 'dp' takes it"],
    [{ placement: { type: "cache", by: "prompt" } }, "trajectories[0].prompt: is missing"],
    [{ placement: { type: "dp", shape: 1 } }, "placement.shape: the key is not known here"],
    [{ placement: { type: "dp", robust: 1e5 } }, "placement.robust: no placement has a finite makespan"],
    [{ workers: [{ tokenTime: 1e308 }] }, "no number holds its makespan"],
  ])("%j: %s", (wrong, message) => {
    for (const method of ["events", "naive"]) {
      try {
        solveRollout({ ...byHand, ...(wrong as object) }, { method });
        expect.unreachable();
      } catch (error) {
        if (!(error instanceof TreadleError)) throw error;
        expect(error.code).toBe("problem.invalid");
        expect(error.message).toContain(message);
      }
    }
  });

  test("an unknown method, and names those there are", () => {
    expect(() => solveRollout(byHand, { method: "dp" })).toThrow("allowed are 'events', 'naive'");
  });
});
