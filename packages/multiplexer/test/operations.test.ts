import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { balance, merge, multiplexMethods, problems, segment, solveMultiplex } from "../src/index.ts";

const pair = {
  tail: { tail: [1.3, 1.2, 1.1], train: [1.3, 1.1, 1.05] },
  train: { tail: [3.0, 1.8, 1.3], train: [2.9, 1.8, 1.3] },
};
const tail = { worker: 0, type: "tail", mem: 0.4 };
const train = {
  worker: 0,
  type: "train",
  memOptions: [
    [0.75, 1],
    [0.55, 1.12],
  ],
};
/** B's tool takes three seconds on the CPU; then it has a tail and a training as A has. */
const twoRuns = {
  workers: 1,
  memory: 1,
  splits: [0.25, 0.5, 0.75],
  rolloutTypes: ["tail"],
  pair,
  substages: [
    { id: "A0", pipeline: "A", ...tail, dur: 4 },
    { id: "A1", pipeline: "A", ...train, dur: 3, deps: ["A0"] },
    { id: "C", pipeline: "B", worker: null, type: "tool", dur: 3 },
    { id: "B0", pipeline: "B", ...tail, dur: 4, deps: ["C"] },
    { id: "B1", pipeline: "B", ...train, dur: 3, deps: ["B0"] },
  ],
};
const solve = (input: unknown, method?: string): Record<string, unknown> =>
  problems.multiplex.solve(input, { method }) as Record<string, unknown>;

