import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { answerPatienceMs } from "../../src/membership/awaited-nodes.ts";
import {
  afterSilence,
  type MembershipEffect,
  type MembershipInput,
  type NodeAnswer,
  NodeMembership,
} from "../../src/membership/node-membership.ts";

type Node = { readonly name: string; readonly incarnation: number; readonly taken?: string; readonly drains?: boolean };

const factsOf = ({ taken, drains = false }: Node) => ({ taken, isDraining: drains });
const node = (over: Partial<Node> = {}): Node => ({ name: "a", incarnation: 0, ...over });
const canBeUsed: NodeAnswer = { type: "can-be-used" };
const noticesOf = (effects: readonly MembershipEffect<Node>[]) =>
  effects.flatMap((effect) => (effect.type === "notice" ? effect.text : []));

function used(of = node()): NodeMembership<Node> {
  const membership = new NodeMembership<Node>(factsOf);
  membership.handle({ type: "there", node: of }, 0);
  membership.handle({ type: "answered", node: of, answer: canBeUsed, isThere: true }, 0);
  return membership;
}

describe("a node that is there", () => {
  test("does not count for a run that is to begin while it drains", () => {
    const membership = used(node({ drains: true }));
    expect(membership.awaits(1, 100, 0)).toEqual({ type: "wait", untilMs: 100 });
    expect(membership.awaits(1, 100, 100)).toEqual({ type: "fail" });
    expect(membership.whyNot(node({ drains: true }))).toBe("'a' drains");
    membership.handle({ type: "there", node: node({ name: "b" }) }, 0);
    membership.handle({ type: "answered", node: node({ name: "b" }), answer: canBeUsed, isThere: true }, 0);
    expect(membership.awaits(1, 100, 0)).toEqual({ type: "go", without: [] });
  });

  test("is used once it has answered, and not before (MB1)", () => {
    const membership = new NodeMembership<Node>(factsOf);
    expect(membership.handle({ type: "there", node: node() }, 0)).toMatchObject([{ type: "ask", afterMs: 0 }]);
    expect(membership.uses(node())).toBe(false);
    const effects = membership.handle({ type: "answered", node: node(), answer: canBeUsed, isThere: true }, 0);
    expect(effects).toEqual([{ type: "used", node: node() }]);
    expect(membership.uses(node())).toBe(true);
  });

  test("is asked again, for longer each time, while it beats and does not answer", () => {
    const membership = new NodeMembership<Node>(factsOf);
    membership.handle({ type: "there", node: node() }, 0);
    const timeouts = Array.from({ length: 6 }, () => {
      const effects = membership.handle(
        { type: "answered", node: node(), answer: { type: "silent" }, isThere: true },
        0,
      );
      expect(noticesOf(effects)).toEqual(["node 'a' beats, and does not answer: it is asked again"]);
      return effects.flatMap((effect) => (effect.type === "ask" ? effect.timeoutMs : []));
    });
    expect(timeouts.flat()).toEqual([10_000, 20_000, 40_000, 60_000, 60_000, 60_000]);
    expect(membership.whyNot(node())).toBe("'a' does not answer");
  });

  test("is refused with the reason, said once, and asked again, less often each time, or when it has come again", () => {
    const membership = new NodeMembership<Node>(factsOf);
    const other: NodeAnswer = { type: "cannot-be-used", why: "other code" };
    let nowMs = 0;
    const answered = () => membership.handle({ type: "answered", node: node(), answer: other, isThere: true }, nowMs);
    membership.handle({ type: "there", node: node() }, 0);
    const waits: number[] = [];
    for (let time = 0; time < 6; time++) {
      const effects = answered();
      expect(noticesOf(effects)).toEqual(time === 0 ? ["node 'a' is not used: other code"] : []);
      waits.push(...effects.flatMap((effect) => (effect.type === "wake" ? effect.afterMs : [])));
      expect(membership.handle({ type: "there", node: node() }, nowMs)).toEqual([]);
      expect(membership.handle({ type: "changed", node: node(), hasWorkers: false }, nowMs)).toEqual([]);
      expect(membership.handle({ type: "look-again", node: node() }, nowMs)).toEqual([]); // of an earlier time
      expect(membership.whyNot(node())).toBe("'a' cannot be used: other code");
      nowMs += waits.at(-1) as number;
      expect(membership.handle({ type: "look-again", node: node() }, nowMs)).toMatchObject([{ type: "ask" }]);
    }
    expect(waits).toEqual([5000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    answered();
    expect(membership.handle({ type: "there", node: node(), isNew: true }, 0)).toMatchObject([{ type: "ask" }]);
    expect(noticesOf(answered())).toHaveLength(1);
  });

  test("which another run has is asked when that run has gone", () => {
    const membership = new NodeMembership<Node>(factsOf);
    const taken = node({ taken: "run 'b' has it for itself" });
    expect(noticesOf(membership.handle({ type: "there", node: taken }, 0))).toEqual([
      "node 'a' is not used: run 'b' has it for itself",
    ]);
    expect(membership.handle({ type: "look-again", node: taken }, 0)).toEqual([]);
    expect(membership.handle({ type: "changed", node: node(), hasWorkers: false }, 0)).toMatchObject([{ type: "ask" }]);
  });
});

describe("a node in use", () => {
  test("is lost once, and used again only after it has answered again (MB1, MB3)", () => {
    const membership = used();
    const reason = "it beats, and does not answer";
    const effects = membership.handle({ type: "given-up", node: node(), reason, isThere: true }, 0);
    expect(effects.map(({ type }) => type)).toEqual(["notice", "lost", "ask"]);
    expect(membership.uses(node())).toBe(false);
    expect(membership.handle({ type: "given-up", node: node(), reason, isThere: true }, 0)).toEqual([]);
    membership.handle({ type: "answered", node: node(), answer: canBeUsed, isThere: true }, 0);
    expect(membership.uses(node())).toBe(true);
  });

  test("is given to a run that was faster, unless this run has workers there", () => {
    const taken = node({ taken: "run 'b' has it for itself" });
    expect(used().handle({ type: "changed", node: taken, hasWorkers: true }, 0)).toEqual([]);
    const membership = used();
    const effects = membership.handle({ type: "changed", node: taken, hasWorkers: false }, 0);
    expect(effects.map(({ type }) => type)).toEqual(["notice", "lost", "notice", "wake"]);
    expect(membership.handle({ type: "look-again", node: node() }, 0)).toMatchObject([{ type: "ask" }]);
  });

  test("says once that it drains", () => {
    const membership = used();
    const drains = node({ drains: true });
    const before = membership.revision;
    expect(noticesOf(membership.handle({ type: "changed", node: drains, hasWorkers: true }, 0))).toHaveLength(1);
    expect(noticesOf(membership.handle({ type: "changed", node: drains, hasWorkers: true }, 0))).toEqual([]);
    expect(membership.revision).toBe(before + 1);
  });

  test("that does not do what it is told hangs after so many attempts, and never by silence of this side", () => {
    const told = { mostAttempts: 3, isTelling: true, isUsed: true };
    expect([0, 1, 2].map((attempt) => afterSilence({ ...told, attempt }))).toEqual([
      { type: "again", attempt: 1 },
      { type: "again", attempt: 2 },
      { type: "hangs" },
    ]);
    expect(afterSilence({ ...told, attempt: 2, isTelling: false })).toEqual({ type: "again", attempt: 2 });
    expect(afterSilence({ ...told, attempt: 0, isUsed: false })).toEqual({ type: "gone" });
  });
});

const nodes = fc.record({
  name: fc.constantFrom("a", "b"),
  incarnation: fc.nat(1),
  taken: fc.constantFrom(undefined, undefined, "run 'b' has it for itself"),
  drains: fc.boolean(),
});
const inputs: fc.Arbitrary<MembershipInput<Node>> = fc
  .tuple(nodes, fc.nat(99), fc.boolean())
  .map(([{ name, incarnation, drains, taken }, op, flag]): MembershipInput<Node> => {
    const of: Node = { name, incarnation, drains, ...(taken === undefined ? {} : { taken }) };
    if (op < 25) return { type: "there", node: of, isNew: flag };
    if (op < 40) return { type: "changed", node: of, hasWorkers: flag };
    if (op < 48) return { type: "left", node: of, reason: "its lease is over" };
    if (op < 56) return { type: "given-up", node: of, reason: "it hangs", isThere: flag };
    if (op < 60) return { type: "refuses", node: of, why: "run 'b' was faster", isTaken: flag };
    if (op < 65) return { type: "look-again", node: of };
    const answers: NodeAnswer[] = [canBeUsed, canBeUsed, { type: "silent" }, { type: "absent" }];
    const answer = answers[op % 5] ?? { type: "cannot-be-used", why: "other code" };
    return { type: "answered", node: of, answer, isThere: flag || op % 2 === 0 };
  });

test("whatever happens, nodes are used only after they answered, lost once, and none that is there is forgotten (MB1, MB2, MB3)", () => {
  fc.assert(
    fc.property(fc.array(inputs, { maxLength: 80 }), (all) => {
      const membership = new NodeMembership<Node>(factsOf);
      const isUsed = new Map<string, number>();
      const asked = new Set<string>();
      for (const [at, input] of all.entries()) {
        const effects = membership.handle(input, at);
        const key = `${input.node.name}#${input.node.incarnation}`;
        if (input.type === "answered" && asked.has(key) && !effects.some(({ type }) => type === "ask")) {
          asked.delete(key);
          if (effects.some(({ type }) => type === "used")) expect(input.answer).toEqual(canBeUsed);
        } else expect(effects.some(({ type }) => type === "used")).toBe(false);
        if (input.type === "left") asked.delete(key);
        for (const effect of effects) {
          if (effect.type === "ask") asked.add(`${effect.node.name}#${effect.node.incarnation}`);
          else if (effect.type === "lost") {
            expect(isUsed.get(effect.node.name)).toBe(effect.node.incarnation);
            isUsed.delete(effect.node.name);
          } else if (effect.type === "used") {
            expect(isUsed.has(effect.node.name)).toBe(false);
            isUsed.set(effect.node.name, effect.node.incarnation);
          }
        }
        expect([...membership.used.values()].map(({ name, incarnation }) => [name, incarnation])).toEqual([...isUsed]);
        if (input.type === "there" && !membership.uses(input.node) && !asked.has(key))
          expect(membership.whyNot(input.node)).toMatch(/cannot be used: (?!it has just come)/);
      }
    }),
  );
});

test("a run waits for nodes that were asked and not longer than they take to answer", () => {
  const membership = used();
  membership.handle({ type: "there", node: node({ name: "b" }) }, 0);
  expect(membership.awaits(1, 60_000, 0)).toEqual({ type: "wait", untilMs: answerPatienceMs });
  expect(membership.awaits(1, 60_000, answerPatienceMs)).toEqual({ type: "go", without: ["b"] });
  expect(membership.awaits(2, 60_000, 60_000)).toEqual({ type: "fail" });
});
