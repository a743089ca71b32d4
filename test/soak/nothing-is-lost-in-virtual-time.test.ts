import { expect, test } from "vitest";
import { drawFaults, shrinkFaults } from "./faults.ts";
import { describeFailure, explain } from "./soak.ts";

const numSeeds = 2000;

test(`S1–S4, C1–C4, L1–L3, M2, J1: whatever fails, ${numSeeds} runs over several nodes train each prompt once and end`, () => {
  const from = 1 + Number(process.env.TREADLE_SEED);
  for (let seed = from; seed < from + numSeeds; seed++) {
    const failure = explain(seed);
    expect(failure === undefined ? "" : describeFailure(failure)).toBe("");
  }
}, 360_000);

test("a failure is told with the fewest faults under which it happens", () => {
  const seed = Array.from({ length: 100 }, (_, i) => i).find((each) => drawFaults(each).length >= 4) as number;
  const faults = drawFaults(seed);
  const culprit = faults[2]?.kind;
  const shrunk = shrinkFaults(faults, (fewer) => fewer.some(({ kind }) => kind === culprit));
  expect(shrunk.map(({ kind }) => kind)).toEqual([culprit]);
  expect(shrunk[0]?.durationMs).toBeLessThan(100);
});