describe("by hand", () => {
  test("serial drops what pipelines need of one another, and adds their times", () => {
    expect(solve(twoRuns, "serial")).toMatchObject({
      makespan: 17,
      perPipeline: { A: 7, B: 17 },
      throughputRatio: 1,
      substages: expect.arrayContaining([{ id: "C", start: 7, end: 10 }]),
    });
    const crossed = twoRuns.substages.map((substage) =>
      substage.id === "C" ? { ...substage, deps: ["A1"] } : substage,
    );
    expect(solve({ ...twoRuns, substages: crossed }, "serial").makespan).toBe(17);
    expect(solve({ ...twoRuns, substages: crossed }, "temporal").makespan).toBe(17);
  });

  test("temporal takes the earliest ready: B's tail, ready at 3, before A's training, ready at 4", () => {
    expect(solve(twoRuns, "temporal")).toMatchObject({
      makespan: 14,
      throughputRatio: 17 / 14,
      decisions: [
        { t: 0, worker: 0, start: [["A0", 0]], split: 0 },
        { t: 3, worker: 0, start: [], split: 0 },
        { t: 4, worker: 0, start: [["B0", 0]], split: 0 },
        { t: 8, worker: 0, start: [["A1", 0]], split: 0 },
        { t: 11, worker: 0, start: [["B1", 0]], split: 0 },
      ],
    });
  });

  test("mux runs the tails together at the middle split, and trains one at a time", () => {
    // From 3 on, A0 has 1 s left and takes 1.2; B0 has done 1 s by then and takes 3 s more.
    expect(solve(twoRuns, "mux")).toMatchObject({ makespan: expect.closeTo(13.2, 9), perPipeline: { A: 10.2 } });
    const { makespan } = solve({ ...twoRuns, rolloutTypes: [] }, "mux");
    expect(makespan).toBe(14);
  });

  test("greedy trains A beside B's tail with less memory, because that saves time", () => {
    // At 3 each split takes A0's second 1.3, 1.2 or 1.1 s and B0's own 1.1, 1.2, 1.3: 1.3 + 4 - 1.3/1.1 is the least.
    // At 4.3 B0 has 4 - 1.3/1.1 s left; beside it A1 runs at factor 1.12.
    const answer = solve(twoRuns, "greedy") as { makespan: number; decisions: { t: number }[] };
    expect(answer.decisions.slice(0, 3)).toEqual([
      { t: 0, worker: 0, start: [["A0", 0]], split: 0 },
      { t: 3, worker: 0, start: [["B0", 0]], split: 0 },
      { t: expect.closeTo(4.3, 9), worker: 0, start: [["A1", 1]], split: 0 },
    ]);
    const tailAlone = 4.3 + (4 - 1.3 / 1.1) * 1.3;
    const trained = (tailAlone - 4.3) / (1.12 * 1.3);
    expect(answer.decisions[3]!.t).toBeCloseTo(tailAlone, 9);
    expect(answer.makespan).toBeCloseTo(tailAlone + (3 - trained) * 1.12 + 3, 9);
  });

  test("of ties the first action wins: equal splits, equal sub-stages", () => {
    const same = { worker: 0, type: "x", dur: 1 };
    const substages = [
      { id: "b", pipeline: "B", ...same },
      { id: "a", pipeline: "A", ...same },
      { id: "c", pipeline: "C", ...same },
    ];
    const input = { workers: 1, splits: [0.4, 0.6], pair: { x: { x: [1.5, 1.5] } }, substages };
    for (const method of ["greedy", "playout", "lookahead", "search"]) {
      expect((solve(input, method).decisions as object[])[0]).toEqual({
        t: 0,
        worker: 0,
        start: [
          ["b", 0],
          ["a", 0],
        ],
        split: 0,
      });
    }
  });

  test("workers decide in their order, after all ends of that time", () => {
    const of = (id: string, pipeline: string, worker: number, deps: string[] = []) => ({
      ...{ id, pipeline, worker, deps },
      ...{ type: "x", dur: 2 },
    });
    const substages = [of("a1", "A", 1), of("a0", "A", 0), of("b1", "B", 1, ["a1", "a0"]), of("b0", "B", 0, ["a1"])];
    const { decisions } = solve({ workers: 2, pair: { x: { x: [1] } }, substages }, "temporal") as {
      decisions: { t: number; worker: number }[];
    };
    expect(decisions.map(({ t, worker }) => [t, worker])).toEqual([
      [0, 0],
      [0, 1],
      [2, 0],
      [2, 1],
    ]);
  });

  test("idling pays when what is about to come fits better: only the optimum and the search may", () => {
    // Beside a train the short tail is slow; alone it is over before the tool is.
    const substages = [
      { id: "tool", pipeline: "A", worker: null, type: "tool", dur: 1 },
      { id: "chain", pipeline: "A", worker: 0, type: "tail", dur: 8, mem: 0.6, deps: ["tool"] },
      { id: "long", pipeline: "B", worker: 0, type: "train", dur: 6, mem: 0.6 },
      { id: "after", pipeline: "B", worker: null, type: "tool", dur: 1, deps: ["long"] },
      { id: "last", pipeline: "A", worker: null, type: "tool", dur: 20, deps: ["chain"] },
    ];
    const input = { ...twoRuns, substages };
    expect(solve(input, "temporal").makespan).toBe(6 + 8 + 20);
    expect(solve(input, "optimum")).toMatchObject({ makespan: 1 + 8 + 20, complete: true });
  });

  test("what fits nowhere is infeasible", () => {
    const substages = [...twoRuns.substages, { id: "huge", pipeline: "C", worker: 0, type: "tail", dur: 1, mem: 1.1 }];
    for (const method of multiplexMethods) {
      expect(solve({ ...twoRuns, substages }, method)).toMatchObject({ feasible: false, makespan: null });
    }
    expect(solve({ workers: 1, substages: [] })).toMatchObject({ feasible: true, makespan: 0, throughputRatio: 1 });
  });
});

