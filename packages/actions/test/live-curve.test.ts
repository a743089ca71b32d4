import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { LiveCurve } from "../src/formulation/live-curve.ts";
import { ActionHistory, ActionSpec, type Elasticity, efficiencyAt, secondsAt } from "../src/index.ts";

const units = [1, 2, 3, 4, 6, 8];

const shapes = fc.oneof(
  fc.double({ min: 0, max: 1, noNaN: true }).map((serialShare): Elasticity => ({ type: "amdahl", serialShare })),
  fc.double({ min: 0, max: 1, noNaN: true }).map((exponent): Elasticity => ({ type: "power", exponent })),
  // Never slower on more units, never more than so many times as fast.
  fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 5, maxLength: 5 }).map((gains): Elasticity => {
    let efficiency = 1;
    const points = units.map((count, i) => {
      if (i > 0) efficiency *= (units[i - 1]! / count) ** (1 - gains[i - 1]!);
      return { units: count, efficiency };
    });
    return { type: "table", points };
  }),
);

/** Draws from a seed, evenly; a stream of fast-check keeps all that it drew. */
const draws = fc.integer().map((seed) => {
  let state = seed;
  const uniform = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return { units: () => units[Math.floor(uniform() * units.length)]!, noise: () => 2 * uniform() - 1 };
});

const on = (shape: Elasticity, count: number): number => secondsAt(shape, count, 1)!;
const meanSquare = (values: readonly number[]): number => values.reduce((sum, v) => sum + v * v, 0) / values.length;

/** Root mean square of the logarithm of predicted over true seconds, at all numbers of units. */
const errorOf = (predicted: (count: number) => number, truth: (count: number) => number): number =>
  Math.sqrt(meanSquare(units.map((count) => Math.log(predicted(count) / truth(count)))));

/** The least error of any Amdahl curve, by trying them all. */
function leastError(truth: (count: number) => number): number {
  const errors = Array.from({ length: 401 }, (_, i) => {
    const logs = units.map((count) =>
      Math.log(on({ type: "amdahl", serialShare: (i / 400) ** 2 }, count) / truth(count)),
    );
    const mean = logs.reduce((sum, value) => sum + value, 0) / logs.length;
    return Math.sqrt(meanSquare(logs.map((value) => value - mean)));
  });
  return Math.min(...errors);
}

const specOf = (elasticity: Elasticity | undefined, more: object = {}) =>
  ActionSpec.parse({ kind: "suite", cost: { cpu: [...units] }, key: "cpu", elasticity, ...more });

const predictionOf = (history: ActionHistory, spec: ActionSpec) => {
  const { elasticity, oneUnitSeconds } = history.expect(spec);
  return (count: number): number => secondsAt(elasticity!, count, oneUnitSeconds)!;
};

