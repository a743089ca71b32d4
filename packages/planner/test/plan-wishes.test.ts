import type { PlacementWishes } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { crowdedClique } from "../src/auto/apart-cliques.ts";
import {
  checkWishes,
  compileModel,
  evaluateSchedule,
  PlanProblem,
  resolvePlacement,
  type Schedule,
  solvePlan,
} from "../src/index.ts";
import type { PlanAnswer } from "../src/plan/problem.ts";
import { modeAmong } from "../src/plan/schedule-mode.ts";
import { planProblem } from "../src/plan/solve.ts";
import { allSchedules, bestOf, bruteForce, deviceSetsOf } from "./plan-brute-force.ts";
import { extendedInputs, type PlanInput, planInputs } from "./plan-instances.ts";

const modes = ["temporal", "spatial", "hybrid"] as const;

/** Wishes of all kinds; some contradict each other, or leave no plan. */
const wishes = fc.record({
  modes: fc.option(fc.uniqueArray(fc.constantFrom(...modes), { minLength: 1, maxLength: 3 }), { nil: undefined }),
  reserved: fc.constantFrom(0, 0, 1, 2),
  together: fc.option(fc.constant([["n0", "n1"]]), { nil: undefined }),
  apart: fc.option(fc.constantFrom([["n1", "n2"]], [["n0", "n2"]]), { nil: undefined }),
  maxRanks: fc.option(fc.integer({ min: 1, max: 2 }), { nil: undefined }),
  useAll: fc.boolean(),
});

/** Of each node that the devices are enough for; more contradicts it. */
const mayStayFree = ({ devices, nodes }: PlanInput): number[] =>
  nodes.flatMap((node) => {
    const { minDevices = 1, unit = 1 } = node as { minDevices?: number; unit?: number };
    const needed = Math.ceil(minDevices / unit) * unit;
    return needed <= devices ? [devices - needed] : [];
  });

type Groups = readonly (readonly string[])[] | undefined;
type Wanted = {
  readonly modes: readonly (typeof modes)[number][] | undefined;
  readonly reserved: number;
  readonly together: Groups;
  readonly apart: Groups;
  readonly maxRanks: number | undefined;
  readonly useAll: boolean;
};

function withWishes(input: PlanInput, { maxRanks, together, apart, reserved, ...rest }: Wanted) {
  const known = input.nodes.map((node) => (node as { id: string }).id);
  const has = (groups: readonly (readonly string[])[] | undefined): boolean =>
    groups?.flat().every((id) => known.includes(id)) ?? false;
  const nodes = input.nodes.map((node, i) => {
    const { minDevices = 1, unit = 1 } = node as { minDevices?: number; unit?: number };
    const fewest = Math.ceil(minDevices / unit);
    return i === 0 && maxRanks !== undefined ? { ...node, maxRanks: Math.max(maxRanks, fewest) } : node;
  });
  const given = {
    ...rest,
    ...(has(together) ? { together } : {}),
    ...(has(apart) ? { apart } : {}),
    reserved: Math.min(reserved, input.devices - 1, ...mayStayFree(input)),
  };
  return { ...input, nodes, ...Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) };
}

const near = (a: number | null | undefined, b: number | undefined): void => {
  if (a === null || a === undefined || b === undefined) expect(a ?? undefined).toBe(b);
  else expect(Math.abs(a - b)).toBeLessThanOrEqual(1e-9 * Math.max(1e-12, b));
};

