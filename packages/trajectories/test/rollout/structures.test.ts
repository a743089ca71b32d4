import fc from "fast-check";
import { expect, test } from "vitest";
import { inverseNormal } from "../../src/normal.ts";
import { queueAwareFactor } from "../../src/rollout/groups.ts";
import { IndexedHeap } from "../../src/rollout/indexed-heap.ts";
import { LeastTree } from "../../src/rollout/least-tree.ts";
import { RankedSet } from "../../src/rollout/ranked-set.ts";

const capacity = 24;
const changes = fc.array(fc.tuple(fc.nat(capacity - 1), fc.nat(5)), { maxLength: 80 });

test("ranks are places in the sorted order, as values come, change and go", () => {
  fc.assert(
    fc.property(changes, (drawn) => {
      const set = new RankedSet(1 + (drawn.length % capacity)); // it grows
      const values = new Map<number, number>();
      for (const [item, value] of drawn) {
        if (values.has(item)) set.remove(item);
        // Every sixth draw takes the item away for good.
        if (value === 5) values.delete(item);
        else {
          values.set(item, value);
          set.add(item, value);
        }
        const order = [...values.keys()].sort((a, b) => values.get(b)! - values.get(a)! || a - b);
        expect(set.size).toBe(order.length);
        expect([...set.values()]).toEqual(order.map((each) => values.get(each)!));
        expect(order.map((each) => set.rank(each))).toEqual(order.map((_, rank) => rank));
      }
    }),
  );
});

test("equal values go by the tie that they were added with", () => {
  const set = new RankedSet(1);
  for (const [item, tie] of [3, 1, 2].entries()) set.add(item, 7, tie);
  expect([0, 1, 2].map((item) => set.rank(item))).toEqual([2, 0, 1]);
});

test("a heap gives what is left of it in order, whatever was taken out of its middle", () => {
  fc.assert(
    fc.property(changes, (drawn) => {
      const keys = new Float64Array(capacity);
      const before = (a: number, b: number) => keys[a]! < keys[b]! || (keys[a] === keys[b] && a < b);
      const heap = new IndexedHeap(new Int32Array(capacity), before);
      const inside = new Set<number>();
      for (const [item, key] of drawn) {
        if (inside.delete(item)) heap.remove(item);
        else {
          keys[item] = key;
          heap.push(item);
          inside.add(item);
        }
        expect(heap.head).toBe([...inside].sort((a, b) => keys[a]! - keys[b]! || a - b)[0]);
      }
      const expected = [...inside].sort((a, b) => keys[a]! - keys[b]! || a - b);
      expect(Array.from(expected, () => heap.pop())).toEqual(expected);
      expect(heap.pop()).toBeUndefined();
    }),
  );
});

test("the least of the slots is known with its lowest slot", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: capacity }), changes, (slots, drawn) => {
      const values = new Array<number>(slots).fill(3);
      const tree = new LeastTree(slots, 3);
      for (const [slot, value] of drawn) {
        values[slot % slots] = value;
        tree.set(slot % slots, value);
        expect([tree.least, tree.slot]).toEqual([Math.min(...values), values.indexOf(Math.min(...values))]);
      }
    }),
  );
});

test("quantiles of the normal distribution are within the approximation's error", () => {
  const known = [
    [0.001, -3.0902323061678136],
    [0.01, -2.3263478740408408],
    [0.2, -0.8416212335729143],
    [0.75, 0.6744897501960817],
    [0.975, 1.959963984540054],
    [0.9999, 3.719016485455709],
  ] as const;
  for (const [p, quantile] of known) expect(Math.abs(inverseNormal(p) / quantile - 1)).toBeLessThan(1.15e-9);
  expect(inverseNormal(0.5)).toBe(0);
});

test("the noise-aware factor grows with the group, in proportion above a worker's batch", () => {
  const factor = (k: number) => 1 + 0.5 * (k - 1);
  expect([1, 2, 4, 8].map(queueAwareFactor(factor, 2, 0))).toEqual([1, 1.5, 3, 6]);
  // Blom: the larger of two normals is expected at Φ⁻¹(1.625 / 2.25)
  expect(queueAwareFactor(factor, 2, 0.4)(2)).toBeCloseTo(1.5 * Math.exp(0.4 * 0.5895), 4);
  expect(queueAwareFactor(factor, 2, 0.4)(1)).toBe(1);
});
