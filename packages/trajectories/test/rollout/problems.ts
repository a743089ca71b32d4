import fc from "fast-check";
import type { z } from "zod";
import type { RolloutProblem } from "../../src/index.ts";
import { interference } from "../instances.ts";

/** A problem as it is written; what is absent has its default. */
export type Rollout = z.input<typeof RolloutProblem>;

/** Few values, so that times tie; or any, so that they do not. */
const amount = (few: readonly number[], most: number) =>
  fc.oneof(fc.constantFrom(...few), fc.double({ min: few[0] === 0 ? 0 : 0.01, max: most, noNaN: true }));

const step = fc.record({
  tokens: amount([1, 2, 8], 30),
  tool: amount([0, 0, 1], 5),
  observe: amount([0, 3], 9),
  pred: amount([0, 2, 8], 60),
  predTool: amount([0, 0, 1], 9),
});

const trajectory = fc.record({
  prompt: fc.nat(5),
  context: amount([0, 4], 20),
  steps: fc.array(step, { minLength: 1, maxLength: 4 }),
});

const placement: fc.Arbitrary<Rollout["placement"]> = fc.oneof(
  fc.record({ type: fc.constant("cache" as const), by: fc.constantFrom("index" as const, "prompt" as const) }),
  fc.constant({ type: "least-load" as const }),
  fc.record({
    type: fc.constant("hybrid" as const),
    threshold: fc.constantFrom(0, 1, 1.5, 3),
    by: fc.constantFrom("index" as const, "prompt" as const),
  }),
  fc.record({
    type: fc.constant("dp" as const),
    migrate: fc.boolean(),
    rankBy: fc.constantFrom("remaining" as const, "total" as const),
    robust: fc.constantFrom(0, 0.4, 2),
  }),
);

/** Every kind of factor that is finite at any size; one falls, which sends `place` to its dynamic program. */
const factor: fc.Arbitrary<Rollout["F"]> = fc.oneof(
  interference.filter((F) => F.max === undefined && (F.type !== "table" || F.extend !== "none")),
  fc.record({
    type: fc.constant("table" as const),
    values: fc.array(fc.constantFrom(0.5, 1, 2), { minLength: 1, maxLength: 4 }),
    extend: fc.constant("clamp" as const),
  }),
);

/** Of trajectories, at most so many; the more may be drawn, the more are. */
export const rolloutOf = (most: number): fc.Arbitrary<Rollout> =>
  fc.record({
    trajectories: fc.array(trajectory, { maxLength: most, size: "max" }),
    workers: fc.array(fc.record({ tokenTime: amount([0.5, 1], 3) }), { minLength: 1, maxLength: 4 }),
    F: factor,
    maxBatch: fc.constantFrom(1, 2, 3, 20),
    scheduler: fc.constantFrom(...(["rr", "fcfs", "sjf", "las", "pps", "time"] as const)),
    priority: fc.constantFrom("remaining" as const, "total" as const),
    placement,
    prefillRatio: fc.constantFrom(0, 0.1),
    migration: fc.record({ base: fc.constantFrom(0, 0.5), perToken: fc.constantFrom(0, 0.1) }),
  });
