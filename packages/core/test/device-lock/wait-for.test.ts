import fc from "fast-check";
import { expect, test } from "vitest";
import { describeChain, findCycle, type WaitEdge, waitChain } from "../../src/device-lock/wait-for.ts";

const edge = (waiter: string, waitsFor: string): WaitEdge => ({ waiter, waitsFor, on: "episodes", kind: "data" });

test("a chain follows the waits to the one that is not waiting", () => {
  const edges = [edge("b", "c"), edge("a", "b"), edge("x", "a")];
  expect(waitChain("a", edges)).toEqual({ path: [edge("a", "b"), edge("b", "c")], cycle: undefined });
  expect(describeChain(waitChain("a", edges))).toBe("'episodes' from 'b', which waits for 'episodes' from 'c'");
});

test("a chain prefers the way into a circle and names all of it", () => {
  const edges = [edge("a", "z"), edge("a", "b"), edge("b", "c"), edge("c", "b")];
  expect(waitChain("a", edges).cycle).toEqual([edge("b", "c"), edge("c", "b")]);
  expect(describeChain(waitChain("a", edges))).toContain("this is a deadlock: 'b' → 'c' → 'b'");
});

test("a circle is found exactly when the graph has one", () => {
  const graph = fc.array(fc.tuple(fc.nat(7), fc.nat(7)), { maxLength: 14 });
  fc.assert(
    fc.property(graph, (pairs) => {
      const edges = pairs.map(([from, to]) => edge(`w${from}`, `w${to}`));
      // Without a circle, workers without waits can be taken away until none is left.
      let rest = edges;
      for (let before = -1; before !== rest.length; ) {
        before = rest.length;
        const waiters = new Set(rest.map(({ waiter }) => waiter));
        rest = rest.filter(({ waitsFor }) => waiters.has(waitsFor));
      }
      const cycle = findCycle(edges);
      expect(cycle !== undefined).toBe(rest.length > 0);
      for (const [i, each] of (cycle ?? []).entries())
        expect(each.waitsFor).toBe(cycle?.[(i + 1) % (cycle?.length ?? 1)]?.waiter);
    }),
    { numRuns: 2000 },
  );
});
