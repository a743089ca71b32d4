import fc from "fast-check";
import { expect, test } from "vitest";
import { replaySwaps } from "../src/auto/turn-replay.ts";

const turn = (devices: readonly string[][], bytes: number, onloadSeconds: number, offloadSeconds: number) => ({
  ranks: devices.map((own, rank) => ({ rank, node: "n", devices: own })),
  bytes,
  onloadSeconds,
  offloadSeconds,
});

test("a drawn workload, in which one component stays beside another but neither stays for the whole step", () => {
  const [two, three] = [[["0", "1"]], [["0", "1", "2"]]];
  const turns = [
    turn(three, 73, 0.077, 0.077),
    turn(two, 37, 0.031, 0.136),
    turn(two, 18, 0.039, 0.032),
    turn(three, 79, 0.073, 0.085),
    turn(two, 63, 0.022, 0.035),
  ];
  const memory = new Map(["0", "1", "2"].map((device) => [device, 86]));
  // Everything is loaded once a step, and the two that fit together are freed together.
  const expected = 0.077 + 0.031 + 0.039 + 0.073 + 0.022 + (0.077 + 0.136 + 0.085 + 0.035);
  expect(replaySwaps(turns, memory)).toBeCloseTo(expected, 6);
});

test("nothing is swapped where all fit, everything where none fits beside another, and never more than that", () => {
  const turns = fc.array(
    fc.record({
      bytes: fc.integer({ min: 1, max: 10 }),
      onload: fc.integer({ min: 1, max: 9 }),
      offload: fc.integer({ min: 1, max: 9 }),
    }),
    { minLength: 2, maxLength: 6 },
  );
  fc.assert(
    fc.property(turns, fc.integer({ min: 10, max: 70 }), (all, capacity) => {
      const given = all.map(({ bytes, onload, offload }) => turn([["0"]], bytes, onload, offload));
      const seconds = replaySwaps(given, new Map([["0", capacity]]));
      const everything = all.reduce((sum, { onload, offload }) => sum + onload + offload, 0);
      expect(seconds).toBeLessThanOrEqual(everything);
      if (all.reduce((sum, { bytes }) => sum + bytes, 0) <= capacity) expect(seconds).toBe(0);
      const [least, next] = all.map(({ bytes }) => bytes).sort((a, b) => a - b);
      if (least! + next! > capacity) expect(seconds).toBe(everything);
    }),
  );
});
