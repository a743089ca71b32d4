import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compileModel, evaluateSchedule, PlanProblem, solvePlan } from "../src/index.ts";
import { planModes } from "../src/plan/problem.ts";
import { bruteForce } from "./plan-brute-force.ts";
import { extendedInputs } from "./plan-instances.ts";

const tolerance = 1e-9;
const tiny = { maxNodes: 3, maxDevices: 3, batches: [1, 2, 4] };
const near = (a: number, b: number): boolean => Math.abs(a - b) <= tolerance * Math.max(1e-12, Math.abs(b));

/** The answer is legal, costs what it says, is as good as the best there is, and says so. */
function expectTrue(input: object, method: string): void {
  const problem = PlanProblem.parse(input);
  const model = compileModel(problem);
  const best = bruteForce(model);
  const answer = solvePlan(input, { method });
  const least = best.get("any");
  if (least === undefined) {
    expect(answer.time).toBeNull();
    return;
  }
  expect(evaluateSchedule(model, answer.schedule!)).toMatchObject({ illegal: null });
  expect(near(evaluateSchedule(model, answer.schedule!).time!, answer.time!)).toBe(true);
  expect(answer.stats.bound!).toBeLessThanOrEqual(least * (1 + tolerance));
  expect(answer.stats.exact).toBe(true);
  expect(near(answer.time!, least)).toBe(true);
}

describe.each(["naive", "fast"])("%s equals all schedules written out", (method) => {
  test.each([
    [["cycles"]],
    [["residency", "swaps"]],
    [["pools"]],
    [["maxStaleness"]],
    [["maxStaleness", "swaps", "useAll"]],
    [["cycles", "residency", "swaps", "maxStaleness", "pools"]],
  ] as const)("with %j", (only) => {
    fc.assert(
      fc.property(extendedInputs(tiny, only as never), (input) => expectTrue(input, method)),
      { numRuns: 80 },
    );
  });
});

describe.each(["naive", "fast"])("%s, of a cycle that may be split,", (method) => {
  const modes = fc.shuffledSubarray([...planModes], { minLength: 1 });
  const inputs = fc.tuple(extendedInputs(tiny, ["useAll", "maxStaleness"]), modes, fc.constantFrom("n1", "n2"));

  test("finds the best of each mode that is asked for, and calls none impossible that is not", () => {
    const isNear = (a = Number.POSITIVE_INFINITY, b = Number.POSITIVE_INFINITY): boolean => a === b || near(a, b);
    fc.assert(
      fc.property(inputs, ([given, modes, last]) => {
        // All of two or three nodes, or two of three.
        const ids = given.nodes.map((_, i) => `n${i}`);
        const cycle = ids.slice(0, ids.indexOf(last) + 1 || ids.length);
        const around = cycle.map((id, i) => [id, cycle[(i + 1) % cycle.length]!] as [string, string]);
        const edges = [...given.edges, ...around].filter(([from, to]) => from !== to);
        const input = { ...given, edges, modes, cycles: "split" as const };
        const best = bruteForce(compileModel(PlanProblem.parse(input)));
        const answer = solvePlan(input, { method });
        expect(answer.feasible).toBe(best.has("any"));
        for (const mode of modes) {
          const found = answer.alternatives.find((each) => each.mode === mode);
          expect([mode, found?.time, best.get(mode)]).toSatisfy(() => isNear(found?.time, best.get(mode)));
          expect(answer.empty.includes(mode)).toBe(answer.feasible && !best.has(mode));
        }
      }),
      { numRuns: 150 },
    );
  });

  test("finds that its members own devices, though they take turns in less time", () => {
    const [a, b] = ["a", "b"].map((id) => ({ id, time: { type: "formula", perItem: 1 } }));
    const input = {
      devices: 2,
      batch: 2,
      cycles: "split",
      nodes: [a, b],
      edges: ["a b", "b a"].map((e) => e.split(" ")),
    };
    const timesOf = (more: object) =>
      Object.fromEntries(
        solvePlan({ ...input, ...more }, { method }).alternatives.map(({ mode, time }) => [mode, time]),
      );
    expect(timesOf({})).toEqual({ temporal: 2, spatial: 3 });
    expect(timesOf({ modes: ["spatial"] })).toEqual({ spatial: 3 });
    expect(timesOf({ modes: ["hybrid"] })).toEqual({});
    expect(timesOf({ modes: ["spatial"], devices: 1 })).toEqual({});
    expect(timesOf({ modes: ["spatial"], cycles: "collapse" })).toEqual({ spatial: 2 });
    const followed = { nodes: [a, b, { ...a, id: "c" }], edges: [...input.edges, ["b", "c"]], devices: 4 };
    expect(timesOf({ ...followed, modes: ["spatial"] })).toEqual({ spatial: 4 });
    expect(timesOf({ ...followed, modes: ["spatial"], devices: 2 })).toEqual({});
  });
});

