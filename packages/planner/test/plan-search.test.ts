import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compileModel, evaluateSchedule, modeOf, PlanProblem, type Schedule, solvePlan } from "../src/index.ts";
import { Bounds } from "../src/plan/bounds.ts";
import { exactSeconds, leastSeconds, leastSecondsByLevel } from "../src/plan/component-time.ts";
import { solveFast } from "../src/plan/fast.ts";
import { leafOf, type Operations, type PlanModel, type PlanSet, spatialSeconds, swapAt } from "../src/plan/model.ts";
import { solveNaive } from "../src/plan/naive.ts";
import { Outside } from "../src/plan/outside.ts";
import { refineSplits } from "../src/plan/refine.ts";
import { Search } from "../src/plan/search.ts";
import { bruteForce } from "./plan-brute-force.ts";
import { extendedInputs, type PlanInput, planInputs } from "./plan-instances.ts";

const tolerance = 1e-9;

function expectSameTime(actual: number | null, expected: number | null): void {
  if (actual === null || expected === null || !Number.isFinite(expected)) expect(actual).toBe(expected);
  else expect(Math.abs(actual - expected)).toBeLessThanOrEqual(tolerance * Math.max(1e-12, Math.abs(expected)));
}

/** The answer's schedule is legal, costs what the answer says, and so does every alternative in its mode. */
function expectConsistent(input: PlanInput, answer: ReturnType<typeof solvePlan>): void {
  const model = compileModel(PlanProblem.parse(input));
  const check = (schedule: Schedule, time: number): void => {
    const costed = evaluateSchedule(model, schedule);
    expect(costed.illegal).toBeNull();
    expectSameTime(costed.time, time);
  };
  expect(answer.feasible).toBe(answer.schedule !== null);
  expect(answer.explanation.length).toBeGreaterThan(0);
  if (answer.schedule === null) return;
  check(answer.schedule, answer.time!);
  for (const { mode, schedule, time } of answer.alternatives) {
    expect(modeOf(model.problem, schedule)).toBe(mode);
    check(schedule, time);
    expect(time).toBeGreaterThanOrEqual(answer.time! * (1 - tolerance));
  }
}

describe("exactness", () => {
  test("naive equals brute force over all schedules", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 3, maxDevices: 4, batches: [1, 2, 4, 6] }), (input) => {
        const answer = solvePlan(input, { method: "naive" });
        const model = compileModel(PlanProblem.parse(input));
        const best = bruteForce(model);
        expectSameTime(answer.time, best.get("any") ?? null);
        for (const mode of ["temporal", "spatial", "hybrid"] as const) {
          const found = answer.alternatives.find((a) => a.mode === mode);
          if (found) expectSameTime(found.time, best.get(mode) ?? null);
          else expect(best.has(mode)).toBe(false);
        }
        expectConsistent(input, answer);
      }),
      { numRuns: 150 },
    );
  });

  test("fast equals naive on larger graphs", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 6, maxDevices: 16, batches: [6, 8, 12] }), (input) => {
        const fast = solvePlan(input);
        expectSameTime(fast.time, solvePlan(input, { method: "naive" }).time);
        expect(fast.stats.exact).toBe(true);
        expectConsistent(input, fast);
      }),
      { numRuns: 60 },
    );
  });

  test("fast equals naive whatever its grid, so that bounds of ranges of splits are put to the test", () => {
    const grids = fc.record({ dense: fc.integer({ min: 1, max: 4 }), ratio: fc.constantFrom(1.3, 2, 100) });
    fc.assert(
      fc.property(planInputs({ maxNodes: 5, maxDevices: 16, batches: [6, 8, 12] }), grids, (input, grid) => {
        const model = compileModel(PlanProblem.parse(input));
        const all = { temporal: true, spatial: true };
        const { time } = solveFast(model, all, () => {}, { shapes: [grid] });
        expectSameTime(time, solveNaive(model, all).time);
      }),
      { numRuns: 150 },
    );
  });

  test("a schedule with its splits refined is as it was, legal and no slower; alone it is the best of its kind", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 5, maxDevices: 24, batches: [6, 8, 12], acyclic: true }), (given) => {
        const { pipeline: _, ...input } = given;
        const model = compileModel(PlanProblem.parse(input));
        const all = { temporal: true, spatial: true };
        const rough = new Bounds(model, all, model.grid({ dense: 1, ratio: 3 }), () => {});
        const found = new Search(model, rough, all, () => {}).first();
        if (found === null) return;
        const before = evaluateSchedule(model, found).time!;
        const refined = refineSplits(model, found);
        const after = evaluateSchedule(model, refined);
        expect(after.illegal).toBeNull();
        expect(after.time!).toBeLessThanOrEqual(before * (1 + tolerance));
        expect(modeOf(model.problem, refined)).toBe(modeOf(model.problem, found));
        const exact = solvePlan(input);
        expectSameTime(evaluateSchedule(model, refineSplits(model, exact.schedule!)).time, exact.time);
      }),
      { numRuns: 80 },
    );
  });

  test("fast equals naive on many devices, where bounds cover ranges of splits", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 4, maxDevices: 120, batches: [8, 16] }), (input) => {
        const { pipeline: _, ...binary } = input;
        expectSameTime(solvePlan(binary).time, solvePlan(binary, { method: "naive" }).time);
      }),
      { numRuns: 20 },
    );
  });
});

