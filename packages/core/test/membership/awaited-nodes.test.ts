import fc from "fast-check";
import { expect, test } from "vitest";
import { answerPatienceMs, awaitNodes } from "../../src/membership/awaited-nodes.ts";

const world = fc.record({
  minNodes: fc.integer({ min: 1, max: 4 }),
  numUsable: fc.nat(5),
  asked: fc.array(fc.record({ node: fc.string(), sinceMs: fc.nat(20_000) }), { maxLength: 4 }),
  deadlineMs: fc.nat(40_000),
});

test("a run begins with enough nodes or not at all, and whoever hangs delays it by the time to answer at most", () => {
  fc.assert(
    fc.property(world, fc.nat(20_000), (nodes, afterMs) => {
      const nowMs = 20_000 + afterMs;
      const decision = awaitNodes(nodes, nowMs);
      const hasEnough = nodes.numUsable >= nodes.minNodes;
      if (!hasEnough) expect(decision.type).toBe(nowMs >= nodes.deadlineMs ? "fail" : "wait");
      if (decision.type === "wait") expect(decision.untilMs).toBeGreaterThan(nowMs);
      if (hasEnough && nodes.asked.every(({ sinceMs }) => nowMs - sinceMs >= answerPatienceMs)) {
        expect(decision).toEqual({ type: "go", without: nodes.asked.map(({ node }) => node) });
      }
      if (hasEnough && decision.type === "wait") {
        expect(awaitNodes(nodes, decision.untilMs).type).toBe("go");
        expect(decision.untilMs).toBeLessThanOrEqual(nowMs + answerPatienceMs);
      }
    }),
  );
});