describe("what users want of a plan", () => {
  test("is kept by the best of all schedules that keep it, fast and naive", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 3, maxDevices: 4, batches: [1, 2, 4] }), wishes, (given, wanted) => {
        const input = withWishes(given, wanted) as PlanInput;
        const model = compileModel(PlanProblem.parse(input));
        const best = bruteForce(model);
        for (const method of ["fast", "naive"] as const) {
          const answer = solvePlan(input, { method });
          near(answer.time, best.get("any"));
          for (const mode of modes) near(answer.alternatives.find((a) => a.mode === mode)?.time, best.get(mode));
          expect(answer.explanation.length).toBeGreaterThan(0);
        }
      }),
      { numRuns: 120 },
    );
  });

  test("is kept by sets of devices, over pools and in cycles, as one who knows nothing of cuts judges them", () => {
    const pairsOf = (groups: readonly (readonly string[])[]) =>
      groups.flatMap((group) => group.flatMap((a, i) => group.slice(i + 1).map((b) => [a, b] as const)));
    const inputs = fc.oneof(
      planInputs({ maxNodes: 3, maxDevices: 4, batches: [1, 2, 4] }),
      extendedInputs({ maxNodes: 3, maxDevices: 3, batches: [1, 2] }, ["pools", "cycles"]),
    );
    const groups = fc.constantFrom([["n0", "n1"]], [["n1", "n2"]], [["n0", "n2"]], [["n0", "n1", "n2"]]);
    const drawn = fc.record({
      modes: fc.option(fc.uniqueArray(fc.constantFrom(...modes), { minLength: 1, maxLength: 3 }), { nil: undefined }),
      reserved: fc.constantFrom(0, 0, 1),
      together: fc.option(groups, { nil: undefined }),
      apart: fc.option(groups, { nil: undefined }),
      maxRanks: fc.option(fc.integer({ min: 1, max: 2 }), { nil: undefined }),
      useAll: fc.boolean(),
    });
    fc.assert(
      fc.property(inputs, drawn, (given, wanted) => {
        const input = withWishes(given, wanted);
        const parsed = PlanProblem.safeParse(input);
        if (!parsed.success) return; // contradictions
        const problem = parsed.data;
        const free = compileModel({ ...problem, modes: [...modes], together: [], apart: [] });
        // In a pool a component may have fewer devices than there are, and take its turns on those.
        const isPooled = (id: string): boolean => problem.nodes.find((node) => node.id === id)?.pool !== undefined;
        const isWanted = (schedule: Schedule): boolean => {
          if (!problem.modes.includes(modeAmong(problem, schedule))) return false;
          const sets = deviceSetsOf(free, schedule);
          const [shared, within] = [
            (a: string, b: string) => [...sets.get(a)!].some((device) => sets.get(b)!.has(device)),
            (a: string, b: string) => [...sets.get(a)!].every((device) => sets.get(b)!.has(device)),
          ];
          return (
            pairsOf(problem.apart).every(([a, b]) => !shared(a, b)) &&
            pairsOf(problem.together).every(([a, b]) =>
              isPooled(a) ? within(a, b) || within(b, a) : within(a, b) && within(b, a),
            )
          );
        };
        const best = bestOf(free, [...allSchedules(free)].filter(isWanted), problem);
        for (const method of ["fast", "naive"] as const) {
          const answer = solvePlan(input, { method });
          near(answer.time, best.get("any"));
          for (const mode of modes) near(answer.alternatives.find((a) => a.mode === mode)?.time, best.get(mode));
        }
      }),
      { numRuns: 150 },
    );
  });

  test("makes fast and naive agree on larger graphs", () => {
    const inputs = fc.oneof(
      planInputs({ maxNodes: 6, maxDevices: 12, batches: [6, 8] }),
      extendedInputs({ maxNodes: 4, maxDevices: 6, batches: [6, 8] }, ["pools"]),
    );
    fc.assert(
      fc.property(inputs, wishes, (given, wanted) => {
        const input = withWishes(given, wanted) as PlanInput;
        if (!PlanProblem.safeParse(input).success) return; // contradictions
        const fast = solvePlan(input);
        near(fast.time, solvePlan(input, { method: "naive" }).time ?? undefined);
        expect(fast.stats.exact).toBe(true);
      }),
      { numRuns: 60 },
    );
  });

  test("is to use all devices: what is answered does, what does not is illegal, and it is the best that does", () => {
    const limited = (input: PlanInput): PlanInput => ({
      ...input,
      pools: {},
      nodes: input.nodes.map((node, i) => ({
        ...node,
        pool: undefined,
        minDevices: 1,
        unit: 1,
        maxDevices: 1 + ((i * 2) % 3),
      })),
    });
    const inputs = planInputs({ maxNodes: 3, maxDevices: 5, batches: [4], acyclic: true });
    fc.assert(
      fc.property(inputs, fc.constantFrom("binary", "kway"), fc.boolean(), (given, pipeline, parallelIndependent) => {
        const input = { ...limited(given), pipeline, parallelIndependent, useAll: true } as PlanInput;
        const model = compileModel(PlanProblem.parse(input));
        const best = bruteForce(model);
        for (const method of ["fast", "naive"] as const) {
          const answer = solvePlan(input, { method });
          near(answer.time, best.get("any"));
          for (const mode of modes) near(answer.alternatives.find((a) => a.mode === mode)?.time, best.get(mode));
          for (const { schedule, proven } of answer.alternatives) {
            expect(evaluateSchedule(model, schedule).illegal).toBeNull();
            expect(proven).toBe(true);
          }
        }
      }),
      { numRuns: 100 },
    );
  });

  test("is to use all devices of pools: limits of ranks decide who is beside whom, and what is proven empty is", () => {
    const onCpus = (id: string, perItem: number, limit: object) => ({
      id,
      time: { type: "formula" as const, perItem },
      pool: "cpu",
      ...limit,
    });
    const problem = {
      ...{ devices: 3, batch: 3, edges: [], pools: { cpu: { devices: 3 } }, parallelIndependent: true, useAll: true },
      nodes: [onCpus("n0", 1.5, {}), onCpus("n1", 2.9, { maxRanks: 1 })],
    };
    for (const method of ["fast", "naive"] as const) {
      const { mode, time, empty, stats } = solvePlan(problem, { method });
      expect(mode).toBe("spatial");
      near(time, 8.7);
      expect(stats.exact).toBe(true);
      expect(empty).not.toContain("spatial");
    }
    // Of many devices not every split is tried, but those at which limits are reached are.
    const [many, some] = [onCpus("n0", 1.5, { maxRanks: 71 }), onCpus("n1", 2.9, { maxRanks: 26 })];
    const large = { ...problem, batch: 1024, nodes: [many, some], pools: { cpu: { devices: 97 } } };
    expect(solvePlan(large)).toMatchObject({ feasible: true, mode: "spatial" });
    expect(solvePlan({ ...large, pools: { cpu: { devices: 98 } } }).feasible).toBe(false);
  });

  test("is the mode of what runs as one, which shares nothing and so is of any mode", () => {
    const one = { devices: 4, batch: 4, nodes: [{ id: "a", time: { type: "formula", perItem: 1 } }] };
    for (const mode of modes) {
      const answer = solvePlan({ ...one, modes: [mode] });
      expect(answer).toMatchObject({ mode, alternatives: [{ mode, proven: true }], empty: [] });
      expect(answer.explanation.join()).toContain(`${mode}: 4 items on 4 devices`);
      for (const other of modes.filter((each) => each !== mode)) expect(answer.explanation.join()).not.toContain(other);
    }
    const limited = { ...one, useAll: true, nodes: [{ ...one.nodes[0], maxDevices: 3 }] };
    expect(solvePlan({ ...limited, modes: ["spatial"] }).explanation.join()).toContain(
      "the best spatial schedule leaves",
    );
    expect(solvePlan(one).mode).toBe("temporal");
  });

  test("is refused where no schedule uses all devices, and takes no longer than it must on many", () => {
    const node = { id: "a", time: { type: "formula", perItem: 1 }, maxDevices: 3 };
    const answer = solvePlan({ devices: 4, batch: 4, nodes: [node], useAll: true });
    expect(answer.feasible).toBe(false);
    expect(answer.explanation.join()).toContain("leaves 1 of 4 devices idle");
    // Two of three stages use no more than a few devices, so the best schedule of all leaves many idle.
    const many = {
      devices: 256,
      batch: 64,
      useAll: true,
      parallelIndependent: true,
      nodes: [100, 60, 96].map((maxDevices, i) => ({
        id: `s${i}`,
        time: { type: "formula", base: 1, perItem: 1 + i },
        maxDevices,
      })),
      edges: [
        ["s0", "s1"],
        ["s1", "s2"],
      ] as [string, string][],
    };
    const full = solvePlan(many);
    expect(full.stats.exact).toBe(true);
    expect(full.mode).toBe("spatial");
    near(full.time, solvePlan(many, { method: "naive" }).time ?? undefined);
  });

  const nodes = ["a", "b", "c"].map((id) => ({ id, time: { type: "formula", perItem: 1 } }));
  const chain = {
    devices: 4,
    batch: 4,
    nodes,
    edges: [
      ["a", "b"],
      ["b", "c"],
    ],
  };

  test.each([
    [
      { together: [["a", "b"]], apart: [["b", "a"]] },
      /apart\[0\]: .*'b' and 'a' cannot be kept both apart and together/,
    ],
    [
      {
        together: [
          ["a", "b"],
          ["b", "c"],
        ],
        apart: [["a", "c"]],
      },
      /'a' and 'c' cannot be kept both/,
    ],
    [
      { nodes: [{ ...nodes[0], pool: "p" }, nodes[1], nodes[2]], pools: { p: { devices: 2 } }, together: [["a", "b"]] },
      /together\[0\]\[1\]: .*'a' and 'b' have different pools/,
    ],
    [{ apart: [["a", "x"]] }, /apart\[0\]\[1\]: 'x'.*expected one of the nodes/],
    [{ apart: [["a", "a"]] }, /apart\[0\]\[1\]/],
    [{ reserved: 4 }, /reserved: '4'.*none would be left/],
    [{ modes: [] }, /modes/],
    [{ nodes: [{ ...nodes[0], maxRanks: 0 }, nodes[1], nodes[2]] }, /nodes\[0\]\.maxRanks: '0'/],
  ])("is refused where it makes no sense: %j", (wish, message) => {
    expect(() => solvePlan({ ...chain, ...wish })).toThrow(message);
  });

  test("to be apart is kept by different pools, also in turns", () => {
    const pooled = { ...chain, nodes: [{ ...nodes[0], pool: "p" }, ...nodes.slice(1)], pools: { p: { devices: 2 } } };
    const answer = solvePlan({ ...pooled, modes: ["temporal"], apart: [["a", "b"]] });
    expect(answer).toMatchObject({ feasible: true, mode: "temporal" });
  });

  test("to be together is not broken by devices of another pool between two turns", () => {
    const onPool = (i: number) => ({ ...nodes[i], pool: "p" });
    const pooled = { ...chain, nodes: [onPool(0), nodes[1], onPool(2)], pools: { p: { devices: 1 } } };
    for (const method of ["fast", "naive"]) {
      const answer = solvePlan({ ...pooled, together: [["a", "c"]] }, { method });
      expect(answer.alternatives.map(({ mode }) => mode)).toContain("hybrid");
    }
  });

  const remedyOf = (problem: object): string | undefined =>
    (planProblem.solve(problem) as PlanAnswer).explanation.at(-1);

  test("is named with a remedy where nothing fits", () => {
    expect(remedyOf({ ...chain, devices: 1, apart: [["a", "b"]] })).toBe("let 'a' and 'b' share devices (apart)");
    expect(remedyOf({ ...chain, modes: ["spatial"], devices: 2 })).toBe(
      "allow temporal plans (modes), or allow hybrid plans (modes)",
    );
    // On one device there is nothing but turns.
    expect(remedyOf({ ...chain, modes: ["spatial"], devices: 1 })).toBe("allow temporal plans (modes)");
  });

  test("is named alone, of several, where it alone is why nothing fits, and with those that are why as well", () => {
    const wide = { ...nodes[0], minDevices: 2, unit: 2, maxRanks: 1 };
    const free = { ...chain, devices: 4, nodes: [wide, ...nodes.slice(1)], reserved: 1, modes: ["spatial"] };
    expect(remedyOf(free)).toBe(
      "keep none of '1' devices free (reserved), or allow temporal plans (modes), or allow hybrid plans (modes)",
    );
    const few = nodes.map((node) => ({ ...node, maxRanks: 1 }));
    expect(remedyOf({ ...chain, nodes: few, devices: 4, useAll: true })).toBe(
      "give 'a' more than '1' ranks (maxRanks), or give 'b' more than '1' ranks (maxRanks), or give 'c' more than '1' ranks (maxRanks), or let devices be idle (useAll)",
    );
    const both = [
      ["a", "b"],
      ["b", "c"],
      ["b", "a"],
    ];
    expect(remedyOf({ ...chain, devices: 1, apart: both, modes: ["temporal"], useAll: true })).toBe(
      "let 'a' and 'b' share devices (apart), and let 'b' and 'c' share devices (apart)",
    );
  });
});

