import { defaultDecideOptions } from "@treadle/actions/state-machines";
import { createRandom } from "@treadle/learning";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { bestFixed, compareCoding } from "../src/actions/compare-actions.ts";
import { behindFixed } from "../src/actions/paper-figures.ts";
import { podStep } from "../src/actions/pod-step.ts";
import { ActionScenario, codingWorkloads } from "../src/actions/scenario.ts";
import { scheduledStep } from "../src/actions/scheduled-step.ts";
import { dedicatedServices, pooledServices, serviceWorkloads } from "../src/actions/service-step.ts";
import { compareSuite, drawSuites, suiteStep } from "../src/actions/suite-step.ts";
import { drawTrajectories } from "../src/actions/trajectories.ts";

const scenario = ActionScenario.parse({
  coding: { turns: [3], tools: [{ p90Seconds: 2, meanSeconds: 3 }], rewardMedianSeconds: [60], overheadSeconds: 0 },
  services: {},
});
const workload = codingWorkloads(scenario)[0]!;
const unhindered = { ...scenario.pods, podsPerNode: 10_000, podsPerSecond: 1e9, startSeconds: 0, requestCores: 1e-3 };
const one = { generations: [5, 5], tools: [2], reward: { seconds: 100, serialShare: 0, estimate: 100 } };

describe("a step under action-level scheduling", () => {
  test("alone, a trajectory's reward gets every core it may, and nothing waits", () => {
    const machines = { nodes: 1, coresPerNode: 40 };
    const figures = scheduledStep([one], workload, machines, defaultDecideOptions);
    expect(figures.tool).toBeCloseTo(2, 6);
    expect(figures.reward).toBeCloseTo(100 / 32, 6);
    expect(figures.step).toBeCloseTo(5 + 2 + 5 + 100 / 32, 6);
    expect(figures.utilisation * figures.step * 40).toBeCloseTo(2 + 100, 6);
  });

  test("two trajectories on one core wait for each other, first come first served", () => {
    const figures = scheduledStep([one, one], workload, { nodes: 1, coresPerNode: 1 }, defaultDecideOptions);
    expect(figures.tool).toBeCloseTo((2 + 4) / 2, 6);
    // The second comes 2 s after the first, which takes 100 s.
    expect(figures.reward).toBeCloseTo((100 + 198) / 2, 6);
  });

  test("whatever the policy, all end, no core works twice, and the work is the same or more", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 24 }),
        fc.integer({ min: 1, max: 2 }),
        fc.integer({ min: 1, max: 12 }),
        fc.constantFrom("unit-aware", "paper", "fixed-dop", "fcfs-min"),
        fc.integer(),
        (count, nodes, coresPerNode, policy, seed) => {
          const step = drawTrajectories(workload, count, createRandom(seed));
          const machines = { nodes, coresPerNode };
          const figures = scheduledStep(step, workload, machines, { ...defaultDecideOptions, policy });
          const atLeast = step.reduce((sum, t) => sum + t.reward.seconds + t.tools.reduce((a, b) => a + b, 0), 0);
          expect(figures.utilisation).toBeLessThanOrEqual(1 + 1e-9);
          expect(figures.utilisation * figures.step * nodes * coresPerNode).toBeGreaterThan(atLeast * (1 - 1e-6));
          const longest = Math.max(...step.map((t) => t.generations.reduce((a, b) => a + b, 0)));
          expect(figures.step).toBeGreaterThan(longest);
        },
      ),
      { numRuns: 40 },
    );
  });
});

describe("a step with a pod a trajectory", () => {
  test("where nothing limits the pods it is a fixed degree of one without a queue", () => {
    const step = drawTrajectories(workload, 12, createRandom(1));
    const machines = { nodes: 2, coresPerNode: 12 };
    const pods = podStep(step, workload, machines, { ...unhindered, rewardWorkers: 1 });
    const fixed = scheduledStep(step, workload, machines, { ...defaultDecideOptions, policy: "fixed-dop", dop: 1 });
    for (const figure of ["act", "tool", "reward", "trajectory", "step", "utilisation"] as const)
      expect(pods[figure]).toBeCloseTo(fixed[figure], 5);
  });

  test("pods share the cores of their node evenly, up to their limit", () => {
    const figures = podStep([one, one], workload, { nodes: 1, coresPerNode: 1 }, { ...unhindered, rewardWorkers: 4 });
    expect(figures.tool).toBeCloseTo(4, 6);
    expect(figures.reward).toBeCloseTo(200, 6);
    const wide = podStep([one], workload, { nodes: 1, coresPerNode: 8 }, { ...unhindered, rewardWorkers: 16 });
    expect(wide.reward).toBeCloseTo(100 / scenario.pods.limitCores, 6);
  });

  test("a pod that cannot be created makes its trajectory wait until another has ended", () => {
    const pods = { ...unhindered, podsPerNode: 1, rewardWorkers: 1 };
    const figures = podStep([one, one], workload, { nodes: 1, coresPerNode: 8 }, pods);
    // The second has generated for 5 s; its pod comes after the first's 5 + 2 + 5 + 100 s.
    expect(figures.tool).toBeCloseTo((2 + (112 - 5 + 2)) / 2, 5);
  });
});