describe("operations", () => {
  test("all gives the makespan of each method but optimum", () => {
    const { stats: _, ...all } = solve({ op: "all", input: twoRuns });
    const expected = multiplexMethods.filter((method) => method !== "optimum");
    expect(all).toEqual(
      Object.fromEntries(expected.map((method) => [method, solveMultiplex(twoRuns, { method }).makespan])),
    );
  });

  const at = (t: number, ...start: [string, number][]) => ({ t, worker: 0, start, split: 1 });
  const replayed = (...decisions: object[]) => solve({ op: "replay", input: twoRuns, decisions });

  test("replay takes the first named as the first, and keeps splits where nothing is decided", () => {
    const substages = [
      { id: "t", pipeline: "A", ...tail, dur: 2 },
      { id: "u", pipeline: "B", ...train, memOptions: [[0.6, 1]], dur: 2 },
    ];
    const input = { ...twoRuns, substages };
    const of = (start: [string, number][], split: number) =>
      solve({ op: "replay", input, decisions: [{ t: 0, worker: 0, start, split }] }).makespan;
    // t first at 0.25: 2 · 1.3 s, u meanwhile at its 0.75, then 2 - 2.6/1.3 = 0 s are left of it
    expect(
      of(
        [
          ["t", 0],
          ["u", 0],
        ],
        0,
      ),
    ).toBeCloseTo(2.6, 9);
    // u first at 0.25: t ends at 2 · 1.05, u has 2 - 2.1/3 s left
    expect(
      of(
        [
          ["u", 0],
          ["t", 0],
        ],
        0,
      ),
    ).toBeCloseTo(2.1 + 1.3, 9);
    // the middle holds until t ends
    expect(
      of(
        [
          ["t", 0],
          ["u", 0],
        ],
        1,
      ),
    ).toBeCloseTo(2.2 + 2 - 2.2 / 1.8, 9);
  });

  test.each([
    ["at no decision point", [at(0, ["A0", 0]), at(2, ["B0", 0])], "at '2': no decision is due then"],
    ["twice", [at(0, ["A0", 0]), at(0, ["A0", 0])], "no decision is due then"],
    ["before it is ready", [at(0, ["A1", 0])], "'A1' is not ready there"],
    ["an unknown one", [at(0, ["Z", 0])], "'Z' is not known"],
    ["an unknown option", [at(0, ["A0", 1])], "option '1' of 'A0' is not from 0 to 0"],
    ["an unknown split", [{ ...at(0, ["A0", 0]), split: 3 }], "split '3' is not from 0 to 2"],
    ["on an unknown worker", [{ ...at(0, ["A0", 0]), worker: 1 }], "there are workers 0 to 0"],
    ["nothing", [], "'A0' is never started"],
    [
      "beyond the memory",
      [at(0, ["A0", 0]), at(4, ["A1", 0], ["B0", 0])],
      "'B0' does not fit: memory shares would add to '1.15'",
    ],
  ])("replay refuses to start %s", (_, decisions, reason) => {
    expect(replayed(...decisions)).toMatchObject({ ok: false, error: expect.stringContaining(reason) });
  });

  test("replay refuses two of one pipeline, and a third", () => {
    const of = (id: string, pipeline: string) => ({ id, pipeline, ...tail, mem: 0.1, dur: 1 });
    const input = { ...twoRuns, substages: [of("a", "A"), of("A", "A"), of("b", "B"), of("c", "C")] };
    const error = (...start: [string, number][]) => solve({ op: "replay", input, decisions: [at(0, ...start)] }).error;
    expect(error(["a", 0], ["A", 0])).toContain("'A' would run beside another of its pipeline");
    expect(error(["a", 0], ["b", 0], ["c", 0])).toContain("'c' would be the third on its worker");
  });

  test("segment changes bucket once another held, dated at the first of its entries", () => {
    const tokens = [5, 2000, 2000, 5, 128, 128, 128, 127, 2000, 2000, 2000];
    expect(solve({ op: "segment", tokens, edges: [128, 1024], stable: 3 }).segments).toEqual([
      { bucket: 0, start: 0, end: 4 },
      { bucket: 1, start: 4, end: 8 },
      { bucket: 2, start: 8, end: 11 },
    ]);
    expect(segment({ tokens: [], edges: [1], stable: 2 })).toEqual([]);
    expect(segment({ tokens: [0, 1, 0], edges: [1], stable: 1 })).toHaveLength(3);
  });

  test("segments cover all entries, and their buckets differ from one to the next", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(8)), fc.integer({ min: 1, max: 4 }), (tokens, stable) => {
        const segments = segment({ tokens, edges: [2, 5], stable });
        expect(segments.at(-1)?.end ?? 0).toBe(tokens.length);
        for (const [i, { bucket, start, end }] of segments.entries()) {
          expect(start).toBe(segments[i - 1]?.end ?? 0);
          if (i === 0) continue;
          expect(bucket).not.toBe(segments[i - 1]!.bucket);
          const first = tokens
            .slice(start, start + stable)
            .map((count) => [2, 5].filter((edge) => edge <= count).length);
          expect(first).toEqual(new Array(stable).fill(bucket));
          expect(end - start).toBeGreaterThanOrEqual(stable);
        }
      }),
    );
  });

  test("merge weighs each target, and takes none that saves nothing", () => {
    const tails = [
      { T: 10, s: 1.2, partnerT: 8, partnerS: 1.5, migrate: 0.5 },
      { T: 6, s: 1.1, partnerT: 12, partnerS: 1.4, migrate: 0.25 },
    ];
    // origin: 12 + 16.8; to 0: 11 + 0.25 + max(1.6 · 8, 12); to 1: 11 + 0.5 + max(1.3 · 12, 8)
    const answer = merge({ tails, mergedT: 11, partnerSOnMerged: [1.6, 1.3] });
    expect(answer.rows.map(({ delta }) => delta)).toEqual([
      expect.closeTo(28.8 - 24.05, 9),
      expect.closeTo(28.8 - 27.1, 9),
    ]);
    expect(answer).toMatchObject({ best: 0, delta: expect.closeTo(4.75, 9) });
    expect(merge({ tails, mergedT: [30, 27.4], partnerSOnMerged: 1.6 })).toMatchObject({
      best: null,
      delta: expect.closeTo(28.8 - 30 - 0.25 - 12.8, 9),
    });
    const equal = { T: 1, s: 1, partnerT: 1, partnerS: 1, migrate: 0 };
    expect(merge({ tails: [equal, equal], mergedT: 0.5, partnerSOnMerged: 1 }).best).toBe(0);
  });

  test("balance gives the slowed worker less, so that all end together", () => {
    expect(solve({ op: "balance", total: 100, workers: 4, target: 1, slowdown: 1.5 })).toMatchObject({
      real: [
        expect.closeTo(27.2727, 4),
        expect.closeTo(18.1818, 4),
        expect.closeTo(27.2727, 4),
        expect.closeTo(27.2727, 4),
      ],
      batch: [28, 18, 27, 27],
      timeTarget: 27,
      timeOthers: 28,
    });
    expect(balance({ total: 7, workers: 1, target: 0, slowdown: 3, a: 1, c: 2 })).toEqual({
      real: [7],
      batch: [7],
      timeTarget: 45,
      timeOthers: 0,
    });
    expect(balance({ total: 4, workers: 3, target: 0, slowdown: 2, a: 100, c: 1 }).batch).toEqual([0, 2, 2]);
  });

  test("a balanced batch has every row, and its real shares end together unless the target gets none", () => {
    const whole = fc.integer({ min: 1, max: 9 });
    fc.assert(
      fc.property(
        fc.nat(300),
        whole,
        fc.nat(8),
        fc.double({ min: 1, max: 4, noNaN: true }),
        fc.nat(5),
        whole,
        (...drawn) => {
          const [total, workers, target, slowdown, a, c] = drawn;
          const input = { total, workers, target: target % workers, slowdown, a, c };
          const { real, batch } = balance(input);
          expect(batch.reduce((sum, rows) => sum + rows, 0)).toBe(total);
          for (const [i, rows] of batch.entries()) expect(Math.abs(rows - real[i]!)).toBeLessThan(1 + 1e-6);
          const y = real[input.target]!;
          const x = real.find((_, i) => i !== input.target);
          if (x !== undefined && y > 0) expect(a + c * x).toBeCloseTo(slowdown * (a + c * y), 5);
        },
      ),
    );
  });
});