describe("within a limit", () => {
  const limits = fc.tuple(
    fc.constantFrom(0.5, 0.99, 1, 1.3, 3),
    fc.record({ dense: fc.integer({ min: 1, max: 8 }), ratio: fc.constantFrom(1.3, 3) }),
  );

  test("bounds hold for what is part of a schedule within it, and what they say of the whole is true", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 5, maxDevices: 16, batches: [1, 6, 8] }), limits, (input, [factor, grid]) => {
        const model = compileModel(PlanProblem.parse(input));
        const all = { temporal: true, spatial: true };
        const naive = solveNaive(model, all).time;
        if (!Number.isFinite(naive)) return;
        const limit = naive * factor;
        const bounds = new Bounds(model, all, model.grid(grid), () => {}, { limit });
        const lower = bounds.lowerAt(model.all, 0, model.levels);
        expect(lower).toBeLessThanOrEqual(naive * (1 + tolerance));
        expect(bounds.upperAt(model.all, 0, model.levels)).toBeGreaterThanOrEqual(naive * (1 - tolerance));
      }),
      { numRuns: 150 },
    );
  });

  test("a schedule that takes no time is found, too", () => {
    const free = { id: "free", time: { type: "formula", base: 0, perItem: 0, alpha: 1 } };
    const onSix = { id: "on-six", time: { type: "table", devices: [6], items: [1], seconds: [[0]] } };
    const model = compileModel(PlanProblem.parse({ devices: 6, batch: 1, nodes: [free, onSix], edges: [] }));
    expect(solveFast(model, { temporal: true, spatial: true }, () => {}).time).toBe(0);
  });

  test("the fast search finds the least time or, where all take longer, nothing", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 5, maxDevices: 16, batches: [1, 6, 8] }), limits, (input, [factor, grid]) => {
        const model = compileModel(PlanProblem.parse(input));
        for (const operations of [
          { temporal: true, spatial: true },
          { temporal: false, spatial: true },
        ]) {
          const naive = solveNaive(model, operations).time;
          const limit = naive * factor;
          const { time, bound } = solveFast(model, operations, () => {}, { limit, shapes: [grid] });
          if (factor >= 1 || naive === 0) expectSameTime(time, naive);
          else if (!model.all.single && naive > 1e-9) expect(time).toBe(Number.POSITIVE_INFINITY);
          // Seconds that no clock tells from none are rounded to either.
          const isMeant = Number.isFinite(naive) && (naive === 0 || naive > 1e-9);
          if (isMeant) expect(bound).toBeLessThanOrEqual(naive * (1 + tolerance));
        }
      }),
      { numRuns: 150 },
    );
  });
});