test("fast equals naive on larger graphs with everything that the paper leaves out", () => {
  const sizes = { maxNodes: 5, maxDevices: 12, batches: [6, 8] };
  const inputs = fc.oneof(
    extendedInputs(sizes),
    extendedInputs(sizes, ["cycles", "residency", "swaps", "maxStaleness", "useAll"]),
  );
  fc.assert(
    fc.property(inputs, (input) => {
      const fast = solvePlan(input);
      const naive = solvePlan(input, { method: "naive" });
      if (naive.time === null || fast.time === null) expect(fast.time).toBe(naive.time);
      else if (fast.stats.exact) expect(near(fast.time, naive.time)).toBe(true);
      else {
        expect(fast.time).toBeGreaterThanOrEqual(naive.time * (1 - tolerance));
        expect(fast.stats.bound!).toBeLessThanOrEqual(naive.time * (1 + tolerance));
      }
    }),
    { numRuns: 60 },
  );
});

describe("where steps overlap, the best may have neither the shortest step nor the least busy devices", () => {
  const formula = (base: number, perItem: number, alpha = 1) => ({ type: "formula", base, perItem, alpha });
  const plain = { maxStaleness: 1, useAll: true };

  test.each([
    {
      ...plain,
      ...{ devices: 7, batch: 7, reserved: 2, pipeline: "kway", swaps: "round", apart: [["n0", "n2"]] },
      nodes: [
        { id: "n0", time: formula(0, 2, 0.8), offload: 1, onload: 2 },
        { id: "n1", time: formula(2, 3.3), maxRanks: 2, minRanks: 2 },
        { id: "n2", time: formula(4, 0), unit: 2, stream: true },
      ],
      edges: [["n0", "n2"]],
    },
    {
      ...plain,
      ...{ devices: 8, batch: 4, memoryPerDevice: 12, cycles: "split", residency: "lazy" },
      nodes: [
        { id: "n0", time: formula(0, 0), offload: 1 },
        { id: "n1", time: formula(0, 3.3, 0.8), unit: 2, stream: true, offload: 3 },
        { id: "n2", time: formula(1, 3.3), minRanks: 2, memory: { fixed: 3 }, maxDevices: 2 },
        { id: "n3", time: formula(1, 0, 0.3), stream: true, offload: 3, onload: 2 },
      ],
      edges: [["n1", "n2"]],
    },
    {
      ...plain,
      ...{ devices: 9, batch: 1, residency: "lazy", swaps: "round", cycles: "split", modes: ["temporal", "hybrid"] },
      nodes: [
        { id: "n0", time: formula(0, 0), unit: 3, maxRanks: 2, memory: { fixed: 3 } },
        { id: "n1", time: formula(1, 0), offload: 3 },
        { id: "n2", time: formula(0, 8.25), maxRanks: 2, onload: 5 },
        { id: "n3", time: formula(1, 6.22, 0.8), unit: 3, minRanks: 2, memory: { fixed: 3, sharded: 4 } },
        { id: "n4", time: formula(0, 0, 0.8), unit: 3 },
      ],
      edges: ["n0 n3", "n1 n2", "n1 n3", "n1 n4", "n2 n3"].map((edge) => edge.split(" ")),
    },
  ])("and it is found, and proven, in the same time by both methods (%#)", (input) => {
    const [fast, naive] = [solvePlan(input), solvePlan(input, { method: "naive" })];
    for (const { stats } of [fast, naive]) expect(stats.exact).toBe(true);
    expect(near(fast.time!, naive.time!)).toBe(true);
    const { alternatives } = naive;
    for (const { mode, time, proven } of fast.alternatives) {
      expect(proven).toBe(true);
      expect(near(time, alternatives.find((each) => each.mode === mode)!.time)).toBe(true);
    }
  });

  test("so both methods agree on drawn problems, or one says that it is not proven", () => {
    const sizes = { maxNodes: 5, maxDevices: 9, batches: [1, 4, 12] };
    const inputs = extendedInputs(sizes, ["cycles", "residency", "swaps", "useAll"]);
    fc.assert(
      fc.property(inputs, fc.constantFrom(1, 2), (input, maxStaleness) => {
        const [fast, naive] = [{}, { method: "naive" }].map((how) => solvePlan({ ...input, maxStaleness }, how));
        expect(fast!.feasible).toBe(naive!.feasible);
        if (!fast!.feasible) return;
        if (fast!.stats.exact) expect(near(fast!.time!, naive!.time!)).toBe(true);
        else expect(fast!.time!).toBeGreaterThanOrEqual(naive!.time! * (1 - tolerance));
        expect(fast!.stats.bound!).toBeLessThanOrEqual(naive!.time! * (1 + tolerance));
      }),
      { numRuns: 150 },
    );
  });
});