describe("refuses", () => {
  const withFirst = (changed: object) => ({
    ...twoRuns,
    substages: [{ ...twoRuns.substages[0], ...changed }, ...twoRuns.substages.slice(1)],
  });
  test.each([
    [withFirst({ deps: ["X"] }), "substages[0].deps[0]: 'X' is not allowed: expected the id of a sub-stage"],
    [withFirst({ deps: ["A1"] }), "expected no circle, but 'A0' needs 'A1' needs 'A0'"],
    [withFirst({ deps: ["A0"] }), "expected no circle, but 'A0' needs 'A0'"],
    [withFirst({ id: "B0" }), "substages[3].id: 'B0' is not allowed: expected an id that no other sub-stage has"],
    [withFirst({ worker: 1 }), "substages[0].worker: '1' is not allowed: expected null or a worker from 0 to 0"],
    [withFirst({ worker: -1 }), "substages[0].worker: '-1'"],
    [withFirst({ dur: 0 }), "substages[0].dur: '0'"],
    [withFirst({ mem: undefined, memOptions: [[0.4, 0]] }), "substages[0].memOptions[0][1]: '0'"],
    [withFirst({ memOptions: [[0.4, 1]] }), "expected either 'mem' or 'memOptions', not both"],
    [withFirst({ color: 1 }), "substages[0].color: the key is not known"],
    [{ ...twoRuns, splits: [0.25, 0.5, 0.7] }, "splits[0]: '0.25' is not allowed: expected a share that adds to 1"],
    [
      { ...twoRuns, pair: { tail: pair.tail } },
      "pair.train.tail: is missing: expected the slowdowns of 'train' beside",
    ],
    [{ ...twoRuns, pair: { ...pair, tail: { ...pair.tail, tail: [1, 1, 0] } } }, "pair.tail.tail[2]: '0'"],
    [
      { ...twoRuns, pair: { ...pair, tail: { ...pair.tail, tail: [1, 1] } } },
      "expected one slowdown a split, 3 in all",
    ],
    [{ op: "al" }, "op: 'al' is not allowed"],
    [{ op: "all", input: withFirst({ dur: -1 }) }, "input.substages[0].dur: '-1'"],
    [{ op: "segment", tokens: [1], edges: [5, 5] }, "expected ascending edges"],
    [{ op: "merge", tails: [], mergedT: 1, partnerSOnMerged: 1 }, "tails"],
    [
      {
        op: "merge",
        tails: [{ T: 1, s: 1, partnerT: 1, partnerS: 1, migrate: 0 }],
        mergedT: [1, 2],
        partnerSOnMerged: 1,
      },
      "mergedT: '[1,2]' is not allowed: expected one number, or one a tail",
    ],
    [{ op: "balance", total: 1, workers: 2, target: 2, slowdown: 1 }, "target: '2' is not allowed: expected one of"],
    [{ op: "balance", total: 1, workers: 2, target: 0, slowdown: 0 }, "slowdown: '0'"],
  ])("%j", (input, message) => {
    try {
      solve(input);
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      expect(error.code).toBe("problem.invalid");
      expect(error.message).toContain(message);
    }
  });

  test("an unknown method, and a pair that is missing only where two may meet", () => {
    expect(() => solve(twoRuns, "fast")).toThrow("method: 'fast' is not known");
    const never = { tail: { ...pair.tail }, train: { tail: pair.train.tail } };
    // two trainings take 1.1 of the memory at least
    expect(solve({ ...twoRuns, pair: never }, "temporal").makespan).toBe(14);
    expect(() => solve({ ...twoRuns, memory: 1.1, pair: never })).toThrow("pair.train.train: is missing");
  });
});
