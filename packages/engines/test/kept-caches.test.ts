import { expect, test } from "vitest";
import { KeptCaches } from "../src/embedded/kept-caches.ts";
import { Draws } from "./support/draws.ts";

const random = new Draws(Number(process.env["TREADLE_SEED"])).split("kept caches");
const numbered = (...tokens: number[]) => Int32Array.from(tokens);

test("KV2: a cache is given once, to what goes on behind its tokens", () => {
  const kept = new KeptCaches(2);
  kept.keep(1, numbered(5, 6), 70);
  expect(kept.take(2, numbered(5, 6, 7))).toBeUndefined();
  expect(kept.take(1, numbered(5, 7, 7))).toBeUndefined();
  // Who chooses a token reads the one before it.
  expect(kept.take(1, numbered(5, 6))).toBeUndefined();
  expect(kept.take(1, numbered(5, 6, 7))).toEqual({ cache: 70, numTokens: 2 });
  expect(kept.take(1, numbered(5, 6, 7))).toBeUndefined();
});

test("KV1, KV3: whatever is kept and taken, each cache is in one place, and the one kept first goes first", () => {
  const size = 3;
  const kept = new KeptCaches(size);
  let inside: { readonly key: number; readonly cache: number }[] = [];
  const outside = Array.from({ length: 8 }, (_, at) => at);
  for (let step = 0; step < 300; step++) {
    const draws = random.split(`${step}`);
    const key = draws.integer(6);
    const cache = outside[0];
    if (draws.float() < 0.6 && cache !== undefined) {
      outside.shift();
      const leaving = inside.find((one) => one.key === key) ?? (inside.length === size ? inside[0] : undefined);
      expect(kept.keep(key, numbered(key), cache)).toBe(leaving?.cache);
      if (leaving) outside.push(leaving.cache);
      inside = [...inside.filter((one) => one !== leaving), { key, cache }];
    } else {
      const there = inside.find((one) => one.key === key);
      expect(kept.take(key, numbered(key, 1))?.cache).toBe(there?.cache);
      if (there) outside.push(there.cache);
      inside = inside.filter((one) => one !== there);
    }
  }
  kept.clear();
  for (const { key } of inside) expect(kept.take(key, numbered(key, 1))).toBeUndefined();
});
