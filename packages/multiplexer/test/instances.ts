import fc from "fast-check";
import { MultiplexProblem } from "../src/index.ts";

const seconds = fc.oneof(fc.integer({ min: 1, max: 9 }), fc.double({ min: 0.5, max: 9, noNaN: true }));
const share = fc.constantFrom(0, 0.2, 0.4, 0.6, 0.8, 1);
const types = ["tail", "dense", "train"] as const;

/** Graphs of up to so many sub-stages; `fasterToo`: some pairs are faster than alone. */
export const graphs = (maxLength: number, { fasterToo = false } = {}): fc.Arbitrary<MultiplexProblem> =>
  fc
    .record({
      workers: fc.integer({ min: 1, max: 2 }),
      numSplits: fc.constantFrom(1, 2, 3),
      slowdowns: fc.array(fc.double({ min: fasterToo ? 0.7 : 1, max: 3, noNaN: true }), {
        minLength: 27,
        maxLength: 27,
      }),
      window: fc.integer({ min: 1, max: 3 }),
      substages: fc.array(
        fc.record({
          pipeline: fc.constantFrom("A", "B", "C"),
          worker: fc.option(fc.nat(1), { freq: 6 }),
          type: fc.constantFrom(...types),
          dur: seconds,
          memory: fc.oneof(
            fc.constant({}),
            share.map((mem) => ({ mem })),
            fc
              .array(fc.tuple(share, fc.constantFrom(1, 1.12, 1.4)), { minLength: 1, maxLength: 2 })
              .map((memOptions) => ({ memOptions })),
          ),
          needs: fc.array(fc.nat(20), { maxLength: 2 }),
        }),
        { minLength: 1, maxLength },
      ),
    })
    .map(({ workers, numSplits, slowdowns, window, substages }) => {
      const rowOf = (p: number) =>
        Object.fromEntries(types.map((b, q) => [b, slowdowns.slice(9 * p + 3 * q, 9 * p + 3 * q + numSplits)]));
      const pair = Object.fromEntries(types.map((a, p) => [a, rowOf(p)]));
      return MultiplexProblem.parse({
        workers,
        splits: { 1: [0.5], 2: [0.3, 0.7], 3: [0.25, 0.5, 0.75] }[numSplits],
        rolloutTypes: ["tail", "dense"],
        pair,
        window,
        substages: substages.map(({ memory, needs, worker, ...rest }, i) => ({
          id: `s${i}`,
          ...rest,
          worker: worker === null ? null : worker % workers,
          ...memory,
          deps: i === 0 ? [] : [...new Set(needs.filter((at) => at < 6).map((at) => `s${at % i}`))],
        })),
      });
    });
