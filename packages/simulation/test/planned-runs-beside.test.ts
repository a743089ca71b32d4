import { PoolConfig, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { type PlannedRun, simulateBeside } from "../src/index.ts";
import { chainProfile, placed, type Stage, virtualDevices } from "./hand-made.ts";

const limits = { residents: 2, turnMs: 1000, patienceMs: 60_000, yieldMs: 1e9, beatLimitMs: 1e9 };

/** `toolSeconds`: of a stage between the two that needs no device. */
function run(
  name: string,
  { stages, toolSeconds, devices = 2, memoryBytes }: Shape,
  pool: Partial<PoolConfig> = {},
): PlannedRun {
  const tool: Stage[] = toolSeconds === undefined ? [] : [{ name: "tool", perItem: 0, base: toolSeconds }];
  const profile = chainProfile([stages[0]!, ...tool, ...stages.slice(1)], 2);
  const all = Object.fromEntries(stages.map((stage) => [stage.name, "all"]));
  const explicit = tool.length > 0 ? { ...all, tool: "none" } : all;
  return {
    ...{ name, profile, devices: virtualDevices(devices, memoryBytes), pool: PoolConfig.parse(pool) },
    plan: placed(profile, "temporal", devices, { explicit }),
  };
}
type Shape = {
  readonly stages: readonly Stage[];
  readonly toolSeconds?: number;
  readonly devices?: number;
  readonly memoryBytes?: number;
};

const busy: Shape = {
  stages: [
    { name: "rollout", perItem: 1 },
    { name: "actor", perItem: 1 },
  ],
};

test("runs that never let go of their devices take turns: together they take as long as one after the other", () => {
  const { runs, seconds, serialSeconds } = simulateBeside([run("a", busy), run("b", busy)], limits);
  expect(seconds / serialSeconds).toBeCloseTo(1, 1);
  for (const { slowdown, waitedShare, aloneSeconds, besideSeconds } of runs) {
    expect(slowdown).toBeGreaterThan(1.8);
    expect(slowdown).toBeLessThanOrEqual(2.05);
    expect(waitedShare).toBeCloseTo(0.5, 1);
    expect(besideSeconds / aloneSeconds).toBeCloseTo(slowdown, 9);
  }
});

test("a run computes while its neighbour's tools work", () => {
  const withTools = { ...busy, toolSeconds: 2 };
  const { runs, seconds, serialSeconds } = simulateBeside([run("a", withTools), run("b", withTools)], limits);
  // Half of a step needs no device, so two runs fill each other's gaps but for what tells them apart.
  expect(serialSeconds / seconds).toBeGreaterThan(1.5);
  for (const { slowdown } of runs) expect(slowdown).toBeLessThan(1.35);
});

test("a run of short steps does as much beside one of long steps as it does alone in the same time", () => {
  const short = { stages: busy.stages.map((stage) => ({ ...stage, perItem: 0.05 })) };
  const { runs } = simulateBeside([run("long", busy), run("short", short)], limits);
  const [long, other] = runs.map(({ steps, aloneSeconds }) => steps * aloneSeconds) as [number, number];
  expect(other / long).toBeCloseTo(1, 1);
});

test("memory is shared, and who needs more than its part is named", () => {
  const large = {
    ...busy,
    memoryBytes: 100 * 2 ** 20,
    stages: busy.stages.map((each) => ({ ...each, bytes: 60 * 2 ** 20 })),
  };
  try {
    simulateBeside([run("a", large), run("b", large)], limits);
    expect.unreachable();
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    expect(error.code).toBe("placement.impossible");
    expect(error.message).toContain("'rollout' of 'a' needs 60 MiB of 'gpu:0', where the run's part is 50 MiB");
  }
  const parts = (mebibytes?: number) => [
    run("a", large, { memoryPerDeviceMiB: 60 }),
    run("b", { ...busy, memoryBytes: 100 * 2 ** 20 }, { memoryPerDeviceMiB: mebibytes }),
  ];
  expect(() => simulateBeside(parts(), limits)).toThrow("'a' and 'b' ask for 110 MiB of 'gpu:0', which has 100");
  expect(simulateBeside(parts(40), limits).runs).toHaveLength(2);
});

test.each([
  [{ maxSlowdown: 1.25 }, { maxSlowdown: 1.25 }, "bounds of pool.maxSlowdown (1.25, 1.25) cannot be kept together"],
  [{ maxSlowdown: 1 }, {}, "bounds of pool.maxSlowdown (1, none) cannot be kept together"],
  [{ memoryPerDeviceMiB: 60 }, { memoryPerDeviceMiB: 60 }, "ask for 120 MiB of 'gpu:0'"],
])("what a pool would not let in together is not shown as if it were: %o and %o", (one, two, message) => {
  const small = { ...busy, memoryBytes: 100 * 2 ** 20 };
  expect(() => simulateBeside([run("a", small, one), run("b", small, two)], limits)).toThrow(message);
});

test("steps that are too far apart to be compared are refused, and so are turns that nobody would see the end of", () => {
  const short = { stages: busy.stages.map((stage) => ({ ...stage, perItem: 0.0001 })) };
  expect(() => simulateBeside([run("long", busy), run("short", short)], limits)).toThrow("run 'short' has steps of");
  const turns = { ...limits, turnMs: 1e12 };
  expect(() => simulateBeside([run("a", busy), run("b", busy)], turns)).toThrow("give shorter turns");
  const none = { stages: busy.stages.map((stage) => ({ ...stage, perItem: 0 })) };
  expect(() => simulateBeside([run("a", busy), run("none", none)], limits)).toThrow("run 'none' has steps of");
});

test("whatever they are, no run is faster beside others, none is lost, and all take no longer than one after the other", () => {
  const shape = fc.record({
    perItem: fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 2, maxLength: 3 }),
    toolSeconds: fc.option(fc.integer({ min: 1, max: 40 }), { nil: undefined }),
    devices: fc.integer({ min: 1, max: 3 }),
  });
  fc.assert(
    fc.property(fc.array(shape, { minLength: 2, maxLength: 3 }), (shapes) => {
      const drawn = shapes.map(({ perItem, toolSeconds, devices }, i) =>
        run(`r${i}`, {
          stages: perItem.map((ms, at) => ({ name: `s${at}`, perItem: ms / 20 })),
          ...(toolSeconds === undefined ? {} : { toolSeconds: toolSeconds / 20 }),
          devices,
        }),
      );
      const { runs, seconds, serialSeconds } = simulateBeside(drawn, { ...limits, residents: drawn.length });
      expect(seconds).toBeLessThanOrEqual(serialSeconds * 1.05);
      for (const { slowdown, leasedShare, waitedShare } of runs) {
        expect(slowdown).toBeGreaterThan(0.999);
        expect(leasedShare + waitedShare).toBeLessThanOrEqual(1.001);
      }
    }),
    { numRuns: 30 },
  );
});
