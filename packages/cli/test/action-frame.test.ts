import type { ServiceStatistics } from "@treadle/actions/serve";
import { describe, expect, test } from "vitest";
import { actionLines, renderActionFrame } from "../src/view/action-frame.ts";

type Kind = ServiceStatistics["kinds"][string];

const kind = (rest: Partial<Kind>): Kind => ({
  ...{ submitted: 4, completed: 4, failed: 1, cancelled: 0, retried: 0 },
  ...{ actSeconds: 3, queueingSeconds: 1, executionSeconds: 1.9, overheadSeconds: 0.1, longestActSeconds: 6 },
  ...{ curve: null, expectedSeconds: null, predictionError: null },
  ...rest,
});
const points = [
  { units: 1, efficiency: 1 },
  { units: 8, efficiency: 0.7512 },
];
const statistics: ServiceStatistics = {
  ...{ policy: "unit-aware", isolation: "control groups", uptimeSeconds: 70, draining: false },
  ...{ waiting: 3, running: 2, trajectories: 1, tenants: { ours: { waiting: 3, running: 2 } } },
  kinds: {
    tool: kind({ actSeconds: 1 }),
    pytest: kind({ curve: { source: "measured", efficiency: points }, expectedSeconds: 12, predictionError: 0.084 }),
    "new\u001b[31m": kind({ completed: 0, curve: { source: "given", efficiency: [] } }),
  },
  resources: { cpu: { units: 8, held: 6, heldSeconds: 300, timeline: [0, 4, 8] } },
  hosts: {
    a: { cores: 8, held: 6, memoryBytes: 2 ** 34, reservedBytes: 2 ** 32, away: "" },
    b: { cores: 8, held: 0, memoryBytes: 2 ** 34, reservedBytes: 0, away: "it has said nothing for 15 s" },
  },
  started: [
    {
      ...{ action: "a1", kind: "pytest", tenant: "ours", secondsAgo: 2, waitedSeconds: 0.4, units: { cpu: 4 } },
      ...{ expectedSeconds: 1.5, why: "most marginal gain" },
    },
  ],
  restores: [
    { service: "judge", devices: 2, startSeconds: 12, wakeSeconds: 0.25 },
    { service: "coach", devices: 1, startSeconds: 3, wakeSeconds: null },
  ],
  charged: {},
};
const frameOf = (rows: number, columns = 140) =>
  renderActionFrame("127.0.0.1:50061", statistics, { rows, columns, nowMs: 0, colour: false });
const lines = { plain: actionLines(statistics).map((line) => line.trim()), live: frameOf(40) };

describe.each(["plain", "live"] as const)("what an action service does, as %s lines", (way) => {
  const shown = lines[way];
  const lineWith = (text: string) => {
    const found = shown.filter((line) => line.includes(text));
    expect(found).toHaveLength(1);
    return found[0]!;
  };

  test("has the curve of each kind that scales: whose it is, E(m), the seconds on one unit, and how far predictions are off", () => {
    expect(lineWith("E(m) measured")).toBe(
      "pytest: E(m) measured, 1.00 at 1, 0.75 at 8; 12.0 s on one unit; predictions 8 % off",
    );
    expect(lineWith("E(m) given")).toMatch(/^new.*: E\(m\) given$/);
    expect(shown.filter((line) => line.startsWith("tool") && line.includes("E(m)"))).toEqual([]);
  });

  test("has what restores of services last, a start and a wake apart, as far as they were seen", () => {
    expect(lineWith("service judge")).toBe("service judge    on 2 devices: starts in 12.0 s, wakes in 0.25 s");
    expect(lineWith("service coach")).toBe("service coach    on 1 device: starts in 3.00 s");
  });

  test("has kinds by their share of all time, hosts with why they are away, and the reason of the last decision", () => {
    const order = ["pytest", "tool", "new"].map((name) =>
      shown.findIndex((line) => new RegExp(`^${name}\\S*(: | +)\\d`).test(line)),
    );
    expect(order).toEqual(order.toSorted((a, b) => a - b));
    expect(order[0]).toBeGreaterThan(-1);
    expect(lineWith("host b")).toMatch(/ is away: it has said nothing for 15 s$/);
    expect(lineWith("most marginal gain")).toMatch(/pytest .*4 cpu after 0\.40 s, 1\.50 s expected/);
    expect(shown.join("")).not.toContain("\u001b");
  });
});

test("a small terminal has the kinds first, and no line that is too long", () => {
  for (const [rows, columns] of [
    [5, 40],
    [9, 80],
  ] as const) {
    const frame = frameOf(rows, columns);
    expect(frame.length).toBe(rows);
    for (const line of frame) expect(line.length).toBeLessThanOrEqual(columns);
    expect(frame.some((line) => line.startsWith("pytest"))).toBe(true);
  }
});
