import { type Profile, TreadleError } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { type EvalAnswer, type PlanAnswer, planFromProfile, problems, type Schedule, solvePlan } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const node = (id: string, perItem: number, more: object = {}) => ({ id, time: { type: "formula", perItem }, ...more });
const two = { devices: 4, batch: 8, nodes: [node("a", 1), node("b", 1)], edges: [["a", "b"]] };
const at = (id: string, devices: number, items: number): Schedule => ({ op: "node", node: id, devices, items });

function evaluate(input: object, schedule: object): EvalAnswer {
  return problems.plan.solve({ op: "eval", input, schedule }) as EvalAnswer;
}

describe("times by hand", () => {
  const turns = { op: "temporal", devices: 4, items: 8, first: at("a", 4, 8), second: at("b", 4, 8) };

  test("taking turns adds up, with one swap", () => {
    expect(evaluate(two, turns)).toMatchObject({ feasible: true, time: 4, illegal: null, mode: "temporal" });
    const nodes = [node("a", 1, { offload: 2, onload: 9 }), node("b", 1, { offload: 9, onload: 3 })];
    expect(evaluate({ ...two, nodes }, turns).time).toBe(4 + 2 + 3);
  });

  test("a pipeline costs its filling and its bottleneck", () => {
    const pipeline = { op: "pipeline", devices: 4, items: 8, chunk: 2, first: at("a", 1, 2), second: at("b", 3, 2) };
    expect(evaluate(two, pipeline).time).toBeCloseTo(2 + 2 / 3 + 3 * 2, 12);
  });

  test("a stream pays its base once, however small its chunks", () => {
    const streaming = { id: "a", time: { type: "formula", base: 8, perItem: 1 }, stream: true };
    const pipeline = { op: "pipeline", devices: 2, items: 8, chunk: 1, first: at("a", 1, 1), second: at("b", 1, 1) };
    const input = { devices: 2, batch: 8, nodes: [streaming, node("b", 1)] };
    expect(evaluate(input, pipeline).time).toBe(2 + 1 + 7 * 2);
    expect(evaluate({ ...input, nodes: [{ ...streaming, stream: false }, node("b", 1)] }, pipeline).time).toBe(
      9 + 1 + 7 * 9,
    );
  });

  test("a table is linear in items, logarithmic in devices, clamped and extrapolated as documented", () => {
    const time = {
      type: "table",
      devices: [2, 8],
      items: [10, 20],
      seconds: [
        [8, 16],
        [4, 6],
      ],
    };
    const seconds = (devices: number, batch: number): number | null =>
      solvePlan({ devices, batch, nodes: [{ id: "a", time }] }).time;
    expect(seconds(1, 10)).toBeNull();
    expect(seconds(2, 15)).toBe(12);
    expect(seconds(2, 5)).toBe(8);
    expect(seconds(2, 30)).toBe(24);
    expect(seconds(4, 10)).toBe(6);
    expect(seconds(100, 10)).toBe(4);
  });

  test("devices are used in units, and idle ones are allowed", () => {
    const time = { type: "formula", perItem: 12, alpha: -1 };
    expect(solvePlan({ devices: 7, batch: 1, nodes: [{ ...node("a", 12), unit: 3 }] }).time).toBe(2);
    expect(solvePlan({ devices: 7, batch: 1, nodes: [{ id: "a", time }] }).time).toBe(12);
  });

  test("a cycle becomes one component whose members' times and memories add up", () => {
    const memory = { sharded: 6 };
    const nodes = [node("sim", 1, { memory }), node("gen", 2, { memory }), node("train", 4)];
    const edges = [
      ["sim", "gen"],
      ["gen", "sim"],
      ["gen", "train"],
    ];
    const answer = solvePlan({ devices: 2, batch: 4, memoryPerDevice: 6, nodes, edges });
    expect(answer.schedule).toMatchObject({ op: "temporal", first: at("sim+gen", 2, 4), second: at("train", 2, 4) });
    expect(answer.time).toBe(6 + 8);
    expect(answer.explanation.join("\n")).toContain("'sim+gen' is a cycle");
    expect(solvePlan({ devices: 2, batch: 4, memoryPerDevice: 5.9, nodes, edges }).feasible).toBe(false);
  });

  test.each([
    [{ ...turns, second: at("b", 5, 8) }, "schedule.second.devices", "'5' is above the 4"],
    [{ ...turns, second: at("b", 4, 4) }, "schedule.second.items", "'4' should be 8"],
    [{ ...turns, first: at("b", 4, 8), second: at("a", 4, 8) }, "schedule", "needs what its second part produces"],
    [{ ...turns, second: at("a", 4, 8) }, "schedule", "runs 'a' twice"],
    [{ ...turns, second: at("c", 4, 8) }, "schedule.second.node", "'c' is not a component; known are 'a', 'b'"],
    [at("a", 4, 8), "schedule", "does not run 'b'"],
    [
      { ...turns, op: "parallel", first: at("a", 2, 8), second: at("b", 2, 8) },
      "schedule",
      "needs parallelIndependent",
    ],
    [{ ...turns, op: "pipeline", chunk: 3 }, "schedule.chunk", "'3' is not a divisor of its items, 8"],
    [{ ...turns, op: "pipeline", chunk: 8 }, "schedule", "its parts use 8 devices of 4"],
  ])("%j is illegal at %s: %s", (schedule, path, problem) => {
    const answer = evaluate(two, schedule);
    expect(answer).toMatchObject({ feasible: false, time: null, illegal: { path } });
    expect(answer.illegal!.problem).toContain(problem);
  });
});