describe("a curve that executions contradict", () => {
  test("LC1, LC2, LC3: it is learned anew, nearly as well as any curve of Amdahl could be, and better than the stale one", () => {
    let numLearned = 0;
    fc.assert(
      fc.property(
        ...[shapes, shapes, draws],
        fc.record({
          stated: fc.boolean(),
          before: fc.nat({ max: 80 }),
          slower: fc.double({ min: 0.3, max: 4, noNaN: true }),
          spread: fc.double({ min: 0, max: 0.2, noNaN: true }),
        }),
        (old, now, draw, { stated, before, slower, spread }) => {
          const spec = specOf(old, stated ? { duration: 10 } : {});
          const history = new ActionHistory();
          const truth = (count: number): number => 10 * slower * on(now, count);
          const run = (of: (count: number) => number): void => {
            const count = draw.units();
            history.observe(spec, count, of(count) * Math.exp(spread * draw.noise()));
          };
          for (let i = 0; i < before; i++) run((count) => 10 * on(old, count));
          for (let i = 0; i < 300; i++) run(truth);
          const error = errorOf(predictionOf(history, spec), truth);
          // As if only its seconds on one unit had followed, which they always do.
          const ratios = units.map((count) => truth(count) / on(old, count));
          const scale = ratios.reduce((sum, ratio) => sum + ratio, 0) / ratios.length;
          const stale = errorOf((count) => scale * on(old, count), truth);
          const { source } = history.report().get("suite")!;
          if (source === "measured") {
            numLearned++;
            expect(error).toBeLessThan(leastError(truth) + 0.3);
            expect(error).toBeLessThan(Math.max(0.3, stale));
          }
          expect(error).toBeLessThan(leastError(truth) + 0.3);
        },
      ),
      { numRuns: 150 },
    );
    expect(numLearned).toBeGreaterThan(30);
  });

  /** of streams of 600 executions that follow what was stated: those in which another shape was found, and another scale */
  const falseAlarms = (spread: number, numStreams: number): { shape: number; scale: number } => {
    const alarms = { shape: 0, scale: 0 };
    for (const [shape, draw] of fc.sample(fc.tuple(shapes, draws), numStreams)) {
      const curve = new LiveCurve((count) => on(shape, count), units, true);
      const found = { shape: false, scale: false };
      for (let i = 0; i < 600; i++) {
        const count = draw.units();
        curve.observe(count, on(shape, count) * Math.exp(spread * draw.noise()));
        found.shape ||= curve.serialShare !== undefined;
        found.scale ||= curve.scale !== 1;
      }
      alarms.shape += Number(found.shape);
      alarms.scale += Number(found.scale);
    }
    return alarms;
  };

  test("LC1, LC3: it is not while executions follow it, and seldom where durations spread over a factor of ten", () => {
    for (const spread of [0, 0.05]) expect(falseAlarms(spread, 30)).toEqual({ shape: 0, scale: 0 });
    // One in 170 and one in 20 are expected.
    const { shape, scale } = falseAlarms(Math.log(10) / 2, 100);
    expect(shape).toBeLessThanOrEqual(5);
    expect(scale).toBeLessThanOrEqual(20);
  });

  test("LC3: durations that all change are no change of the shape, also where each number of units has a time of its own", () => {
    fc.assert(
      fc.property(shapes, fc.double({ min: 2, max: 5, noNaN: true }), fc.boolean(), (shape, slower, isLonger) => {
        const factor = isLonger ? slower : 1 / slower;
        const curve = new LiveCurve((count) => on(shape, count), units, true);
        for (let i = 0; i < 60; i++) curve.observe(1, on(shape, 1));
        for (let i = 0; i < 60; i++) curve.observe(8, factor * on(shape, 8));
        expect(curve.serialShare).toBeUndefined();
        expect(curve.scale).toBeCloseTo(factor, 6);
      }),
    );
  });

  test("is found by trying other units, where all executions were on as many; at a bounded price", () => {
    fc.assert(
      fc.property(fc.constantFrom(...units), draws, (usual, draw) => {
        const stated: Elasticity = { type: "amdahl", serialShare: usual === 1 ? 1 : 0 };
        const curve = new LiveCurve((count) => on(stated, count), units, false);
        const run = (seconds: (count: number) => number, times: number): number => {
          let probes = 0;
          for (let i = 0; i < times; i++) {
            const probe = curve.probe();
            if (probe !== undefined) probes++;
            const count = probe ?? usual;
            expect(units).toContain(count);
            expect(count === usual / 2 || probe === undefined || usual === 1 || usual === 3).toBe(true);
            curve.observe(count, seconds(count) * Math.exp(0.05 * draw.noise()));
          }
          return probes;
        };
        expect(run((count) => on(stated, count), 8)).toBeLessThanOrEqual(2);
        run((count) => on(stated, count), 200);
        expect(run((count) => on(stated, count), 330)).toBeLessThanOrEqual(11);
        expect(curve.serialShare).toBeUndefined();
        run((count) => on({ type: "amdahl", serialShare: usual === 1 ? 0 : 1 }, count), 120);
        expect(Math.abs(curve.serialShare! - (usual === 1 ? 0 : 1))).toBeLessThan(0.25);
      }),
    );
  });
});