describe("why there is no schedule", () => {
  const node = (id: string, more: object = {}) => ({ id, time: { type: "formula", perItem: 1 }, ...more });
  const cpus = { pools: { cpu: { devices: 2 } } };
  const explained = (problem: object): string => solvePlan({ batch: 4, edges: [], ...problem }).explanation.join("\n");

  test("of one mode is a wish, or components of one kind of device, not all of them", () => {
    const nodes = [node("a"), node("b"), node("c", { pool: "cpu" })];
    const joined = explained({ devices: 2, nodes, ...cpus, together: [["a", "b"]] });
    expect(joined).toContain("no spatial schedule is feasible: 'a' and 'b' are to have the same devices");
    expect(joined).not.toContain("more components than devices");
    expect(explained({ devices: 1, nodes, ...cpus })).toContain("more components than devices to give");
    const crowded = ["x", "y", "z"].map((id) => node(id, { pool: "cpu" }));
    expect(explained({ devices: 2, nodes: [node("a"), ...crowded], ...cpus })).toContain(
      "no spatial schedule is feasible: there are more components than devices of pool 'cpu'",
    );
    const pinned = { pools: { cpu: { devices: 2, shared: true } } };
    expect(explained({ devices: 2, nodes: [node("a"), ...crowded.slice(1)], ...pinned })).toContain(
      "no spatial schedule is feasible: 'y' and 'z' are pinned to the same devices",
    );
  });

  test("is what is wished where only that is, and what components need where that is", () => {
    const nodes = [node("a"), node("b")];
    const wished = explained({ devices: 4, nodes, together: [["a", "b"]], modes: ["spatial"] });
    expect(wished).toContain("no schedule keeps all that is wished (together, modes)");
    expect(wished).not.toContain("memory");
    const cycle = [
      ["a", "b"],
      ["b", "a"],
    ];
    const large = ["a", "b"].map((id) => node(id, { memory: { fixed: 6 } }));
    const cramped = { devices: 1, batch: 4, nodes: large, edges: cycle, memoryPerDevice: 10, cycles: "split" };
    const needed = planProblem.solve({ ...cramped, together: [["a", "b"]] }) as PlanAnswer;
    expect(needed.explanation).toHaveLength(1);
    expect(needed.explanation.join()).toMatch(/'a' and 'b' answer each other.*2 too little/);
  });

  test("is no limit of ranks that would change nothing if it were raised", () => {
    const wide = node("a", { unit: 8, maxRanks: 1 });
    const said = (planProblem.solve({ devices: 4, batch: 4, nodes: [wide] }) as PlanAnswer).explanation.join("\n");
    expect(said).toContain("'a' does not run on up to 4 devices");
    expect(said).not.toContain("maxRanks");
  });

  test("is the memory of components that answer each other, by name and with what is missing", () => {
    const pair = [
      node("simulator", { memory: { fixed: 37 } }),
      node("policy", { memory: { fixed: 53 }, unit: 3, minDevices: 3 }),
    ];
    const problem = {
      ...{ devices: 3, memoryPerDevice: 85, nodes: pair, cycles: "split" },
      edges: [
        ["simulator", "policy"],
        ["policy", "simulator"],
      ],
    };
    expect(explained(problem)).toContain(
      "'simulator' and 'policy' answer each other, so they are loaded together where they share devices, and need 90 on each of 3, which have 85: 5 too little; on devices of their own they need 4, and there are 3",
    );
    expect(solvePlan({ batch: 4, ...problem, devices: 4 }).feasible).toBe(true);
    expect(solvePlan({ batch: 4, ...problem, memoryPerDevice: 90 }).feasible).toBe(true);
  });

  test("of cycles is never said where there is one", () => {
    const drawn = fc.record({
      devices: fc.integer({ min: 1, max: 4 }),
      members: fc.array(
        fc.record({
          fixed: fc.integer({ min: 0, max: 6 }),
          sharded: fc.integer({ min: 0, max: 12 }),
          unit: fc.integer({ min: 1, max: 3 }),
        }),
        { minLength: 2, maxLength: 3 },
      ),
      shared: fc.boolean(),
    });
    fc.assert(
      fc.property(drawn, ({ devices, members, shared }) => {
        const nodes = members.map(({ unit, ...memory }, i) => node(`n${i}`, { unit, memory, pool: "cpu" }));
        const edges = members.map((_, i) => [`n${i}`, `n${(i + 1) % members.length}`]);
        const pools = { cpu: { devices, memoryPerDevice: 10, shared } };
        const answer = solvePlan({ devices: 1, batch: 4, nodes, edges, pools, cycles: "split" });
        const isSaid = answer.explanation.join().includes("answer each other");
        const runAlone = nodes.every((one) => solvePlan({ devices: 1, batch: 4, nodes: [one], pools }).feasible);
        expect(isSaid).toBe(!answer.feasible && runAlone);
      }),
      { numRuns: 200 },
    );
  });
});

