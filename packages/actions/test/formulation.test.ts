import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { DurationHistory } from "../src/formulation/duration-history.ts";
import { ActionHistory, ActionSpec, efficiencyAt, formulate, secondsAt } from "../src/index.ts";

const empty = new ActionHistory();

describe("formulation", () => {
  test("Eq. 1: seconds are T / (E(m) m), whatever form the elasticity has", () => {
    expect(secondsAt({ type: "amdahl", serialShare: 0.1 }, 4, 100)).toBeCloseTo(100 * (0.1 + 0.9 / 4), 9);
    expect(secondsAt({ type: "power", exponent: 0.5 }, 4, 100)).toBeCloseTo(50, 9);
    const table = {
      type: "table" as const,
      points: [
        { units: 1, efficiency: 1 },
        { units: 5, efficiency: 0.6 },
      ],
    };
    expect([1, 3, 5, 9].map((m) => efficiencyAt(table, m))).toEqual([1, 0.8, 0.6, 0.6]);
    expect(secondsAt(table, 5, 30)).toBeCloseTo(10, 9);
    expect(secondsAt({ type: "function", efficiency: (m) => 1 / m }, 8, 30)).toBeCloseTo(30, 9);
    expect(secondsAt({ type: "seconds", points: [{ units: 2, seconds: 7 }] }, 2, undefined)).toBe(7);
  });

  test("a range, a set and a fixed amount become the least demand and the durations over the key", () => {
    const spec = ActionSpec.parse({
      kind: "tests",
      cost: { cpu: { min: 1, max: 4 }, memoryGiB: 2 },
      key: "cpu",
      elasticity: { type: "amdahl", serialShare: 0 },
      duration: 12,
    });
    const queued = formulate("a", spec, empty);
    expect(queued.demands).toEqual([
      ["cpu", 1],
      ["memoryGiB", 2],
    ]);
    expect(queued.elastic?.choices).toMatchObject({ units: [1, 2, 3, 4], seconds: [12, 6, 4, 3] });
    expect(formulate("a", spec, empty, () => 2).elastic?.choices.units).toEqual([1, 2]);
  });

  test("without elasticity or without a duration an action does not scale", () => {
    const base = { kind: "tests", cost: { cpu: [1, 2, 4] }, key: "cpu" };
    expect(formulate("a", ActionSpec.parse({ ...base, duration: 3 }), empty).elastic).toBeUndefined();
    const spec = ActionSpec.parse({ ...base, elasticity: { type: "amdahl", serialShare: 0 } });
    expect(formulate("a", spec, empty)).toMatchObject({
      elastic: undefined,
      seconds: undefined,
      demands: [["cpu", 1]],
    });
    const history = new ActionHistory();
    history.observe(spec, 2, 5);
    expect(formulate("a", spec, history).elastic?.choices.seconds).toEqual([10, 5, 2.5]);
  });

  test("history brings durations back to one unit and follows a change", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.1, max: 900, noNaN: true }),
        fc.array(fc.integer({ min: 1, max: 32 }), { minLength: 1, maxLength: 20 }),
        (one, runs) => {
          const elasticity = { type: "amdahl" as const, serialShare: 0.2 };
          const history = new DurationHistory();
          for (const units of runs) history.observe("k", secondsAt(elasticity, units, one)!, units, elasticity);
          expect(history.estimate("k")).toBeCloseTo(one, 6);
        },
      ),
    );
    const history = new DurationHistory(8);
    for (let i = 0; i < 100; i++) history.observe("k", 1);
    for (let i = 0; i < 60; i++) history.observe("k", 9);
    expect(history.estimate("k")).toBeGreaterThan(8.9);
  });

  test.each([
    [{ kind: "k", cost: { cpu: [1, 2] } }, "cost.cpu"],
    [{ kind: "k", cost: { cpu: 1 }, key: "gpu" }, "key"],
    [{ kind: "k", cost: { cpu: 0.5 }, key: "cpu" }, "cost.cpu"],
    [{ kind: "k", cost: { cpu: 1 }, elasticity: { type: "amdahl", serialShare: 0 } }, "elasticity"],
    [
      {
        kind: "k",
        cost: { cpu: [1, 2] },
        key: "cpu",
        elasticity: { type: "seconds", points: [{ units: 1, seconds: 2 }] },
      },
      "elasticity.points",
    ],
    [{ kind: "k", cost: { cpu: 1 }, retires: {} }, ""],
  ])("refuses %j at %s", (spec, path) => {
    const parsed = ActionSpec.safeParse(spec);
    expect(parsed.success).toBe(false);
    expect(parsed.error!.issues.map((i) => i.path.join("."))).toContain(path);
  });
});
