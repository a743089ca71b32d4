import fc from "fast-check";
import { expect, test } from "vitest";
import { createRandom, minibatchesOf } from "../src/index.ts";

test("every item comes once an epoch, in parts of nearly one size, however few items there are", () => {
  fc.assert(
    fc.property(
      fc.nat(40),
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 6 }),
      (count, epochs, minibatches) => {
        const items = Array.from({ length: count }, (_, index) => index);
        const parts = [...minibatchesOf(items, { epochs, minibatches }, createRandom(count))];
        expect(parts).toHaveLength(epochs * minibatches);
        for (let epoch = 0; epoch < epochs; epoch++) {
          const own = parts.slice(epoch * minibatches, (epoch + 1) * minibatches);
          expect(own.flat().sort((a, b) => a - b)).toEqual(items);
          const sizes = own.map((part) => part.length);
          expect(Math.max(...sizes) - Math.min(...sizes)).toBeLessThanOrEqual(1);
        }
      },
    ),
  );
});

test("epochs differ in their order, and equal seeds do not", () => {
  const items = Array.from({ length: 50 }, (_, index) => index);
  const draw = () => [...minibatchesOf(items, { epochs: 2, minibatches: 1 }, createRandom("order"))];
  const [first, second] = draw();
  expect(first).not.toEqual(second);
  expect(draw()).toEqual([first, second]);
});
