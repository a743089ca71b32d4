import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type ArrangeAnswer, type Chunk, solveArrange } from "../src/index.ts";

type Task = { id: string; units: number[]; seconds: number[] };

const seconds = fc.oneof(fc.integer({ min: 0, max: 40 }), fc.double({ min: 0, max: 40, noNaN: true }));
/** Any unit sets: sparse, unsorted, not convex, sometimes slower with more units. */
const anyTasks = (maxUnits: number) =>
  fc
    .array(
      fc.uniqueArray(fc.tuple(fc.integer({ min: 1, max: maxUnits }), seconds), {
        minLength: 1,
        maxLength: 4,
        selector: ([u]) => u,
      }),
      { maxLength: 5 },
    )
    .map((tasks): Task[] =>
      tasks.map((pairs, i) => ({ id: `t${i}`, units: pairs.map((p) => p[0]), seconds: pairs.map((p) => p[1]) })),
    );
/** Convex on consecutive units. */
const convexTasks = fc
  .array(
    fc.record({ from: fc.integer({ min: 1, max: 3 }), last: seconds, gains: fc.array(seconds, { maxLength: 5 }) }),
    { maxLength: 5 },
  )
  .map((tasks): Task[] =>
    tasks.map(({ from, last, gains }, i) => {
      const ascending = [...gains].sort((a, b) => a - b);
      const values = [last];
      for (const gain of ascending) values.unshift(values[0]! + gain);
      return { id: `t${i}`, units: values.map((_, k) => from + k), seconds: values };
    }),
  );
/** Convex over doubling units: marginal gain alone is not exact here. */
const doublingTasks = fc
  .array(fc.array(seconds, { minLength: 1, maxLength: 4 }), { maxLength: 6 })
  .map((tasks): Task[] =>
    tasks.map((slopes, i) => {
      const ascending = [...slopes].sort((a, b) => a - b);
      const units = ascending.map((_, k) => 2 ** k);
      const values = [1];
      for (let k = units.length - 1; k > 0; k--)
        values.unshift(values[0]! + ascending[units.length - 1 - k]! * (units[k]! - units[k - 1]!));
      return { id: `t${i}`, units, seconds: values };
    }),
  );

function bruteForcePool(tasks: readonly Task[], free: number): number | null {
  let best: number | null = null;
  const visit = (i: number, left: number, sum: number): void => {
    if (left < 0) return;
    if (i === tasks.length) {
      if (best === null || sum < best) best = sum;
      return;
    }
    for (const [k, u] of tasks[i]!.units.entries()) visit(i + 1, left - u, sum + tasks[i]!.seconds[k]!);
  };
  visit(0, free, 0);
  return best;
}

/** Device by device: every aligned interval inside one given chunk. */
function bruteForceChunks(tasks: readonly Task[], chunks: readonly Chunk[]): number | null {
  let best: number | null = null;
  const taken = new Set<string>();
  const visit = (i: number, sum: number): void => {
    if (best !== null && sum >= best) return;
    if (i === tasks.length) {
      best = sum;
      return;
    }
    tasks[i]!.units.forEach((units, k) => {
      const size = [1, 2, 4, 8].find((s) => s >= units);
      if (size === undefined) return;
      for (const chunk of chunks) {
        for (let start = chunk.start; start + size <= chunk.start + chunk.size; start += size) {
          if (start % size !== 0) continue;
          const names = Array.from({ length: size }, (_, d) => `${chunk.node}/${start + d}`);
          if (names.some((name) => taken.has(name))) continue;
          for (const name of names) taken.add(name);
          visit(i + 1, sum + tasks[i]!.seconds[k]!);
          for (const name of names) taken.delete(name);
        }
      }
    });
  };
  visit(0, 0);
  return best;
}

function expectOptimal(answer: ArrangeAnswer, best: number | null, tasks: readonly Task[]): void {
  expect(answer.feasible).toBe(best !== null);
  if (best === null) {
    expect([answer.totalSeconds, answer.allocation]).toEqual([null, null]);
    return;
  }
  expect(Math.abs(answer.totalSeconds! - best)).toBeLessThanOrEqual(1e-9 * Math.max(1, best));
  let sum = 0;
  for (const task of tasks) {
    const k = task.units.indexOf(answer.allocation![task.id]!);
    expect(k).toBeGreaterThanOrEqual(0);
    sum += task.seconds[k]!;
  }
  expect(sum).toBeCloseTo(answer.totalSeconds!, 9);
}

/** Some disjoint aligned chunks of up to three nodes. */
const chunkSets = fc
  .array(fc.tuple(fc.integer({ min: 0, max: 1 }), fc.integer({ min: 0, max: 7 }), fc.constantFrom(1, 2, 4, 8)), {
    maxLength: 8,
  })
  .map((raw) => {
    const chunks: Chunk[] = [];
    for (const [node, at, size] of raw) {
      const start = Math.floor(at / size) * size;
      const overlaps = chunks.some((c) => c.node === node && c.start < start + size && start < c.start + c.size);
      if (!overlaps) chunks.push({ node, start, size });
    }
    return chunks;
  });

