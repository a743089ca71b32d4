import type { ComponentProfile } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { expect, test } from "vitest";
import { normal } from "../src/durations.ts";
import { simulate } from "../src/index.ts";
import { chainProfile, placed } from "./hand-made.ts";

const profile = chainProfile(
  [
    { name: "rollout", perItem: 4, spread: 0.1 },
    { name: "actor", perItem: 3, spread: 0.05 },
  ],
  16,
);
const plan = placed(profile, "spatial", 8, { granularity: 1 });

test("equal seeds give equal runs, to the last span; other seeds give others", () => {
  const run = (seed: number) =>
    simulate({ profile, plan, steps: 4, seed, trace: true, traits: { rollout: { lengthSpread: 0.7 } } });
  expect(run(7)).toEqual(run(7));
  expect(run(8).stepSeconds).not.toEqual(run(7).stepSeconds);
});

test("the times of steps spread as the profile says, around its median", () => {
  const temporal = placed(profile, "temporal", 1);
  const { steps } = simulate({ profile, plan: temporal, steps: 600, seed: 3 });
  const seconds = steps.map((step) => step.seconds).sort((a, b) => a - b);
  const median = seconds[300] as number;
  expect(median).toBeGreaterThan(112 * 0.98);
  expect(median).toBeLessThan(112 * 1.02);
  const deviations = seconds.map((each) => Math.abs(each / median - 1)).sort((a, b) => a - b);
  // Two independent parts of 64 s and 48 s.
  const expected = Math.hypot(64 * 0.1, 48 * 0.05) / 112;
  expect(deviations[300]).toBeGreaterThan(expected * 0.8);
  expect(deviations[300]).toBeLessThan(expected * 1.2);
});

test("long tails leave ranks idle while the one with the longest item goes on, and keep the median of the step", () => {
  const only = chainProfile([{ name: "rollout", perItem: 1 }], 64);
  const temporal = placed(only, "temporal", 8);
  const even = simulate({ profile: only, plan: temporal, steps: 1, seed: 1 });
  const tailed = simulate({
    profile: only,
    plan: temporal,
    steps: 100,
    seed: 1,
    traits: { rollout: { lengthSpread: 1 } },
  });
  expect(even.components["rollout"]?.shares.compute).toBeCloseTo(1, 6);
  expect(tailed.components["rollout"]?.shares.compute).toBeLessThan(0.6);
  expect(tailed.stepSeconds.p50).toBeGreaterThan(even.stepSeconds.mean * 0.8);
  expect(tailed.stepSeconds.p50).toBeLessThan(even.stepSeconds.mean * 1.25);
  expect(tailed.stepSeconds.p95).toBeGreaterThan(tailed.stepSeconds.p50 * 1.5);
});

test("ranks that were measured to differ differ, around the busiest one as it was measured", () => {
  const numRanks = 8;
  for (const spread of [0, 0.1, 0.3, 0.6]) {
    const random = createRandom(`ranks that differ by ${spread}`);
    const steps = Array.from({ length: 2001 }, () =>
      Array.from({ length: numRanks }, () => Math.exp(spread * normal(random))),
    );
    const mean = (ranks: readonly number[]) => ranks.reduce((sum, each) => sum + each, 0) / ranks.length;
    const unevenness = mean(steps.map((ranks) => Math.max(...ranks) / mean(ranks)));
    const only = chainProfile([{ name: "rollout", perItem: 1 }], 64);
    const { rollout } = only.components as { rollout: ComponentProfile };
    const samples = rollout.samples.map((sample) => ({ ...sample, devices: numRanks, seconds: 8, unevenness }));
    const profile = { ...only, components: { rollout: { ...rollout, samples } } };
    const plan = placed(profile, "temporal", numRanks);
    const { stepSeconds, components } = simulate({ profile, plan, steps: 400, seed: 1 });
    expect(stepSeconds.mean).toBeGreaterThan(8 * 0.95);
    expect(stepSeconds.mean).toBeLessThan(8 * 1.05);
    expect(components["rollout"]?.shares.compute).toBeCloseTo(1 / unevenness, 1);
  }
});