describe("from coarse to fine", () => {
  const cases = fc.record({
    factor: fc.constantFrom(0.99, 1, 1.02, 1.3, 3),
    coarse: fc.array(fc.constantFrom({ dense: 1, ratio: 3 }, { dense: 2, ratio: 1.7 }, { dense: 4, ratio: 1.3 }), {
      minLength: 1,
      maxLength: 3,
    }),
    last: fc.constantFrom({ dense: 1, ratio: 3 }, { dense: 8, ratio: 1.3 }, { dense: 64, ratio: 2 }),
  });

  const problems = (sizes: Parameters<typeof planInputs>[0]) =>
    fc.oneof(planInputs(sizes), extendedInputs(sizes, ["cycles", "residency", "swaps", "pools"]));

  test("problems of more devices than have bounds of their own are solved as by naive, whatever the pools", () => {
    const sizes = { maxNodes: 3, maxDevices: 40, batches: [1, 8] };
    let numWithPools = 0;
    fc.assert(
      fc.property(extendedInputs(sizes, ["cycles", "residency", "swaps", "pools"]), ({ pipeline: _, ...given }) => {
        const input = { ...given, devices: 17 + (given.devices % 24) };
        if (input.nodes.some((node) => "pool" in node)) numWithPools++;
        const answer = solvePlan(input);
        expectSameTime(answer.time, solvePlan(input, { method: "naive" }).time);
      }),
      { numRuns: 250 },
    );
    expect(numWithPools).toBeGreaterThan(50);
  });

  /** What is searched of a problem: anything, what owns devices alone, and what does both. */
  function searchesOf({ pipeline: _, ...input }: PlanInput): (readonly [PlanModel, Operations])[] {
    const model = compileModel(PlanProblem.parse(input));
    const mixed = model.mixed();
    const both = { temporal: true, spatial: true };
    const alone = [
      [model, both],
      [model, { temporal: false, spatial: true }],
    ] as const;
    return mixed ? [...alone, [{ ...model, all: mixed }, both]] : [...alone];
  }

  type State = { readonly set: PlanSet; readonly itemsIndex: number; readonly level: number; readonly seconds: number };

  /** The states of some schedule, the last its own; undefined where what is drawn is not feasible. */
  function drawn(
    model: PlanModel,
    { temporal, spatial }: Operations,
    set: PlanSet,
    [itemsIndex, level]: readonly [number, number],
    draw: (count: number) => number,
  ): State[] | undefined {
    const leaf = leafOf(set, { temporal, spatial });
    const ways: (() => State[] | undefined)[] = [];
    const states = (parts: readonly (State[] | undefined)[], secondsOf: (a: number, b: number) => number) => {
      const [a, b] = parts;
      if (!a || !b) return undefined;
      const seconds = secondsOf(a.at(-1)!.seconds, b.at(-1)!.seconds);
      return Number.isFinite(seconds) ? [...a, ...b, { set, itemsIndex, level, seconds }] : undefined;
    };
    if (leaf >= 0)
      ways.push(() => {
        const seconds = model.leafSeconds(leaf, itemsIndex)[level]!;
        return Number.isFinite(seconds) ? [{ set, itemsIndex, level, seconds }] : undefined;
      });
    for (const cut of set.single ? [] : set.cuts) {
      if (temporal && cut.turns)
        ways.push(() => {
          const part = (one: PlanSet) => drawn(model, { temporal, spatial }, one, [itemsIndex, level], draw);
          return states([part(cut.turnFirst), part(cut.turnSecond)], (a, b) => a + b + swapAt(cut, level));
        });
      if (!spatial || !cut.beside || (level < 2 && !cut.free)) continue;
      const beside = (chunkIndex: number, count: number) => (): State[] | undefined => {
        const share = cut.free ? level : 1 + draw(level - 1);
        const rest = cut.free ? level : 1 + draw(level - share);
        const part = (one: PlanSet, own: number) => drawn(model, { temporal, spatial }, one, [chunkIndex, own], draw);
        return states([part(cut.first, share), part(cut.second, rest)], (a, b) =>
          spatialSeconds(model.objective, a, b, count),
        );
      };
      for (const { itemsIndex: chunkIndex, count } of model.chunkings[itemsIndex]!)
        ways.push(beside(chunkIndex, count));
      if (model.problem.parallelIndependent && cut.independent) ways.push(beside(itemsIndex, 0));
    }
    return ways.length === 0 ? undefined : ways[draw(ways.length)]!();
  }

  test("every state of a schedule is allowed within what the schedule takes (IO1)", () => {
    let numStates = 0;
    fc.assert(
      fc.property(
        problems({ maxNodes: 5, maxDevices: 60, batches: [1, 6, 8, 12] }),
        fc.infiniteStream(fc.nat()),
        fc.constantFrom({ dense: 1, ratio: 3 }, { dense: 2, ratio: 1.7 }, { dense: 4, ratio: 1.3 }),
        (given, numbers, shape) => {
          const draw = (count: number): number => numbers.next().value! % count;
          for (const [within, operations] of searchesOf(given))
            for (let attempt = 0; attempt < 20; attempt++) {
              const states = drawn(within, operations, within.all, [0, within.levels], draw);
              if (states === undefined) continue;
              const limit = states.at(-1)!.seconds;
              const bounds = new Bounds(within, operations, within.grid(shape), () => {}, { limit });
              const outside = new Outside(within, operations, bounds, limit, () => {});
              for (const { set, itemsIndex, level, seconds } of states) {
                if (set.single) continue;
                numStates++;
                const allowed = outside.of(set, itemsIndex);
                expect(allowed).toBeDefined();
                expect(level).toBeGreaterThanOrEqual(allowed!.from);
                expect(level).toBeLessThanOrEqual(allowed!.to);
                expect(allowed!.mostOn(level, level)).toBeGreaterThanOrEqual(seconds * (1 - tolerance));
              }
            }
        },
      ),
      { numRuns: 150 },
    );
    expect(numStates).toBeGreaterThan(1000);
  });

  test("a search within what coarse bounds leave finds the least time", () => {
    fc.assert(
      fc.property(
        problems({ maxNodes: 4, maxDevices: 24, batches: [1, 6, 8] }),
        cases,
        (given, { factor, coarse, last }) => {
          for (const [within, operations] of searchesOf(given)) {
            const naive = solveNaive(within, operations).time;
            if (!Number.isFinite(naive) || (naive > 0 && naive < 1e-9)) continue;
            const limit = naive * factor;
            const shapes = [...coarse, last];
            const found = solveFast(within, operations, () => {}, { limit, shapes, numNarrowing: coarse.length });
            if (factor >= 1) {
              expectSameTime(found.time, naive);
              // In a model without an allocation, components have all of their pool, whoever else is there.
              if (within.freeMask === 0) expectSameTime(evaluateSchedule(within, found.schedule!).time, naive);
            } else if (!within.all.single) expect(found.bound).toBeLessThanOrEqual(naive * (1 + tolerance));
          }
        },
      ),
      { numRuns: 150 },
    );
  });
});

