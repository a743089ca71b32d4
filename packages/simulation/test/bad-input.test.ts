import { TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile, placed, virtualDevices } from "./hand-made.ts";

const profile = chainProfile(
  [
    { name: "rollout", perItem: 1 },
    { name: "actor", perItem: 1 },
  ],
  4,
);
const plan = placed(profile, "temporal", 2);
const { actor, ...withoutActor } = plan.components;

test.each([
  ["steps", { steps: 0 }, "steps '0' is not allowed: a positive integer is"],
  ["seed", { seed: 0.5 }, "seed '0.5' is not allowed: an integer is"],
  ["capacity", { capacity: -1 }, "capacity '-1' is not allowed: a positive integer is"],
  [
    "a component that was not profiled",
    { plan: { ...plan, components: { ...plan.components, critic: actor as NonNullable<typeof actor> } } },
    "the profile of 'by-hand' does not know 'critic'; it has 'rollout', 'actor'; measure again with 'treadle profile by-hand'",
  ],
  [
    "a component without a place",
    { plan: { ...plan, components: withoutActor } },
    "the plan has no place for 'actor' of the profile of 'by-hand'; plan again",
  ],
  ["traits of nobody", { traits: { critic: { gang: true } } }, "does not know 'critic'"],
])("%s: a clear error", (_, change, message) => {
  const run = () => simulate({ profile, plan, steps: 1, seed: 1, ...change });
  expect(run).toThrow(message);
  expect(run).toThrow(expect.objectContaining({ code: "problem.invalid" }));
  expect(run).toThrow(TreadleError);
});

test("devices of which nothing is known have room for everything", () => {
  const large = chainProfile([{ name: "rollout", perItem: 1, bytes: 1e15 }], 4);
  const on = placed(large, "temporal", 2);
  expect(simulate({ profile: large, plan: on, steps: 1, seed: 1 }).stepSeconds.mean).toBe(2);
  expect(() => simulate({ profile: large, plan: on, steps: 1, seed: 1, devices: virtualDevices(2, 1) })).toThrow(
    "999999999999999 too many",
  );
});
