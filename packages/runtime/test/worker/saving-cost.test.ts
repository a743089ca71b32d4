import { expect, test } from "vitest";
import { SavingCost } from "../../src/worker/saving-cost.ts";

const saidOf = (waits: readonly number[], computedMs: number): string[][] => {
  const said: string[] = [];
  const cost = new SavingCost((advice) => said.push(advice));
  return waits.map((savedMs) => {
    cost.add(computedMs, savedMs);
    return said.splice(0);
  });
};

test("a worker whose calls wait long for their state says so once, with what helps", () => {
  const [first, second, third, ...later] = saidOf(Array(6).fill(6000), 1000);
  expect([first, second, ...later]).toEqual(Array(5).fill([]));
  expect(third).toEqual([
    expect.stringMatching(/^waits 6\.0 s after each call .*, 86 % of the time; .*checkpoints\.stateEverySteps above 1/),
  ]);
});

test.each([
  ["short waits are not worth a word", 10, Array(20).fill(900)],
  ["nor are those of calls that compute much longer", 30_000, Array(20).fill(2000)],
  ["nor is one slow write among quick ones", 500, [0, 0, 2500, 0]],
])("%s", (_, computedMs, waits) => {
  expect(saidOf(waits, computedMs).flat()).toEqual([]);
});

test("what is awaited counts, and its result is passed on", async () => {
  const said: string[] = [];
  const cost = new SavingCost((advice) => said.push(advice));
  for (let call = 0; call < 3; call++) {
    expect(await cost.awaited(Promise.resolve(call), performance.now() - 3000, 1000)).toBe(call);
  }
  expect(said).toHaveLength(1);
});