describe("what is expected of an action", () => {
  const perfect: Elasticity = { type: "amdahl", serialShare: 0 };
  const stored = new Map([
    ["suite", { elasticity: perfect, duration: 12, resource: "cpu", units: { min: 1, max: 8 } }],
  ]);
  const flat = (): number => 3;
  const teach = (history: ActionHistory, spec: ActionSpec, seconds: (count: number) => number): void => {
    for (let i = 0; i < 60; i++) history.observe(spec, units[i % 6]!, seconds(units[i % 6]!));
  };

  test("HE1: is its own curve, then the stored one of its kind, until executions say otherwise", () => {
    const history = new ActionHistory(stored);
    const own: Elasticity = { type: "power", exponent: 0.5 };
    expect(history.complete(specOf(own)).elasticity).toEqual(own);
    const spec = history.complete(specOf(undefined));
    expect(history.expect(spec)).toEqual({ elasticity: perfect, oneUnitSeconds: 12 });
    expect(history.complete(ActionSpec.parse({ kind: "suite", cost: { cpu: 1 } })).elasticity).toBeUndefined();
    history.observe(spec, 2, 4);
    expect(history.expect(spec).oneUnitSeconds).toBe(8);
    expect(history.report().get("suite")).toMatchObject({ source: "stored" });
    teach(history, spec, flat);
    expect(units.map((count) => predictionOf(history, spec)(count))).toEqual(units.map(() => expect.closeTo(3, 1)));
    const { source, predictionError, efficiency } = history.report().get("suite")!;
    expect(source).toBe("measured");
    expect(predictionError).toBeLessThan(0.3);
    expect(efficiency.at(-1)).toEqual({ units: 8, efficiency: expect.closeTo(1 / 8, 2) });
    // A curve that is stated anew begins anew.
    expect(history.expect(specOf(own)).elasticity).toEqual(own);
  });

  test("HE1: a client that computes its curve each time is learned of as one that states the same, and another curve is not", () => {
    let state = 0;
    const nearly = (shape: Elasticity & { type: "amdahl" }): Elasticity => {
      state = (state + 0.618_033_988_749_895) % 1;
      return { ...shape, serialShare: shape.serialShare * (1 + 1e-3 * (state - 0.5)) };
    };
    fc.assert(
      fc.property(fc.double({ min: 0.01, max: 0.4, noNaN: true }), fc.nat({ max: 79 }), (serialShare, waiting) => {
        const shape = { type: "amdahl", serialShare } as const;
        const [exact, computed] = [new ActionHistory(), new ActionHistory()];
        // Some were asked about before anything had ended.
        const early = Array.from({ length: waiting }, () => specOf(nearly(shape)));
        for (const spec of early) computed.expect(spec);
        for (let i = 0; i < 80; i++) {
          exact.observe(specOf(shape), units[i % 6]!, 3);
          computed.observe(early[i] ?? specOf(nearly(shape)), units[i % 6]!, 3);
          expect(computed.probe(specOf(nearly(shape)), 8)).toBe(exact.probe(specOf(shape), 8));
        }
        const [told, wanted] = [predictionOf(computed, specOf(nearly(shape))), predictionOf(exact, specOf(shape))];
        for (const count of units) expect(told(count) / wanted(count)).toBeCloseTo(1, 2);
        expect(computed.report().get("suite")!.source).toBe(exact.report().get("suite")!.source);
        const other: Elasticity = { type: "amdahl", serialShare: serialShare + 0.1 };
        expect(computed.expect(specOf(other)).elasticity).toEqual(other);
      }),
      { numRuns: 40 },
    );
  });

  test("HE1: a stated duration that is wrong for all is corrected, one that is right for each is not", () => {
    const history = new ActionHistory();
    for (let i = 0; i < 60; i++) history.observe(specOf(perfect, { duration: 10 }), units[i % 6]!, 30 / units[i % 6]!);
    expect(history.expect(specOf(perfect, { duration: 20 })).oneUnitSeconds).toBeCloseTo(60, 6);
    const exact = new ActionHistory();
    for (let i = 1; i < 60; i++) exact.observe(specOf(perfect, { duration: i }), units[i % 6]!, i / units[i % 6]!);
    expect(exact.expect(specOf(perfect, { duration: 20 })).oneUnitSeconds).toBe(20);
  });

  test("HE2: what one tenant ran says nothing of another's, and other ranges of units are other actions", () => {
    const history = new ActionHistory(stored);
    teach(history, history.complete(specOf(undefined, { tenant: "a" })), flat);
    expect(history.expect(history.complete(specOf(undefined, { tenant: "b" })))).toEqual({
      elasticity: perfect,
      oneUnitSeconds: 12,
    });
    expect(history.report("b").size).toBe(0);
    const other = ActionSpec.parse({ ...specOf(perfect, { tenant: "a" }), cost: { cpu: [1, 2] } });
    expect(history.expect(other).elasticity).toEqual(perfect);
  });

  test("measured seconds and functions: the first are replaced, the second are the caller's", () => {
    const seconds: Elasticity = {
      type: "seconds",
      points: units.map((count) => ({ units: count, seconds: 9 / count })),
    };
    const history = new ActionHistory();
    teach(history, specOf(seconds), flat);
    expect(predictionOf(history, specOf(seconds))(8)).toBeCloseTo(3, 1);
    const slower = new ActionHistory();
    teach(slower, specOf(seconds), (count) => 27 / count);
    expect(predictionOf(slower, specOf(seconds))(8)).toBeCloseTo(27 / 8, 6);
    const code: Elasticity = { type: "function", efficiency: () => 1 };
    teach(history, specOf(code), flat);
    expect(efficiencyAt(history.expect(specOf(code)).elasticity!, 4)).toBe(1);
  });
});
