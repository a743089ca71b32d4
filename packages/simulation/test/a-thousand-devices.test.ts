import { expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile, placed } from "./hand-made.ts";

const stages = [
  { name: "rollout", perItem: 4 },
  { name: "inference", perItem: 1 },
  { name: "actor", perItem: 3 },
];

test("512 devices, three components in turn: the same time as on paper, every rank alike", () => {
  const profile = chainProfile(stages, 2048);
  const result = simulate({ profile, plan: placed(profile, "temporal", 512), steps: 2, seed: 1 });
  for (const { seconds } of result.steps) expect(seconds).toBeCloseTo(4 * 8, 6);
  expect(result.devices).toHaveLength(512);
  for (const { compute } of result.devices) expect(compute).toBeCloseTo(1, 9);
});

test("1024 devices in a pipeline whose stages keep pace: fill, then work, then drain", () => {
  const profile = chainProfile(stages, 512 * 4);
  const explicit = { rollout: "0-511", inference: "512-639", actor: "640-1023" };
  const plan = placed(profile, "spatial", 1024, { explicit, granularity: 1 });
  const { stepSeconds, components } = simulate({ profile, plan, steps: 2, seed: 1 });
  // Four rounds of 4 s in rollout; the last items take 4 rounds of inference and 2 of the actor's 384 ranks to get through.
  expect(stepSeconds.mean).toBeGreaterThan(4 * 4 + 4);
  expect(stepSeconds.mean).toBeLessThan(4 * 4 + 4 + 2 * 3 + 1);
  expect(components["rollout"]?.busySeconds).toBeCloseTo(16, 9);
});
