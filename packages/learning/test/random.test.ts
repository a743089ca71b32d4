import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { createRandom, hashString } from "../src/index.ts";
import { xoshiro128 } from "../src/random.ts";

describe("the generator", () => {
  test("is xoshiro128**, worked by hand from the state 1 2 3 4", () => {
    // rotl(2 · 5, 7) · 9 = 1280 · 9 = 11520, state 7 0 1026 12288; then s1 = 0 gives 0, state 12295 1029 1029 25165824;
    // then rotl(1029 · 5, 7) · 9 = 658560 · 9 = 5927040
    const state = Uint32Array.of(1, 2, 3, 4);
    expect([xoshiro128(state), xoshiro128(state), xoshiro128(state)]).toEqual([11520, 0, 5927040]);
  });

  test("gives the same numbers in every process", () => {
    const draw = () =>
      Array.from(
        { length: 3 },
        (
          (random) => () =>
            random.uint32()
        )(createRandom(42)),
      );
    expect(draw()).toEqual(draw());
    // Runs made by earlier versions continue only if these never change.
    expect(draw()).toEqual([707665324, 2949256358, 3669283592]);
  });

  test("is uniform over small bounds and over the unit interval", () => {
    const random = createRandom("uniform");
    const counts = new Array<number>(7).fill(0);
    let sum = 0;
    const draws = 70_000;
    for (let draw = 0; draw < draws; draw++) {
      counts[random.integer(7)]! += 1;
      sum += random.float();
    }
    // chi-squared with 6 degrees of freedom: 22.5 has probability 0.001; the seed is fixed
    expect(counts.reduce((total, count) => total + (count - 10_000) ** 2 / 10_000, 0)).toBeLessThan(22.5);
    expect(sum / draws).toBeCloseTo(0.5, 2);
  });

  test("has no modulo bias where it would show most", () => {
    // Taken modulo 3 · 2^30, words from 3 · 2^30 on would land in the first third again: a share of 1/2 instead of 1/3.
    const random = createRandom("bias");
    const draws = Array.from({ length: 20_000 }, () => random.integer(3 * 2 ** 30));
    expect(draws.filter((drawn) => drawn < 2 ** 30).length / draws.length).toBeCloseTo(1 / 3, 1);
  });

  test("stays below its bound and shuffles without loss", () => {
    fc.assert(
      fc.property(fc.integer(), fc.integer({ min: 1, max: 2 ** 32 }), fc.array(fc.nat()), (seed, bound, items) => {
        const random = createRandom(seed);
        const drawn = random.integer(bound);
        expect(drawn >= 0 && drawn < bound).toBe(true);
        expect(random.shuffle(items).sort((a, b) => a - b)).toEqual([...items].sort((a, b) => a - b));
      }),
    );
    expect(() => createRandom(0).integer(0)).toThrow(/bound is '0'/);
    expect(() => createRandom(0.5)).toThrow(/label is '0.5'/);
  });
});

describe("splitting", () => {
  test("does not depend on what was drawn, nor change what will be", () => {
    const fresh = createRandom(1);
    const used = createRandom(1);
    used.uint32();
    expect(used.split("a").uint32()).toBe(fresh.split("a").uint32());
    const untouched = createRandom(1);
    expect(fresh.uint32()).toBe(untouched.uint32());
  });

  test("gives different streams for different labels, paths and types", () => {
    const root = createRandom(1);
    const streams = [
      root,
      createRandom(2),
      createRandom("1"),
      createRandom(-1),
      createRandom(2 ** 32 + 1),
      root.split(1),
      root.split("1"),
      root.split(0),
      root.split("ab"),
      root.split("a").split("b"),
      root.split("b").split("a"),
      root.split("").split(""),
    ];
    const firsts = streams.map((random) => `${random.uint32()} ${random.uint32()}`);
    expect(new Set(firsts).size).toBe(streams.length);
  });

  test("leaves neighbouring streams uncorrelated", () => {
    const firsts = Array.from({ length: 20_000 }, (_, step) => createRandom(0).split(step).float());
    const pairs = firsts.slice(1).map((value, step) => (value - 0.5) * (firsts[step]! - 0.5) * 12);
    // the mean of n products has deviation 1 / sqrt(n) = 0.007
    expect(Math.abs(pairs.reduce((sum, value) => sum + value, 0) / pairs.length)).toBeLessThan(0.03);
  });
});

test("the hash of a string is spread over 32 bits", () => {
  const hashes = Array.from({ length: 20_000 }, (_, index) => hashString(`problem ${index}`));
  expect(hashes.filter((hash) => hash < 2 ** 31).length / hashes.length).toBeCloseTo(0.5, 1);
  expect(new Set(hashes).size).toBeGreaterThan(19_990);
});
