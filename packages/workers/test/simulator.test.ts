import { expect, test } from "vitest";
import { rowsOf } from "../src/actor/control-actor-worker.ts";
import { createInvertedPendulum } from "../src/simulator/inverted-pendulum.ts";

const play = async (seed: number, force: number, maxSteps: number, steps: number) => {
  using environment = await createInvertedPendulum({ numEnvironments: 3, seed, maxSteps });
  environment.reset();
  return Array.from({ length: steps }, () => environment.step(new Float32Array(3).fill(force)));
};

test("equal seeds give equal physics, other seeds other physics, through resets", async () => {
  const [first, again, other] = [await play(1, 0.3, 50, 60), await play(1, 0.3, 50, 60), await play(2, 0.3, 50, 60)];
  expect(again).toEqual(first);
  expect(other).not.toEqual(first);
});

test("a pole that falls terminates, without reward, and a new episode begins upright", async () => {
  const transitions = await play(1, 3, 1000, 40);
  const end = transitions.find(({ terminated }) => terminated[0] === 1);
  expect(end?.rewards[0]).toBe(0);
  expect(end?.truncated[0]).toBe(0);
  expect(Math.abs(end?.finalObservations[1] ?? 0)).toBeGreaterThan(0.2);
  expect(Math.abs(end?.observations[1] ?? 1)).toBeLessThanOrEqual(0.01);
});

test("the time limit truncates and does not terminate", async () => {
  const [first, second] = await play(1, 0, 2, 2);
  expect([...(first?.truncated ?? [])]).toEqual([0, 0, 0]);
  expect([...(second?.truncated ?? [])]).toEqual([1, 1, 1]);
  expect([...(second?.terminated ?? [])]).toEqual([0, 0, 0]);
});

test("what follows a truncation still counts, what follows a termination does not", () => {
  const trajectory = (end: "terminated" | "truncated") => ({
    policyVersion: 0,
    observations: new Float32Array(2),
    actions: new Float32Array(2),
    logprobs: new Float32Array(2),
    values: Float32Array.of(1, 2),
    rewards: Float32Array.of(1, 1),
    terminated: Uint8Array.of(end === "terminated" ? 1 : 0, 0),
    truncated: Uint8Array.of(end === "truncated" ? 1 : 0, 0),
    finalValues: Float32Array.of(10, 0),
    lastValue: 4,
  });
  const advantages = (end: "terminated" | "truncated") =>
    rowsOf(trajectory(end), { discount: 0.5, lambda: 0.5 }).map((row) => row.advantage);
  expect(advantages("terminated")).toEqual([0, 1]);
  expect(advantages("truncated")).toEqual([5, 1]);
});
