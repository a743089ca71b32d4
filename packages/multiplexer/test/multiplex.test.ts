import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compile, type MultiplexProblem, multiplexMethods, replay, solveMultiplex } from "../src/index.ts";
import { graphs } from "./instances.ts";
import { bruteForce, finish, greedy, lookahead, mux, playout, temporal, World } from "./reference.ts";

const makespanOf = (input: MultiplexProblem, method: string): number => solveMultiplex(input, { method }).makespan!;

/** What a drawn run of `replay` allows is what the plain rules allow: pairs and memory are judged by neither's own code. */
function expectAllowed(input: MultiplexProblem, method: string): void {
  const answer = solveMultiplex(input, { method });
  const { substages, memory } = input;
  const span = new Map(answer.substages.map(({ id, start, end }) => [id, { start, end }]));
  const shareOf = new Map<string, number>();
  for (const { start } of answer.decisions) {
    for (const [id, option] of start) {
      const { mem, memOptions } = substages.find((substage) => substage.id === id)!;
      shareOf.set(id, memOptions?.[option]?.[0] ?? mem ?? 0);
    }
  }
  for (const { id, deps, dur, worker } of substages) {
    const { start, end } = span.get(id)!;
    for (const dep of deps) expect(start, "MX3").toBeGreaterThanOrEqual(span.get(dep)!.end);
    if (worker === null) expect(end - start).toBeCloseTo(dur, 6);
    else
      expect(answer.decisions.filter((decision) => decision.start.some(([started]) => started === id))).toHaveLength(1);
  }
  for (const { id, worker, pipeline } of substages) {
    if (worker === null) continue;
    const { start } = span.get(id)!;
    const beside = substages.filter((other) => {
      const there = span.get(other.id)!;
      return other.worker === worker && there.start <= start && there.end > start && other.id !== id;
    });
    expect(beside.length, "MX1").toBeLessThanOrEqual(1);
    for (const other of beside) expect(other.pipeline, "MX1").not.toBe(pipeline);
    const shares = [id, ...beside.map((other) => other.id)].reduce((sum, at) => sum + shareOf.get(at)!, 0);
    expect(shares, "MX2").toBeLessThanOrEqual(memory * (1 + 1e-9));
  }
  expect(Math.max(...answer.substages.map(({ end }) => end))).toBe(answer.makespan);
}

const inLine = ["temporal", "mux", "greedy", "lookahead", "playout"];

describe("multiplex", () => {
  test("policies decide what the plain rules say", () => {
    fc.assert(
      fc.property(graphs(9, { fasterToo: true }), (input) => {
        const plain = { temporal, mux, greedy, playout, lookahead: lookahead(input.window) };
        for (const [method, decide] of Object.entries(plain)) {
          expect(makespanOf(input, method), method).toBeCloseTo(finish(new World(input), decide), 6);
        }
      }),
      { numRuns: 80 },
    );
  });

  test("what every method but serial answers is allowed, and replay confirms it (MX1, MX2, MX3, MX4)", () => {
    fc.assert(
      fc.property(graphs(9), (input) => {
        for (const method of multiplexMethods) {
          if (method === "serial") continue;
          const { makespan, decisions } = solveMultiplex({ ...input, limit: 500 }, { method });
          expect(replay(compile(input), decisions), method).toEqual({
            ok: true,
            makespan: expect.closeTo(makespan!, 6),
          });
          expectAllowed({ ...input, limit: 500 }, method);
        }
      }),
      { numRuns: 40 },
    );
  });

  test("optimum is the best of every action at every point", () => {
    fc.assert(
      fc.property(graphs(4, { fasterToo: true }), (input) => {
        const answer = solveMultiplex(input, { method: "optimum" });
        expect(answer.complete).toBe(true);
        expect(answer.makespan).toBeCloseTo(bruteForce(input), 6);
      }),
      { numRuns: 150 },
    );
  });

  test("no method is below the optimum nor search above greedy, lookahead and playout; bounds are below all", () => {
    fc.assert(
      fc.property(graphs(8), (input) => {
        const all = Object.fromEntries(multiplexMethods.map((method) => [method, solveMultiplex(input, { method })]));
        const { optimum, search, greedy, lookahead, playout } = all as Record<string, { makespan: number }>;
        for (const method of [...inLine, "search"]) {
          expect(optimum!.makespan, method).toBeLessThanOrEqual(all[method]!.makespan! * (1 + 1e-9));
        }
        for (const other of [greedy!, lookahead!, playout!]) {
          expect(search!.makespan).toBeLessThanOrEqual(other.makespan);
        }
        expect(all.search!.stats.bound).toBeLessThanOrEqual(all.search!.makespan! * (1 + 1e-9));
      }),
      { numRuns: 40 },
    );
  });

  test("search is within half a percent of the optimum on average", () => {
    const ratios = fc.sample(graphs(7), 80).map((input) => makespanOf(input, "search") / makespanOf(input, "optimum"));
    expect(ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length).toBeLessThanOrEqual(1.005);
  });

  test("search answers with the best so far when its time is up", () => {
    const [input] = fc.sample(
      graphs(12).filter(({ substages }) => substages.length > 9),
      1,
    ) as [MultiplexProblem];
    let now = 0;
    const answer = solveMultiplex(input, { deadlineMs: 0, nowMs: () => now++ });
    expect(replay(compile(input), answer.decisions).ok).toBe(true);
    expect(answer.makespan).toBeLessThanOrEqual(makespanOf(input, "greedy"));
  });
});