test("a component with as many ranks as it may have is named, where there are devices for more", () => {
  const time = { type: "formula", perItem: 1 };
  const explained = (maxRanks: number | undefined) => {
    const nodes = [{ id: "rollout", time, ...(maxRanks === undefined ? {} : { maxRanks }) }];
    const problem = { devices: 4, batch: 4, nodes, edges: [], memoryPerDevice: 1 };
    return solvePlan(problem).explanation.join("\n");
  };
  expect(explained(2)).toContain(
    "'rollout' has '2' ranks, as many as maxRanks allows; raise it to let a plan give it more of the 4 devices",
  );
  expect(explained(4)).not.toContain("maxRanks");
  expect(explained(undefined)).not.toContain("maxRanks");
});

const cpu = (index: number) => ({ id: `cpu:${index}`, index, node: "here", kind: "cpu", memoryBytes: 2 ** 30 });

describe("placement.wishes", () => {
  const devices = [0, 1, 2, 3].map(cpu);
  const components = [{ name: "rollout" }, { name: "reward" }, { name: "actor", ranks: { min: 2 } }];
  const place = (mode: string, wish: object) =>
    resolvePlacement({ mode, components, devices, maxStaleness: 0, wishes: wish });
  const used = (plan: ReturnType<typeof place>) =>
    new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap((rank) => rank.devices)));

  test("keep devices free and ranks few in every mode", () => {
    for (const mode of ["temporal", "spatial", "hybrid"]) {
      const plan = place(mode, { freeDevices: "3", maxRanks: { rollout: 1 } });
      expect(used(plan).has("cpu:3")).toBe(false);
      expect(plan.components["rollout"]?.ranks).toHaveLength(1);
    }
  });

  test.each([
    ["spatial", { together: [["rollout", "reward"]] }, "to be kept together"],
    ["temporal", { apart: [["rollout", "actor"]] }, "to be kept apart"],
    ["hybrid", { modes: ["temporal", "spatial"] }, "it is hybrid"],
    ["spatial", { useAllDevices: true, maxRanks: { rollout: 1 } }, ""],
    ["temporal", { together: [["rollout", "reward"]], apart: [["reward", "rollout"]] }, "both apart and together"],
    ["temporal", { apart: [["rollout", "rewerd"]] }, "did you mean 'reward'"],
    ["temporal", { maxRanks: { actor: 1 } }, "'1' is below the 2 ranks"],
    ["temporal", { freeDevices: "0-3" }, "leaves none of 4 devices"],
    [
      "temporal",
      { freeDevices: "7" },
      "placement.wishes.freeDevices: '7' names device 7, but this cluster has devices 0-3",
    ],
    ["temporal", { maxRanks: { actor: 0 } }, "maxRanks.actor"],
  ])("%s refuses %j with the reason, or keeps it", (mode, wish, reason) => {
    if (reason === "") expect(used(place(mode, wish)).size).toBe(4);
    else expect(() => place(mode, wish)).toThrow(reason);
  });
});

