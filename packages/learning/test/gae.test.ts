import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { generalisedAdvantages, type Rollouts } from "../src/index.ts";

const one = (given: Partial<Rollouts>): Rollouts => ({
  steps: 2,
  environments: 1,
  rewards: [1, 1],
  values: [0.5, 0.5],
  terminated: [0, 0],
  truncated: [0, 0],
  lastValues: [2],
  ...given,
});
const options = { discount: 0.5, lambda: 0.5 };

describe("generalised advantages by hand, with discount and lambda 0.5", () => {
  test("bootstrap from the last value while the episode goes on", () => {
    // δ1 = 1 + 0.5·2 − 0.5 = 1.5; δ0 = 1 + 0.5·0.5 − 0.5 = 0.75; A0 = 0.75 + 0.25·1.5 = 1.125; returns add 0.5
    const { advantages, returns } = generalisedAdvantages(one({}), options);
    expect([...advantages]).toEqual([1.125, 1.5]);
    expect([...returns]).toEqual([1.625, 2]);
  });

  test("stop at a terminated step", () => {
    // δ1 = 1 − 0.5 = 0.5; A0 = 0.75 + 0.25·0.5 = 0.875
    const { advantages } = generalisedAdvantages(one({ terminated: [0, 1] }), options);
    expect([...advantages]).toEqual([0.875, 0.5]);
  });

  test("bootstrap a truncated step from its own final value and carry nothing over it", () => {
    // δ0 = 1 + 0.5·4 − 0.5 = 2.5 and the episode after it (A1 = 1.5) does not leak in
    const { advantages } = generalisedAdvantages(one({ truncated: [1, 0], finalValues: [4, 0] }), options);
    expect([...advantages]).toEqual([2.5, 1.5]);
  });

  test("treat a step that is both as terminated", () => {
    // δ0 = 1 − 0.5 = 0.5
    const { advantages } = generalisedAdvantages(one({ terminated: [1, 0], truncated: [1, 0] }), options);
    expect([...advantages]).toEqual([0.5, 1.5]);
  });

  test("keep environments apart", () => {
    // environment 0 is the first case, environment 1 the second
    const { advantages } = generalisedAdvantages(
      one({
        environments: 2,
        rewards: [1, 1, 1, 1],
        values: [0.5, 0.5, 0.5, 0.5],
        terminated: [0, 0, 0, 1],
        truncated: [0, 0, 0, 0],
        lastValues: [2, 100],
      }),
      options,
    );
    expect([...advantages]).toEqual([1.125, 0.875, 1.5, 0.5]);
  });
});

const number = fc.double({ min: -5, max: 5, noNaN: true });
const rollouts: fc.Arbitrary<Rollouts & { finalValues: number[] }> = fc
  .tuple(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 1, max: 3 }))
  .chain(([steps, environments]) => {
    const entries = <T>(arbitrary: fc.Arbitrary<T>, length = steps * environments) =>
      fc.array(arbitrary, { minLength: length, maxLength: length });
    const flags = entries(fc.constantFrom(0, 0, 0, 1));
    return fc.record({
      steps: fc.constant(steps),
      environments: fc.constant(environments),
      rewards: entries(number),
      values: entries(number),
      terminated: flags,
      truncated: flags,
      lastValues: entries(number, environments),
      finalValues: entries(number),
    });
  });

describe("generalised advantages", () => {
  test("with lambda 1 are the discounted return minus the value", () => {
    fc.assert(
      fc.property(rollouts, fc.double({ min: 0, max: 1, noNaN: true }), (given, discount) => {
        const { advantages, returns } = generalisedAdvantages(given, { discount, lambda: 1 });
        const returnFrom = (step: number, environment: number): number => {
          const at = step * given.environments + environment;
          const reward = given.rewards[at]!;
          if (given.terminated[at]) return reward;
          if (given.truncated[at]) return reward + discount * given.finalValues[at]!;
          if (step === given.steps - 1) return reward + discount * given.lastValues[environment]!;
          return reward + discount * returnFrom(step + 1, environment);
        };
        advantages.forEach((advantage, at) => {
          const expected = returnFrom(Math.floor(at / given.environments), at % given.environments);
          expect(advantage).toBeCloseTo(expected - given.values[at]!, 9);
          expect(returns[at]).toBeCloseTo(expected, 9);
        });
      }),
    );
  });

  test("with lambda 0 are the one-step errors", () => {
    fc.assert(
      fc.property(rollouts, (given) => {
        const { advantages } = generalisedAdvantages(given, { discount: 0.9, lambda: 0 });
        advantages.forEach((advantage, at) => {
          const following = given.values[at + given.environments] ?? given.lastValues[at % given.environments]!;
          const next = given.terminated[at] ? 0 : given.truncated[at] ? given.finalValues[at]! : following;
          expect(advantage).toBeCloseTo(given.rewards[at]! + 0.9 * next - given.values[at]!, 9);
        });
      }),
    );
  });

  test("refuse a truncation without its final value, and wrong lengths", () => {
    expect(() => generalisedAdvantages(one({ truncated: [1, 0] }), options)).toThrow(/step '0' .* no finalValues/);
    expect(() => generalisedAdvantages(one({ rewards: [1] }), options)).toThrow(/rewards has '1' entries.*'2'/);
  });
});