describe("arrange, a pool of units", () => {
  test("both methods equal brute force on any unit sets, sparse ones included", () => {
    fc.assert(
      fc.property(anyTasks(9), fc.integer({ min: 0, max: 24 }), (tasks, free) => {
        const best = bruteForcePool(tasks, free);
        for (const method of ["auto", "dp"]) {
          const answer = solveArrange({ free, tasks }, { method });
          expectOptimal(answer, best, tasks);
          if (answer.feasible)
            expect(Object.values(answer.allocation!).reduce((a, b) => a + b, 0)).toBeLessThanOrEqual(free);
        }
      }),
      { numRuns: 600 },
    );
  });

  test("marginal gain equals brute force where durations are convex, also when units double", () => {
    fc.assert(
      fc.property(fc.oneof(convexTasks, doublingTasks), fc.integer({ min: 0, max: 24 }), (tasks, free) => {
        expectOptimal(solveArrange({ free, tasks }, { method: "greedy" }), bruteForcePool(tasks, free), tasks);
      }),
      { numRuns: 600 },
    );
  });

  test("the bounded table equals the whole table on larger instances", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 2 ** 30 }), fc.integer({ min: 60, max: 240 }), (seed, free) => {
        let state = seed;
        const draw = (n: number): number => {
          state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
          return Math.floor((state / 2 ** 32) * n);
        };
        const tasks = Array.from({ length: 40 }, (_, i) => {
          const units = [...new Set(Array.from({ length: 1 + draw(6) }, () => 1 + draw(16)))];
          return { id: `t${i}`, units, seconds: units.map((u) => (1 + draw(500)) / (1 + draw(2) * u)) };
        });
        const whole = solveArrange({ free, tasks }, { method: "dp" });
        const bounded = solveArrange({ free, tasks });
        expect(bounded.feasible).toBe(whole.feasible);
        if (whole.feasible)
          expect(Math.abs(bounded.totalSeconds! - whole.totalSeconds!)).toBeLessThanOrEqual(1e-9 * whole.totalSeconds!);
      }),
      { numRuns: 60 },
    );
  });

  test("the example of three tasks gets exactly the units that pay", () => {
    const answer = solveArrange({
      free: 6,
      tasks: [
        { id: "a", units: [1, 2, 4, 8], seconds: [60, 31, 17, 10] },
        { id: "b", units: [1], seconds: [2] },
      ],
    });
    expect(answer).toMatchObject({ feasible: true, totalSeconds: 19, allocation: { a: 4, b: 1 } });
  });

  test("greedy is refused where it would not be exact, with the field and the remedy", () => {
    const tasks = [{ id: "a", units: [1, 2, 3], seconds: [10, 9, 2] }];
    expect(() => solveArrange({ free: 3, tasks }, { method: "greedy" })).toThrow(
      /tasks\[0\]\.seconds: .* use method 'dp'/,
    );
    expect(() => solveArrange({ chunks: [], tasks }, { method: "greedy" })).toThrow(TreadleError);
  });

  test.each([
    [{ free: -1, tasks: [] }, /free/],
    [{ tasks: [] }, /free/],
    [{ free: 3, tasks: [{ id: "a", units: [1, 2], seconds: [1] }] }, /tasks\[0\]\.seconds/],
    [{ free: 3, tasks: [{ id: "a", units: [0], seconds: [1] }] }, /tasks\[0\]\.units\[0\].*'0'/],
    [{ chunks: [{ node: 0, start: 2, size: 4 }], tasks: [] }, /chunks\[0\]\.start.*'2'/],
    [
      {
        chunks: [
          { node: 0, start: 0, size: 4 },
          { node: 0, start: 2, size: 2 },
        ],
        tasks: [],
      },
      /chunks\[1\].*two chunks/,
    ],
  ])("bad input %j names the field", (input, message) => {
    expect(() => solveArrange(input)).toThrow(message);
  });
});

describe("arrange, buddy chunks", () => {
  test("equals brute force over every aligned interval of fragmented chunks, and the placement exists", () => {
    fc.assert(
      fc.property(anyTasks(9), chunkSets, (tasks, chunks) => {
        const small = tasks.slice(0, 4);
        const answer = solveArrange({ chunks, tasks: small });
        expectOptimal(answer, bruteForceChunks(small, chunks), small);
        const devices = new Set<string>();
        for (const task of answer.feasible ? small : []) {
          const { node, start, size } = answer.placement![task.id]!;
          const units = answer.allocation![task.id]!;
          expect(start % size).toBe(0);
          expect(size).toBe([1, 2, 4, 8].find((s) => s >= units));
          expect(chunks.some((c) => c.node === node && c.start <= start && start + size <= c.start + c.size)).toBe(
            true,
          );
          for (let d = start; d < start + size; d++) {
            expect(devices.has(`${node}/${d}`)).toBe(false);
            devices.add(`${node}/${d}`);
          }
        }
      }),
      { numRuns: 400 },
    );
  });

  test("two chunks of two do not serve a task of four", () => {
    const chunks = [
      { node: 0, start: 0, size: 2 },
      { node: 0, start: 6, size: 2 },
    ];
    expect(solveArrange({ chunks, tasks: [{ id: "r", units: [4], seconds: [1] }] }).feasible).toBe(false);
    expect(solveArrange({ chunks, tasks: [{ id: "r", units: [2, 4], seconds: [3, 1] }] }).allocation).toEqual({ r: 2 });
  });
});
