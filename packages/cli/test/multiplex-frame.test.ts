import type { PoolMemberView } from "@treadle/contracts";
import { initialState } from "@treadle/dashboard/view";
import { describe, expect, test } from "vitest";
import { multiplexFrame } from "../src/view/multiplex-frame.ts";

const none = {
  stage: "resident",
  ...{ maxSlowdown: undefined, holds: undefined, waits: undefined, slowdown: undefined },
  ...{ queuedMs: 0, leasedMs: 0, waitedMs: 0, lostMs: 0, leases: 0 },
} as const;
const member = (run: string, rest: Partial<PoolMemberView>): PoolMemberView => ({ ...none, run, ...rest });
const pool = [
  member("one", { holds: { devices: ["gpu:1", "gpu:0"], forMs: 65_000, drains: true }, slowdown: 1.2 }),
  member("two", { waits: { forMs: 3_000, on: { type: "devices", runs: ["one"] } }, slowdown: 2.5, maxSlowdown: 2 }),
  member("three", { stage: "queued", waits: { forMs: 9_000, on: { type: "room", runs: ["one", "two"] } } }),
  member("four", { waits: { forMs: 0, on: { type: "bounds", runs: ["two"] } } }),
  member("five", {}),
  member("both", {
    holds: { devices: ["gpu:0"], forMs: 1_000, drains: false },
    waits: { forMs: 2_000, on: { type: "turn", runs: ["two"] } },
  }),
];
const states = new Map(
  [...pool.map(({ run }) => run), "six"].map((run) => [run, { ...initialState, step: 3, numSteps: 6 }]),
);
const frameOf = (rows: number, columns = 120) =>
  multiplexFrame(
    { states, pool, recent: ["one  step 3"], startedMs: 0 },
    { rows, columns, nowMs: 70_000, colour: false },
  );

describe("the live view of runs that share devices", () => {
  test("says of each run what it has, or for whom it waits, for how long, and how much slower it is than alone", () => {
    const [head, one, two, three, four, five, both, six, , said] = frameOf(20);
    expect(head).toContain("7 runs on the same devices  1m 10s");
    expect(one).toMatch(/^one .*3\/6 .*×1\.20 .*has gpu:0-1 for 1m 05s, and has to yield/);
    expect(two).toMatch(/^two .*×2\.50 .*waits 3s for devices of 'one'/);
    expect(three).toMatch(/waits 9s for room beside 'one', 'two'/);
    expect(four).toMatch(/waits 0s for 'two', which would be slower than its maxSlowdown allows/);
    expect(five).toMatch(/needs no device/);
    expect(both).toMatch(/has gpu:0 for 1s; waits 2s for its turn after 'two'/);
    expect(six).toMatch(/starting/);
    expect(said).toContain("step 3");
  });

  test("fits into a small terminal: what was said last gives way first", () => {
    for (const rows of [3, 8, 10]) expect(frameOf(rows, 40).length).toBeLessThanOrEqual(rows);
    expect(frameOf(8).at(-1)).toMatch(/^six/);
    for (const line of frameOf(20, 40)) expect(line.length).toBeLessThanOrEqual(40);
  });
});
