import { ActorCriticConfig } from "@treadle/engines";
import type { Sink, Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { rowsOf } from "../src/actor/control-actor-worker.ts";
import { ControlRolloutWorker } from "../src/rollout/control-rollout-worker.ts";
import { builtInEnvironments } from "../src/simulator/built-in.ts";
import type { Drawing } from "../src/simulator/environment.ts";
import { requireActions } from "../src/simulator/exchange.ts";
import type { Action, Observation } from "../src/simulator/items.ts";
import { contextOf } from "./support/context.ts";

const create = (maxSteps: number, seed: number, numEnvironments = 3, firstEnvironment = 0) =>
  builtInEnvironments.create({ name: "inverted-pendulum", maxSteps })({ numEnvironments, firstEnvironment, seed });

const play = async (seed: number, force: number, maxSteps: number, steps: number) => {
  using environment = await create(maxSteps, seed);
  environment.reset();
  return Array.from({ length: steps }, () => environment.step(new Float32Array(3).fill(force)));
};

test("equal seeds give equal physics, other seeds other physics, through resets", async () => {
  const [first, again, other] = [await play(1, 0.3, 50, 60), await play(1, 0.3, 50, 60), await play(2, 0.3, 50, 60)];
  expect(again).toEqual(first);
  expect(other).not.toEqual(first);
});

test("an environment's episodes are the same in whatever rank's share it is", async () => {
  using all = await create(50, 1, 5);
  using last = await create(50, 1, 2, 3);
  expect([...last.reset()]).toEqual([...all.reset()].slice(3 * 4));
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
    environment: 0,
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

test("a hanging pole earns next to nothing while the motor rests, and only time ends the episode", async () => {
  const swingUp = builtInEnvironments.create({ name: "cart-pole-swing-up", maxSteps: 20 });
  using environment = await swingUp({ numEnvironments: 2, firstEnvironment: 0, seed: 1 });
  const [, cosine] = environment.reset();
  expect(cosine).toBeCloseTo(-1, 3);
  const transitions = Array.from({ length: 20 }, () => environment.step(new Float32Array(2)));
  expect(transitions.every(({ terminated }) => !terminated.includes(1))).toBe(true);
  expect(transitions.map(({ truncated }) => truncated[0])).toEqual([...Array(19).fill(0), 1]);
  expect(transitions.reduce((sum, { rewards }) => sum + (rewards[0] ?? 0), 0)).toBeLessThan(0.1);
});

test.each([
  [{ name: "inverted-pendulm" }, "did you mean 'inverted-pendulum'"],
  [{ name: "cart-pole-swing-up", steps: 3 }, "environment.steps is not a known key"],
  [{ name: "inverted-pendulum", maxSteps: 0 }, "environment.maxSteps is '0'"],
])("the environment %j is refused", (config, message) => {
  expect(() => builtInEnvironments.create(config)).toThrow(message);
});

test("a frame shows the bodies where they are: track, cart, and a pole that leans to the right of a cart pushed left", async () => {
  using environment = await create(1000, 1, 1);
  environment.reset();
  for (let step = 0; step < 3; step++) environment.step(Float32Array.of(-1));
  const drawing = environment.drawing as Drawing;
  expect(drawing.shapes.map(({ kind }) => kind)).toEqual(["box", "box", "capsule"]);
  const [track, cart, pole] = drawing.frameOf(0) as [number[], number[], number[]];
  expect(track.slice(0, 4)).toEqual([0, 0, 1.15, 0]);
  expect(cart[0]).toBeLessThan(0);
  expect(cart.slice(2)).toEqual([0.15, 0, 0, 0, 0, 0.08]);
  const [x = 0, , leansBy = 0, height = 0] = pole;
  expect(x - (cart[0] as number)).toBeGreaterThan(0);
  // An axis has no direction.
  expect(Math.hypot(leansBy, height)).toBeCloseTo(0.3, 2);
  expect(x - (cart[0] as number)).toBeCloseTo(leansBy * Math.sign(height), 2);
});

const seen: Observation = {
  ...{ simulator: 2, stage: 0, stages: 1, attempt: "a", time: 5, policy: 0, firstEnvironment: 6, horizon: 8 },
  observations: Float32Array.of(0, 1, 2, 3),
  finalObservations: new Float32Array(4).fill(Number.NaN),
  rewards: Float32Array.of(1, -1),
  terminated: Uint8Array.of(1, 0),
  truncated: new Uint8Array(2),
};

test.each<[string, Partial<Observation>, string]>([
  ["an observation", { observations: Float32Array.of(0, 1, 2, Number.NaN) }, "observations 'NaN' of environment '7'"],
  ["a reward", { rewards: Float32Array.of(Number.POSITIVE_INFINITY, 0) }, "a reward of 'Infinity' of environment '6'"],
  ["what was truncated", { truncated: Uint8Array.of(0, 1) }, "finalObservations 'NaN' of environment '7'"],
])(
  "%s that is no number is refused where it is shown, with simulator, environment and time",
  async (_, spoiled, text) => {
    const model = ActorCriticConfig.parse({ observationSize: 2, actionSize: 1, hidden: [4] });
    const play = async (shown: Observation) => {
      const policy = new ControlRolloutWorker(contextOf({ model }, "policy"));
      await policy.setup();
      const waiting = [shown];
      const answers: Action[] = [];
      const source = { take: async () => (waiting.length > 0 ? [waiting.pop()] : undefined) };
      const sink = { put: async (...actions: Action[]) => void answers.push(...actions) };
      await policy.play(source as unknown as Source<Observation>, sink as unknown as Sink<Action>);
      return answers;
    };
    expect(await play(seen)).toHaveLength(1);
    await expect(play({ ...seen, ...spoiled })).rejects.toMatchObject({
      code: "learning.invalid-batch",
      message: expect.stringContaining(`simulator '2' shows ${text} at time '5'`),
    });
  },
);

test("an action that is no number is refused, with the policy's version", () => {
  const action = { simulator: 2, stage: 0, attempt: "a", time: 5, kind: "act", policyVersion: 9 } as const;
  expect(() => requireActions({ ...action, actions: Float32Array.of(1, Number.NaN) }, 2, 1)).toThrow(
    "a policy of version '9' answers simulator '2' with 'NaN'",
  );
  requireActions({ ...action, actions: Float32Array.of(1, 2) }, 2, 1);
});