test("alternatives are the best of each mode, fastest first, and the words name what limits the plan", () => {
  const nodes = [node("rollout", 8, { stream: true, offload: 1 }), node("train", 8, { onload: 0.5 })];
  const answer = solvePlan({ devices: 8, batch: 64, nodes, edges: [["rollout", "train"]] });
  expect(answer.alternatives.map((a) => a.mode)).toEqual(["temporal", "spatial"]);
  expect(answer.alternatives[0]!.time).toBe(answer.time);
  expect(answer.explanation.join("\n")).toMatch(/is the longest turn: \d+ % of the time; swapping costs 1.5 s/);
  expect(answer.explanation.join("\n")).toMatch(/the best spatial schedule takes [\d.]+ s/);
});

test("an infeasible problem says which component does not fit, and why", () => {
  const big = node("b", 1, { memory: { fixed: 9 } });
  const memory = solvePlan({ ...two, memoryPerDevice: 8, nodes: [node("a", 1), big] });
  expect(memory).toMatchObject({ feasible: false, time: null, schedule: null, mode: null, alternatives: [] });
  expect(memory.explanation.join()).toContain("'b' needs more than the 8 of memory");
  const devices = solvePlan({ ...two, nodes: [node("a", 1), node("b", 1, { minDevices: 5 })] });
  expect(devices.explanation.join()).toContain("'b' does not run on up to 4 devices");
});

describe("deadlines", () => {
  const nodes = Array.from({ length: 7 }, (_, i) =>
    node(`n${i}`, 1 + i, { stream: i % 2 === 0, offload: i, onload: 1 }),
  );
  const edges = nodes.slice(1).map((n, i) => [`n${i}`, n.id]);
  const input = { devices: 200, batch: 64, nodes, edges };

  /** Every reading of this clock is one millisecond later. */
  const stopAfter = (readings: number): PlanAnswer => {
    let now = 0;
    return solvePlan(input, { nowMs: () => now++, deadlineMs: readings });
  };

  test("an early stop gives a legal schedule and a bound that is true, whenever it comes", () => {
    const best = solvePlan(input).time!;
    for (const readings of [0, 5, 30, 200, 800, 1500]) {
      const answer = stopAfter(readings);
      const { bound, gap, exact } = answer.stats;
      expect(evaluate(input, answer.schedule!)).toMatchObject({ illegal: null });
      expect(evaluate(input, answer.schedule!).time!).toBeCloseTo(answer.time!, 9);
      expect(answer.time!).toBeGreaterThanOrEqual(best * (1 - 1e-9));
      expect(bound!).toBeLessThanOrEqual(best * (1 + 1e-9));
      expect(gap).toBeCloseTo((answer.time! - bound!) / answer.time!, 9);
      if (!exact) expect(answer.explanation.join()).toContain("not proven to be the best");
    }
    expect(stopAfter(0).stats.exact).toBe(false);
    expect(stopAfter(1e9).stats).toMatchObject({ exact: true, gap: 0 });
  });

  test("also hold for schedules that use all devices, which are found or said to be unknown, never refused", () => {
    for (const readings of [0, 5, 30, 200, 800]) {
      let now = 0;
      const limited = nodes.map((each, i) => ({ ...each, maxDevices: 20 + i }));
      const full = { ...input, nodes: limited, useAll: true };
      const answer = solvePlan(full, { nowMs: () => now++, deadlineMs: readings });
      if (answer.schedule) {
        expect(evaluate(full, answer.schedule)).toMatchObject({ illegal: null });
        expect(answer.stats.bound!).toBeGreaterThan(0);
      } else
        expect(answer.explanation.join()).toMatch(
          /the time for the search ran out before .*; give the search a longer deadline/,
        );
    }
  });

  test("need a clock", () => {
    expect(() => solvePlan(input, { deadlineMs: 5 })).toThrow("deadlineMs: '5' needs a clock");
  });
});

