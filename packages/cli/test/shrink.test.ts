import fc from "fast-check";
import { expect, test } from "vitest";
import { shrink } from "../src/comparison/shrink.ts";

const smaller = (numbers: readonly number[]): number[][] =>
  numbers.map((_, gone) => numbers.filter((_each, i) => i !== gone));

test("what fails is made as small as it can be, and still fails", async () => {
  await fc.assert(
    fc.asyncProperty(fc.uniqueArray(fc.nat(30), { minLength: 2, maxLength: 8 }), fc.nat(), async (numbers, pick) => {
      const culprits = [numbers[pick % numbers.length], numbers[(pick + 1) % numbers.length]] as [number, number];
      const check = async (some: readonly number[]) =>
        culprits.every((culprit) => some.includes(culprit)) ? "both" : undefined;
      const found = await shrink({ workload: numbers, failure: "both" }, { smaller, check, mostTries: 1000 });
      expect([...found.workload].sort()).toEqual([...culprits].sort());
    }),
  );
});

test("no more is tried than allowed, and what was found by then is told", async () => {
  const tried: number[][] = [];
  const check = async (some: number[]) => {
    tried.push(some);
    return "still";
  };
  const found = await shrink({ workload: [1, 2, 3, 4], failure: "first" }, { smaller, check, mostTries: 2 });
  expect(tried).toHaveLength(2);
  expect(found).toEqual({ workload: [3, 4], failure: "still", tries: 2 });
});