describe("reward models on GPUs", () => {
  const services = serviceWorkloads(scenario.services!)[0]!;
  const requests = [0, 100, 200].map((atSeconds) => ({ atSeconds, model: 0, seconds: 10 }));

  test("a service is restored once and then stays; a request alone gets the fastest degree", () => {
    const own = {
      ...services,
      models: 1,
      gpusPerNode: 4 as const,
      serialShare: 0,
      restoreSeconds: 4,
      requestMedianSeconds: 10,
    };
    const { act } = pooledServices(requests, own, 4, defaultDecideOptions);
    expect(act).toBeCloseTo((1 + 3 * 2.5) / 3, 6);
  });

  test("a server of its own works on as many requests at once as it has slots", () => {
    const together = [0, 0, 0].map((atSeconds) => ({ atSeconds, model: 0, seconds: 8 }));
    const own = { ...services, models: 1, serialShare: 0, gpusPerModel: 4 };
    expect(dedicatedServices(together, { ...own, serverSlots: 1 }).act).toBeCloseTo((2 + 4 + 6) / 3, 6);
    expect(dedicatedServices(together, { ...own, serverSlots: 2 }).act).toBeCloseTo((2 + 2 + 4) / 3, 6);
  });
});

describe("suites that come together", () => {
  const shape = (num: number, cores: number, serialShare: number) => ({
    cores,
    maxCores: cores,
    rounds: 1,
    suitesPerCore: num / cores,
    suites: Array.from({ length: num }, () => ({ atSeconds: 0, seconds: 60, estimate: 60, serialShare })),
  });

  test("alone, one has every core; fixed degrees take their turns", () => {
    expect(suiteStep(shape(1, 4, 0), {})).toBeCloseTo(15 + 0.06, 6);
    const turns = [1, 1, 2, 2].map((turn) => turn * (30 + 0.06));
    const fixed = suiteStep(shape(4, 4, 0), { policy: "fixed-dop", dop: 2 });
    expect(fixed).toBeCloseTo(turns.reduce((sum, at) => sum + at, 0) / 4, 6);
  });

  test.each([
    [4, 2],
    [8, 4],
    [12, 8],
    [40, 16],
  ])("%d on %d cores take at most a fiftieth longer than with the best fixed degree", (num, cores) => {
    const { unitAware, fixed } = compareSuite(shape(num, cores, 0.05));
    expect(unitAware / fixed.act).toBeLessThan(1.02);
  });

  test("drawn shapes take no longer in the mean than with the degree that is best for each in hindsight, by 2 %", () => {
    const random = createRandom(3);
    const shapes = Array.from({ length: 80 }, (_, i) => drawSuites(random.split(i)));
    const ratios = shapes
      .filter(({ suites }) => suites.length <= 64) // large ones take a second each
      .map((shape) => compareSuite(shape))
      .map(({ unitAware, fixed }) => unitAware / fixed.act);
    expect(ratios.length).toBeGreaterThan(30);
    expect(ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length).toBeLessThan(1.02);
    expect(ratios.filter((ratio) => ratio > 1.02).length).toBeLessThan(ratios.length / 3);
  });
});

test("where the best fixed degree is ahead is counted by kind of workload", () => {
  const small = { ...scenario, points: [{ batch: 20, cores: 20 }], fixedDegrees: [1, 2, 8] };
  const coding = [...compareCoding(small)];
  const row = (unitAware: number, rounds: number) => {
    return {
      shape: { ...drawSuites(createRandom(1)), suitesPerCore: 1, rounds },
      unitAware,
      fixed: { dop: 2, act: 100 },
    };
  };
  const suites = [row(101, 1), row(103, 1), row(99, 1), row(150, 4)];
  const [steps, once, rounds] = behindFixed(coding, [], suites);
  expect(steps).toMatchObject({ num: coding.length });
  expect(once).toMatchObject({ num: 3, numBehind: 1, median: 1.01, most: 1.03 });
  expect(rounds).toMatchObject({ num: 1, numBehind: 1, median: 1.5, most: 1.5 });
});

test("tool calls have the median, the 90th percentile and the mean that were asked for", () => {
  const long = { ...workload, turns: 2000, turnsSpread: 0, tools: { p90Seconds: 8, meanSeconds: 3 } };
  const tools = drawTrajectories(long, 40, createRandom(3)).flatMap((t) => t.tools);
  const sorted = tools.toSorted((a, b) => a - b);
  expect(sorted[sorted.length >> 1]! / 0.05).toBeCloseTo(1, 0);
  expect(Math.abs(sorted[Math.floor(sorted.length * 0.9)]! - 8)).toBeLessThan(0.8);
  expect(Math.abs(tools.reduce((a, b) => a + b, 0) / tools.length - 3)).toBeLessThan(0.3);
});

test("equal seeds give equal comparisons, and the best fixed degree is the least of them", () => {
  const small = { ...scenario, points: [{ batch: 20, cores: 20 }], fixedDegrees: [1, 2, 8] };
  const [first] = compareCoding(small);
  expect([...compareCoding(small)][0]).toEqual(first);
  expect([...compareCoding({ ...small, seed: 1 })][0]).not.toEqual(first);
  const best = bestFixed(first!, "trajectory");
  expect(best.value).toBe(Math.min(...first!.fixed.map(({ figures }) => figures.trajectory)));
});