test.each([
  [{ devices: 0 }, "devices: '0' is not allowed"],
  // Sums of these are beyond all numbers, which is no lack of devices or memory.
  [
    { nodes: [{ id: "a", time: { type: "formula", perItem: 1, base: 1e308 } }, node("b", 1)] },
    "nodes[0].time.base: '1e+308' is not allowed: too big",
  ],
  [{ batch: "8" }, "batch: '8' is not allowed"],
  [{ granularity: 4 }, "granularity: the key is not known"],
  [{ granularities: "some" }, "granularities: 'some' is not allowed"],
  [{ pipeline: "ring" }, "pipeline: 'ring' is not allowed"],
  [{ splits: { multipleOf: 0 } }, "splits.multipleOf: '0' is not allowed"],
  [{ edges: [["a", "x"]] }, "edges[0][1]: 'x' is not allowed: expected one of the nodes 'a', 'b'"],
  [
    { nodes: [node("a", 1), node("a", 1)], edges: [] },
    "nodes[1].id: 'a' is not allowed: expected an id that no other node has",
  ],
  [{ pools: { p: { devices: 2 ** 30 } } }, "pools.p.devices: '1073741824' is not allowed"],
  [
    { nodes: [node("a+b", 1), node("a", 1), node("b", 1)], edges: [] },
    "nodes[0].id: 'a+b' is not allowed: expected an id without '+'",
  ],
  [
    { nodes: [node("a", 1, { minRanks: 3, maxRanks: 2 })], edges: [] },
    "nodes[0].maxRanks: '2' is not allowed: expected at least minRanks 3",
  ],
  [
    { nodes: [node("a", 1, { minDevices: 4, maxRanks: 1, unit: 2 })], edges: [] },
    "the 2 ranks of 2 that minDevices 4 asks for",
  ],
  [
    { nodes: [node("a", Number.POSITIVE_INFINITY)], edges: [] },
    "nodes[0].time.perItem: 'Infinity' is not allowed: invalid input: expected number",
  ],
  [{ batch: Number.NaN }, "batch: 'NaN' is not allowed"],
  [{ nodes: [node("a", -1)], edges: [] }, "nodes[0].time.perItem: '-1' is not allowed"],
  [{ nodes: [{ id: "a" }], edges: [] }, "nodes[0].time: is missing"],
  [
    { nodes: [{ id: "a", time: { type: "table", devices: [1], items: [1, 2], seconds: [[1]] } }], edges: [] },
    "nodes[0].time.seconds[0]: '[1]' is not allowed: expected one value for each of the 2 item counts, found 1",
  ],
])("refuses %j: %s", (wrong, message) => {
  try {
    problems.plan.solve({ ...two, ...wrong });
    expect.unreachable();
  } catch (error) {
    if (!(error instanceof TreadleError)) throw error;
    expect(error.code).toBe("problem.invalid");
    expect(error.message).toContain(message);
  }
});

test("refuses an unknown method and names the known ones", () => {
  expect(() => solvePlan(two, { method: "magic" })).toThrow(
    "method: 'magic' is not known; allowed are 'fast', 'naive'",
  );
});

test("seconds that fall with items fall to 0 at most, and shares of no time are 0", () => {
  const time = { type: "table", devices: [1], items: [1, 2], seconds: [[10, 2]] };
  expect(solvePlan({ devices: 1, batch: 12, granularities: [12], nodes: [{ id: "a", time }] }).time).toBe(0);
  const free = solvePlan({ ...two, nodes: [node("a", 0), node("b", 0)] });
  expect(free.explanation.join()).not.toContain("NaN");
});

test("a cycle whose members are to be kept apart says so, and not that memory lacks", () => {
  const edges = [
    ["a", "b"],
    ["b", "a"],
  ];
  const { explanation } = solvePlan({ ...two, edges, apart: [["a", "b"]] });
  expect(explanation.join()).toMatch(/'a\+b' is a cycle that runs as one, but members of it are to be kept apart/);
  expect(explanation.join()).not.toContain("memory");
});