describe("by hand", () => {
  const node = (id: string, perItem: number, more: object = {}) => ({
    id,
    time: { type: "formula", perItem },
    ...more,
  });

  test("a cycle is split where its members gain nothing from more devices", () => {
    const flat = (id: string) => ({ id, time: { type: "formula", perItem: 1, alpha: 0 } });
    const cycle = [
      ["sim", "gen"],
      ["gen", "sim"],
    ];
    const input = { devices: 2, batch: 8, nodes: [flat("sim"), flat("gen")], edges: cycle };
    expect(solvePlan(input).time).toBe(16);
    // Eight chunks, one behind the other: 1 + 8.
    expect(solvePlan({ ...input, cycles: "split" })).toMatchObject({ time: 9, mode: "spatial" });
    const whole = { ...input, cycles: "split", granularities: [8] };
    expect(solvePlan(whole).time).toBe(16);
  });

  test("a cycle over several kinds of device alternates and never swaps", () => {
    const input = {
      devices: 4,
      batch: 8,
      granularities: [8],
      pools: { cpu: { devices: 2 } },
      nodes: [node("sim", 1, { pool: "cpu", onload: 9, offload: 9 }), node("gen", 2, { onload: 9, offload: 9 })],
      edges: [
        ["sim", "gen"],
        ["gen", "sim"],
      ],
    };
    expect(solvePlan(input)).toMatchObject({ time: 8 / 2 + 16 / 4, mode: "spatial" });
  });

  test("neighbours in time that fit together do not swap, those that do not fit do, both ways when turns come round", () => {
    const nodes = (sharded: number) => [
      node("a", 1, { memory: { sharded }, onload: 1, offload: 2 }),
      node("b", 1, { memory: { sharded }, onload: 3, offload: 4 }),
    ];
    const input = { devices: 2, batch: 8, memoryPerDevice: 10, granularities: [8], residency: "lazy" };
    const edges = [["a", "b"]];
    const own = { ...input, edges, splits: { multipleOf: 2 } };
    expect(solvePlan({ ...own, nodes: nodes(10) }).time).toBe(8);
    expect(solvePlan({ ...own, nodes: nodes(12) }).time).toBe(8 + 2 + 3);
    expect(solvePlan({ ...own, nodes: nodes(12), swaps: "round" }).time).toBe(8 + (2 + 3) + (4 + 1));
    expect(solvePlan({ ...own, nodes: nodes(10), swaps: "round" }).time).toBe(8);
  });

  test("MT2: what has tags gives way to the other part with what costs least, and stays with the rest", () => {
    const cost = { onload: 6, offload: 3 };
    const half = (offload: number, onload: number) => ({ share: 0.5, offload, onload });
    const tagged = (bytes: number) => ({ memory: { fixed: bytes }, ...cost, tags: [half(1, 2), half(2, 4)] });
    const chain = (a: object, b: object) => ({
      ...{ devices: 2, batch: 8, memoryPerDevice: 10, granularities: [8], residency: "lazy", swaps: "round" },
      ...{ splits: { multipleOf: 2 }, nodes: [node("a", 1, a), node("b", 1, b)], edges: [["a", "b"]] },
    });
    const whole = { memory: { fixed: 8 }, ...cost };
    expect(solvePlan(chain(whole, whole)).time).toBe(8 + 2 * (3 + 6));
    // 2 of 12 are too many: the cheaper half of each leaves for the other.
    expect(solvePlan(chain(tagged(6), tagged(6))).time).toBe(8 + 2 * (1 + 2));
    // 6 of 16: both halves of each.
    expect(solvePlan(chain(tagged(8), tagged(8))).time).toBe(8 + 2 * (3 + 6));
    // Of one whose weights stay for the other, which is one piece.
    expect(solvePlan(chain(tagged(6), { memory: { fixed: 7 }, ...cost })).time).toBe(8 + (1 + 6) + (3 + 2));
    // 4 of what a has stay whatever leaves, and b has no room beside that.
    const keeps = { memory: { fixed: 8 }, ...cost, tags: [half(1, 2)] };
    expect(solvePlan(chain(keeps, { memory: { fixed: 6 }, ...cost })).time).toBe(8 + (1 + 6) + (3 + 2));
    expect(solvePlan(chain(keeps, { memory: { fixed: 7 }, ...cost }))).toMatchObject({ feasible: false });
    const three = (b: number) => {
      const nodes = [
        node("a", 1, keeps),
        node("b", 1, { memory: { fixed: b } }),
        node("c", 1, { memory: { fixed: 5 } }),
      ];
      const edges = [...chain({}, {}).edges, ["b", "c"]];
      return solvePlan({ ...chain({}, {}), nodes, edges }).feasible;
    };
    expect([three(6), three(7)]).toEqual([true, false]);
  });

  test("of three in turn, the one that fits beside either of the others stays loaded, and a pair that fits is moved as two", () => {
    const cost = { onload: 2, offload: 1 };
    const chain = (a: number, b: number, c: number) => ({
      devices: 2,
      batch: 8,
      memoryPerDevice: 10,
      granularities: [8],
      splits: { multipleOf: 2 },
      residency: "lazy",
      swaps: "round",
      nodes: [
        node("a", 1, { memory: { fixed: a }, ...cost }),
        node("b", 1, { memory: { fixed: b }, ...cost }),
        node("c", 1, { memory: { fixed: c }, ...cost }),
      ],
      edges: [
        ["a", "b"],
        ["b", "c"],
      ],
    });
    expect(solvePlan(chain(6, 2, 7)).time).toBe(12 + 2 * (1 + 2)); // a and c give way to each other, b to nobody
    expect(solvePlan(chain(9, 5, 4)).time).toBe(12 + (1 + 2 + 2) + (1 + 2)); // b and c come one by one, and go together
    expect(solvePlan(chain(6, 6, 6)).time).toBe(12 + 3 * (1 + 2));
  });

  test("a staleness of one hides the faster of two stages behind the slower", () => {
    const input = {
      devices: 2,
      batch: 8,
      granularities: [8],
      nodes: [node("a", 1), node("b", 2)],
      edges: [["a", "b"]],
    };
    expect(solvePlan(input).time).toBe(12);
    const answer = solvePlan({ ...input, splits: { multipleOf: 1 }, maxStaleness: 1 });
    // One device each: 8 and 16 seconds; together on both it would be 12.
    expect(answer.time).toBe(12);
    const swap = { onload: 3, offload: 3 };
    const costly = { ...input, nodes: [node("a", 1, swap), node("b", 1, swap)], maxStaleness: 1 };
    expect(solvePlan(costly)).toMatchObject({ time: 8, mode: "spatial" });
    expect(solvePlan({ ...costly, maxStaleness: 0 }).time).toBe(8 + 6);
  });

  test("three stages of one chunk are bound by how many steps may be under way", () => {
    const flat = (id: string) => ({ id, time: { type: "formula", perItem: 1, alpha: 0 } });
    const input = {
      devices: 3,
      batch: 8,
      granularities: [8],
      nodes: ["a", "b", "c"].map(flat),
      edges: [
        ["a", "b"],
        ["b", "c"],
      ],
    };
    expect(solvePlan({ ...input, maxStaleness: 1 }).time).toBe(12);
    expect(solvePlan({ ...input, maxStaleness: 2 }).time).toBe(8);
  });

  test("components pinned to the same devices take turns there", () => {
    const input = {
      devices: 2,
      batch: 4,
      pools: { pinned: { devices: 2, shared: true } },
      nodes: [node("a", 1), node("b", 1, { pool: "pinned" }), node("c", 1, { pool: "pinned" })],
      edges: [
        ["a", "b"],
        ["a", "c"],
      ],
    };
    const answer = solvePlan({ ...input, parallelIndependent: true });
    // Beside one another they would be done in 0.5 + 2.
    expect(answer.time).toBe(0.5 + 4);
  });
});

test.each([
  [
    { nodes: [{ id: "a", time: { type: "formula" }, pool: "cpu" }] },
    "nodes[0].pool: 'cpu' is not allowed: expected no pool: none is given",
  ],
  [
    { nodes: [{ id: "a", time: { type: "formula" }, minDevices: 3, maxDevices: 2 }] },
    "nodes[0].maxDevices: '2' is not allowed: expected at least minDevices 3 and unit 1",
  ],
  [{ nodes: [{ id: "a", time: { type: "formula" } }], maxStaleness: -1 }, "maxStaleness: '-1' is not allowed"],
])("refuses %j: %s", (wrong, message) => {
  expect(() => solvePlan({ devices: 4, batch: 4, ...wrong })).toThrow(message);
});