describe("before anything is measured", () => {
  const devices = [0, 1].map((index) => ({ ...cpu(index) }));
  const asked = (count: number, wishes: PlacementWishes) => () =>
    checkWishes({
      components: ["rollout", "reward", "actor"].map((name) => ({ name })),
      devices: devices.slice(0, count),
      wishes,
    });

  test("wishes that no plan keeps are refused with the reason, and others are not", () => {
    expect(asked(1, { apart: [["rollout", "actor"]] })).toThrow(
      /no plan is possible: .*let 'rollout' and 'actor' share devices/,
    );
    expect(asked(2, { apart: [["rollout", "actor"]] })).not.toThrow();
    expect(asked(2, { apart: [["rollout", "reward", "actor"]] })).toThrow(
      /let 'rollout' and 'reward' and 'actor' share devices/,
    );
    expect(asked(2, { modes: ["spatial"] })).toThrow(/allow temporal plans/);
    expect(asked(2, { useAllDevices: true })).not.toThrow();
    expect(asked(2, { together: [["rollout", "actor"]], apart: [["rollout", "reward"]] })).not.toThrow();
    expect(asked(2, { useAllDevices: true, maxRanks: { rollout: 1, reward: 1, actor: 1 } })).not.toThrow();
  });

  test.each([10, 11, 24])("%i components that are all apart are refused at once, in one wish or in pairs", (count) => {
    const names = Array.from({ length: count }, (_, i) => `c${i}`);
    const pairs = names.flatMap((a, i) => names.slice(i + 1).map((b) => [a, b]));
    for (const apart of [[names], pairs]) {
      const on =
        (numDevices: number, more: PlacementWishes = {}) =>
        () =>
          checkWishes({
            components: names.map((name) => ({ name })),
            devices: Array.from({ length: numDevices }, (_, index) => cpu(index)),
            wishes: { apart, ...more },
            // A search has no time.
            ...{ deadlineMs: 0, nowMs: () => performance.now() },
          });
      expect(on(count - 1)).toThrow(`need at least ${count} devices, and may have ${count - 1}`);
      expect(on(count)).not.toThrow();
      expect(on(count, { freeDevices: "0" })).toThrow(/freeDevices '0' leaves too few devices/);
    }
  });

  test("those that are apart count by what each needs, once where others are together with them", () => {
    const drawn = fc.record({
      least: fc.array(fc.integer({ min: 1, max: 2 }), { minLength: 4, maxLength: 4 }),
      apart: fc.uniqueArray(fc.constantFrom("ab", "ac", "ad", "bc", "bd", "cd"), { maxLength: 6 }),
      together: fc.option(fc.constantFrom("ab", "cd"), { nil: undefined }),
      devices: fc.integer({ min: 2, max: 6 }),
    });
    let refused = 0;
    fc.assert(
      fc.property(drawn, ({ least, apart, together, devices: count }) => {
        const problem = {
          ...{ devices: count, batch: 1, edges: [], parallelIndependent: true },
          nodes: ["a", "b", "c", "d"].map((id, i) => ({
            id,
            time: { type: "formula", perItem: 1 },
            minDevices: least[i],
          })),
          apart: apart.map((ids) => [...ids]),
          together: together === undefined ? [] : [[...together]],
        };
        const parsed = PlanProblem.safeParse(problem);
        if (!parsed.success) return; // contradictions
        if (crowdedClique(parsed.data) === undefined) return;
        refused++;
        expect(solvePlan(parsed.data).feasible).toBe(false);
      }),
      { numRuns: 150 },
    );
    expect(refused).toBeGreaterThan(5);
  });

  test.each([6, 12])(
    "devices that the ranks of %i components cannot fill are refused, however many there are",
    (count) => {
      const names = Array.from({ length: count }, (_, i) => `c${i}`);
      const many = (numDevices: number) => () =>
        checkWishes({
          components: names.map((name) => ({ name, devicesPerRank: 8 })),
          devices: Array.from({ length: numDevices }, (_, index) => cpu(index)),
          wishes: { useAllDevices: true, maxRanks: Object.fromEntries(names.map((name) => [name, 1])) },
          ...{ deadlineMs: 100, nowMs: () => performance.now() },
        });
      expect(many(8 * count + 1)).toThrow(`fill ${8 * count} of ${8 * count + 1} devices`);
      expect(many(8 * count)).not.toThrow();
    },
  );
});