test("the least seconds on up to so many devices are those of the best count, by level or at once", () => {
  fc.assert(
    fc.property(
      planInputs({ maxNodes: 2, maxDevices: 12, batches: [1, 12] }),
      fc.integer({ min: 1, max: 3 }),
      (input, step) => {
        const { nodes, batch, memoryPerDevice = Number.POSITIVE_INFINITY } = PlanProblem.parse(input);
        const limits = { batch, memoryPerDevice };
        for (const members of [[nodes[0]!], nodes]) {
          const rows = leastSecondsByLevel(members, 4, step, batch, limits);
          for (let level = 1; level <= 4; level++) {
            const each = Array.from({ length: level * step }, (_, i) => exactSeconds(members, i + 1, batch, limits));
            expectSameTime(rows[level]!, Math.min(...each));
            expectSameTime(leastSeconds(members, level * step, batch, limits), Math.min(...each));
          }
        }
      },
    ),
    { numRuns: 300 },
  );
});

describe("the best of each mode", () => {
  test("is the best there is, and says that it is proven", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 4, maxDevices: 4, batches: [1, 2, 4] }), (input) => {
        const answer = solvePlan(input);
        const best = bruteForce(compileModel(PlanProblem.parse(input)));
        for (const mode of ["temporal", "spatial", "hybrid"] as const) {
          const found = answer.alternatives.find((a) => a.mode === mode);
          expectSameTime(found?.time ?? null, best.get(mode) ?? null);
          if (found) expect(found).toMatchObject({ proven: true, bound: found.time });
        }
      }),
      { numRuns: 80 },
    );
  });

  test("is proven on many devices too, from a schedule that was found roughly", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 4, maxDevices: 700, batches: [8, 16] }), (given) => {
        const { pipeline: _, ...input } = given;
        const model = compileModel(PlanProblem.parse(input));
        if (model.all.single) return;
        const { alternatives } = solvePlan(input);
        const all = model.mixed();
        const exact = {
          spatial: solveFast(model, { temporal: false, spatial: true }, () => {}).time,
          hybrid: all ? solveFast({ ...model, all }, { temporal: true, spatial: true }, () => {}).time : Infinity,
        };
        for (const mode of ["spatial", "hybrid"] as const) {
          const found = alternatives.find((a) => a.mode === mode);
          expectSameTime(found?.time ?? Infinity, exact[mode]);
        }
      }),
      { numRuns: 40 },
    );
  });

  test("that is not proven has a bound, and the explanation says so", () => {
    const node = (i: number) => ({
      id: `c${i}`,
      time: { type: "formula", base: 1 + ((i * 7) % 5), perItem: 2 + ((i * 5) % 7), alpha: 0.7 + 0.02 * i },
      onload: i % 3,
    });
    const nodes = Array.from({ length: 9 }, (_, i) => node(i));
    const edges = nodes
      .slice(1)
      .flatMap((_, i) => [[`c${i}`, `c${i + 1}`], ...(i > 1 ? [[`c${i - 2}`, `c${i}`]] : [])]);
    const { alternatives, explanation, time } = solvePlan({ devices: 16_384, batch: 512, nodes, edges });
    const open = alternatives.filter(({ proven }) => !proven);
    expect(open.length).toBeGreaterThan(0);
    for (const each of open) {
      expect(each.bound).toBeGreaterThanOrEqual(time!);
      expect(each.bound).toBeLessThan(each.time);
      expect(explanation.some((line) => line.includes(`the best ${each.mode} schedule that was found`))).toBe(true);
    }
  });

  test("is missing only where no schedule is of the mode, or where it is said that this is not known", () => {
    fc.assert(
      fc.property(planInputs({ maxNodes: 4, maxDevices: 4, batches: [1, 2, 4] }), (input) => {
        const answer = solvePlan(input);
        const best = bruteForce(compileModel(PlanProblem.parse(input)));
        for (const mode of answer.empty) expect(best.has(mode)).toBe(false);
        for (const mode of ["temporal", "spatial", "hybrid"] as const) {
          if (answer.feasible && !best.has(mode)) expect(answer.empty).toContain(mode);
        }
      }),
      { numRuns: 80 },
    );
  });
});

test("a wide graph, which has more cuts than anybody waits for, is answered within its deadline", () => {
  for (const [numNodes, fork] of [
    [24, false],
    [18, true],
  ] as const) {
    const nodes = Array.from({ length: numNodes }, (_, i) => ({
      id: `n${i}`,
      time: { type: "formula" as const, base: 0.1 * i, perItem: 1 + (i % 7), alpha: 0.9 },
    }));
    const edges = fork ? nodes.slice(1).map(({ id }) => ["n0", id]) : [];
    // Each look at the clock is a millisecond, so what looks at it seldom takes long.
    let nowMs = 0;
    const found = solvePlan({ devices: 64, batch: 64, nodes, edges }, { deadlineMs: 2000, nowMs: () => nowMs++ });
    expect(found.feasible).toBe(true);
    expect(found.stats.exact).toBe(false);
    expect(nowMs).toBeLessThan(2100);
  }
});
