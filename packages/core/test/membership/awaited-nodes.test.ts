import fc from "fast-check";
import { expect, test } from "vitest";
import { answerPatienceMs, awaitNodes } from "../../src/membership/awaited-nodes.ts";
import { NodeMembership } from "../../src/membership/node-membership.ts";

const world = fc.record({
  minNodes: fc.integer({ min: 1, max: 4 }),
  numUsable: fc.nat(5),
  enoughSinceMs: fc.option(fc.nat(20_000), { nil: undefined }),
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
        const enoughSinceMs = nodes.enoughSinceMs ?? nowMs;
        expect(awaitNodes({ ...nodes, enoughSinceMs }, decision.untilMs).type).toBe("go");
        expect(decision.untilMs).toBeLessThanOrEqual(enoughSinceMs + answerPatienceMs);
        expect(decision.untilMs).toBeLessThanOrEqual(nowMs + answerPatienceMs);
      }
    }),
  );
});

test("nodes that come one after another and never answer delay a run once, and not for each of them", () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 2 * answerPatienceMs }), { minLength: 1, maxLength: 40 }),
      fc.integer({ min: 1, max: 3 }),
      (gapsMs, minNodes) => {
        type Node = { readonly name: string; readonly incarnation: number };
        const membership = new NodeMembership<Node>(() => ({ isDraining: false }));
        const startMs = 1000;
        for (let i = 0; i < minNodes; i++) {
          const node = { name: `usable-${i}`, incarnation: 1 };
          membership.handle({ type: "there", node, isNew: true }, startMs);
          membership.handle({ type: "answered", node, answer: { type: "can-be-used" }, isThere: true }, startMs);
        }
        let nowMs = startMs;
        const deadlineMs = startMs + 1_000_000;
        for (const [i, gapMs] of gapsMs.entries()) {
          membership.handle({ type: "there", node: { name: `silent-${i}`, incarnation: 1 }, isNew: true }, nowMs);
          const decision = membership.awaits(minNodes, deadlineMs, nowMs);
          if (decision.type === "go") return;
          nowMs = decision.type === "wait" ? Math.min(nowMs + gapMs, decision.untilMs) : nowMs;
          expect(nowMs).toBeLessThanOrEqual(startMs + answerPatienceMs);
        }
      },
    ),
  );
});