test("components that answer each other and do not fit beside each other give way turn by turn, and so are planned", () => {
  const measured = chainProfile({ simulator: { perItem: 1 }, policy: { perItem: 1, devicesPerRank: 3 } });
  const back = { from: "policy", to: "simulator", channel: "actions", itemsPerStep: 64, bytesPerStep: 0 };
  const swap = { onloadSeconds: 0.5, offloadSeconds: 0.25 };
  const profile = {
    ...measured,
    components: Object.fromEntries(
      Object.entries(measured.components).map(([name, own]) => [name, { ...own, ...swap }]),
    ),
    graph: { ...measured.graph, edges: [...measured.graph.edges, back], cycles: [["simulator", "policy"]] },
  };
  const planned = (count: number, policyBytes: number) =>
    planFromProfile(profile, {
      ...{ batch: 64, maxStaleness: 0 },
      components: [
        { name: "simulator", devicesPerRank: 1, memoryBytesPerDevice: 37.7e9 },
        { name: "policy", devicesPerRank: 3, memoryBytesPerDevice: policyBytes },
      ],
      devices: cluster(count).map((device) => ({ ...device, memoryBytes: 80 * 2 ** 30 })),
    });
  const both = planned(3, 53.2e9);
  expect(both.alternatives.map(({ mode, proven }) => [mode, proven])).toContainEqual(["temporal", false]);
  expect(both.missing.map(({ mode }) => mode)).not.toContain("temporal");
  expect(both.explanation.join()).toMatch(
    /'simulator' and 'policy' answer each other and do not fit in memory together/,
  );
  // There is room for one member's own devices, and for both on all of them.
  expect(planned(4, 53.2e9).alternatives.map(({ mode }) => mode)).toContain("spatial");
  const roomy = planned(3, 20e9);
  expect(roomy.explanation.join()).not.toContain("answer each other");
  expect(both.predicted.stepSeconds).toBeGreaterThan(roomy.predicted.stepSeconds);
});

const GiB = 2 ** 30;

/** Two components that answer each other, of so many GiB a device each; `leaves`: of the first, what a release gives back. */
function answering({ memory, leaves }: { memory: [number, number]; leaves?: number }): Profile {
  const measured = chainProfile({ simulator: { perItem: 1 }, policy: { perItem: 1 } });
  const back = { from: "policy", to: "simulator", channel: "actions", itemsPerStep: 64, bytesPerStep: 0 };
  const tags = [{ tag: "cache" as const, bytes: (leaves ?? 0) * GiB, releaseSeconds: 0.1, restoreSeconds: 0.1 }];
  const memoryOf = (gib: number, isFirst: boolean) => [
    { devices: 1, bytesPerDevice: gib * GiB, ...(isFirst && leaves !== undefined ? { tags } : {}) },
  ];
  const [simulator, policy] = memory;
  const own = { onloadSeconds: 10, offloadSeconds: 10 };
  return {
    ...measured,
    components: {
      simulator: { ...measured.components["simulator"]!, ...own, memory: memoryOf(simulator, true) },
      policy: { ...measured.components["policy"]!, ...own, memory: memoryOf(policy, false) },
    },
    graph: { ...measured.graph, edges: [...measured.graph.edges, back], cycles: [["simulator", "policy"]] },
  };
}

test("what never leaves a device stays beside whoever takes its turn", () => {
  const components = ["simulator", "policy"].map((name) => ({ name, devicesPerRank: 1 }));
  const planned = (count: number, profile: Profile) =>
    planFromProfile(profile, {
      ...{ batch: 64, maxStaleness: 0, components },
      devices: cluster(count).map((device) => ({ ...device, memoryBytes: 80 * GiB })),
    });
  // 54 of 60 GiB stay, and 53 more do not fit beside them.
  expect(() => planned(1, answering({ memory: [60, 53], leaves: 6 }))).toThrow(
    /no plan is possible.*'simulator' and 'policy' answer each other.*33 GiB too little/s,
  );
  expect(planned(2, answering({ memory: [60, 53], leaves: 6 })).alternatives.map(({ mode }) => mode)).toEqual([
    "spatial",
  ]);
  const turns = planned(1, answering({ memory: [60, 53], leaves: 40 }));
  expect(turns.predicted.stepSeconds).toBeCloseTo(
    planned(1, answering({ memory: [20, 20] })).predicted.stepSeconds + 40,
  );
});
