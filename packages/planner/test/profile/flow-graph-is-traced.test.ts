import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { inFlowOrder } from "../../src/flow-order.ts";
import { traceFlow } from "../../src/profile/flow-trace.ts";
import { observed } from "./observed-calls.ts";

describe("the flow graph of a workflow", () => {
  test("is found from what calls take and put", () => {
    const graph = traceFlow(
      [
        observed({ component: "actor", method: "train" }, { takes: [{ channel: "episodes", items: 64 }] }),
        ...[0, 1].map((rank) =>
          observed(
            { component: "rollout", method: "generate", rank },
            { takes: [{ channel: "prompts", items: 4 }], puts: [{ channel: "episodes", items: 32 }] },
          ),
        ),
        observed({
          component: "rollout",
          method: "pullWeights",
          peers: [{ component: "actor", method: "weights", times: 2 }],
        }),
        observed({ component: "rollout", method: "evaluate", step: undefined }),
      ],
      8,
    );
    expect(Object.keys(graph.components)).toEqual(["rollout", "actor"]);
    expect(graph.components["rollout"]?.methods).toEqual({
      generate: { callsPerStep: 1, takes: ["prompts"], puts: ["episodes"] },
      pullWeights: { callsPerStep: 1, takes: [], puts: [] },
    });
    expect(graph.channels["prompts"]).toEqual({
      producers: [],
      consumers: ["rollout"],
      itemsPerStep: 8,
      bytesPerStep: 8,
    });
    expect(graph.edges).toEqual([
      { from: "rollout", to: "actor", channel: "episodes", itemsPerStep: 64, bytesPerStep: 64 },
    ]);
    expect(graph.cycles).toEqual([]);
    expect(graph.calls).toEqual([{ from: "rollout", to: "actor", method: "weights", timesPerStep: 2 }]);
  });

  test("has what does not feed each other in the order in which the workflow calls it, whoever ends first", () => {
    const rollout = observed(
      { component: "rollout", sequence: 1 },
      { puts: ["a", "b", "c"].map((channel) => ({ channel, items: 8 })) },
    );
    const scorers = ["a", "b", "c"].map((component, i) =>
      observed({ component, sequence: 2 + i }, { takes: [{ channel: component, items: 8 }] }),
    );
    fc.assert(
      fc.property(fc.shuffledSubarray([rollout, ...scorers], { minLength: 4 }), (calls) => {
        expect(Object.keys(traceFlow(calls, 8).components)).toEqual(["rollout", "a", "b", "c"]);
      }),
    );
  });

  test("names components that feed each other", () => {
    const graph = traceFlow(
      [
        observed({ component: "actor" }, { takes: [{ channel: "trajectories", items: 1 }] }),
        observed(
          { component: "simulator" },
          { takes: [{ channel: "actions", items: 9 }], puts: [{ channel: "observations", items: 9 }] },
        ),
        observed(
          { component: "rollout" },
          {
            takes: [{ channel: "observations", items: 9 }],
            puts: [
              { channel: "actions", items: 9 },
              { channel: "trajectories", items: 1 },
            ],
          },
        ),
      ],
      1,
    );
    expect(graph.cycles).toEqual([["simulator", "rollout"]]);
    expect(Object.keys(graph.components)).toEqual(["simulator", "rollout", "actor"]);
  });

  test("counts what a step moves, whatever the number of steps seen", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 1, max: 4 }), (numSteps, numRanks) => {
        const calls = Array.from({ length: numSteps * numRanks }, (_, i) =>
          observed(
            { component: "rollout", step: 1 + Math.floor(i / numRanks), rank: i % numRanks },
            { takes: [{ channel: "prompts", items: 3 }] },
          ),
        );
        const graph = traceFlow(calls, 12);
        expect(graph.channels["prompts"]?.itemsPerStep).toBe(3 * numRanks);
        expect(graph.components["rollout"]?.methods["work"]?.callsPerStep).toBe(1);
      }),
    );
  });

  test("counts how often a rank takes what goes round in a cycle, whatever the number of steps and ranks, and nowhere else", () => {
    const counts = fc.record({
      ...{ numSteps: fc.integer({ min: 1, max: 3 }), numRanks: fc.integer({ min: 1, max: 3 }) },
      ...{ seen: fc.integer({ min: 1, max: 9 }), acted: fc.integer({ min: 1, max: 9 }) },
    });
    fc.assert(
      fc.property(counts, ({ numSteps, numRanks, seen, acted }) => {
        const calls = Array.from({ length: numSteps * numRanks }, (_, i) => {
          const of = { step: 1 + Math.floor(i / numRanks), rank: i % numRanks };
          const [observations, actions] = [
            { channel: "observations", items: 36 },
            { channel: "actions", items: 36 },
          ];
          return [
            observed({ component: "simulator", ...of }, { takes: [actions], puts: [observations], chunks: acted }),
            observed({ component: "rollout", ...of }, { takes: [observations], puts: [actions], chunks: seen }),
            observed({ component: "feeder", ...of }, { puts: [{ channel: "prompts", items: 4 }] }),
            observed({ component: "reader", ...of }, { takes: [{ channel: "prompts", items: 4 }], chunks: 4 }),
          ];
        });
        const { channels } = traceFlow(calls.flat(), 36 * numRanks);
        expect(channels["observations"]?.takesPerStep).toBe(seen);
        expect(channels["actions"]?.takesPerStep).toBe(acted);
        expect(channels["prompts"]).not.toHaveProperty("takesPerStep");
      }),
    );
  });

  test("puts every producer before its consumers, and cycles together", () => {
    const names = ["a", "b", "c", "d", "e", "f"];
    const edge = fc.record({ from: fc.constantFrom(...names), to: fc.constantFrom(...names) });
    fc.assert(
      fc.property(fc.array(edge, { maxLength: 12 }), (edges) => {
        const groups = inFlowOrder(names, edges);
        const reach = reachability(names, edges);
        expect(groups.flat().toSorted()).toEqual(names);
        const groupOf = new Map(groups.flatMap((group, index) => group.map((name) => [name, index])));
        for (const a of names) {
          for (const b of names) {
            if (a === b) continue;
            const together = reach(a, b) && reach(b, a);
            expect(groupOf.get(a) === groupOf.get(b)).toBe(together);
            if (reach(a, b) && !together) expect(groupOf.get(a)).toBeLessThan(groupOf.get(b) as number);
          }
        }
      }),
    );
  });
});

/** By brute force: Warshall's closure. */
function reachability(names: readonly string[], edges: readonly { from: string; to: string }[]) {
  const reached = new Set(edges.map(({ from, to }) => `${from}${to}`));
  for (const via of names) {
    for (const a of names) for (const b of names) if (reached.has(a + via) && reached.has(via + b)) reached.add(a + b);
  }
  return (a: string, b: string) => reached.has(a + b);
}
