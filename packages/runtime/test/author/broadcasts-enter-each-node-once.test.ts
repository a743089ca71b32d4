import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { byNode, hopsOf } from "../../src/author/messages/broadcast-tree.ts";
import { findHoldUp, type Said } from "../../src/author/messages/hold-up.ts";
import { died, inCall, joined, ranksOf, turn } from "./messenger-group.ts";

type Edge = { readonly from: string; readonly to: string };

/** All hops of a broadcast, as whoever has the message works them out. */
function edgesOf(from: string, onward: ReturnType<typeof byNode>): Edge[] {
  return hopsOf(onward).flatMap((hop) => [{ from, to: hop.to }, ...edgesOf(hop.to, hop.onward)]);
}

const placements = fc.record({
  home: fc.nat(7),
  nodes: fc.array(fc.nat(7), { maxLength: 40 }),
});

describe("a broadcast's tree", () => {
  test("reaches every worker once (BT1), enters each node once (BT2), in log2 hops from node to node (BT3)", () => {
    fc.assert(
      fc.property(placements, ({ home, nodes }) => {
        const workers = nodes.map((_, rank) => `rollout/${rank}`);
        const nodeOf = new Map([
          ["root", `${home}`],
          ...workers.map((each, at): [string, string] => [each, `${nodes[at]}`]),
        ]);
        const edges = edgesOf("root", byNode(`${home}`, workers, nodes.map(String)));
        expect(edges.map(({ to }) => to).sort()).toEqual([...workers].sort());

        const crossing = edges.filter(({ from, to }) => nodeOf.get(from) !== nodeOf.get(to));
        const others = new Set(nodes.filter((node) => node !== home));
        expect(crossing).toHaveLength(others.size);
        expect(new Set(crossing.map(({ to }) => nodeOf.get(to))).size).toBe(others.size);

        const above = new Map(edges.map(({ from, to }) => [to, from]));
        for (const worker of workers) {
          let [inside, between] = [0, 0];
          for (let at = worker; at !== "root"; at = above.get(at) as string) {
            if (nodeOf.get(at) === nodeOf.get(above.get(at) as string)) inside++;
            else between++;
          }
          expect(between).toBeLessThanOrEqual(Math.ceil(Math.log2(others.size + 1)));
          expect(inside).toBeLessThanOrEqual(1);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("gives every rank the value, whatever the placement and the order of messages, by the hops of its tree", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.constantFrom("a", "b", "c", "d"), { minLength: 1, maxLength: 9 }),
        fc.nat(8),
        fc.infiniteStream(fc.nat(2)),
        async (nodes, at, delays) => {
          const root = at % nodes.length;
          const crossed: string[] = [];
          const all = ranksOf("actor", nodes.length, {
            nodes,
            delay: () => delays.next().value as number,
            sent: ({ by, to }) => {
              const [left, entered] = [by, to].map((worker) => nodes[Number(worker.split("/")[1])] as string);
              if (left !== entered) crossed.push(entered as string);
            },
          });
          const got = await Promise.all(all.map((each, rank) => each.broadcast(rank === root ? "its" : "mine", root)));
          expect(got).toEqual(all.map(() => "its"));
          expect(crossed.sort()).toEqual([...new Set(nodes)].filter((node) => node !== nodes[root]).sort());
          expect(all.map(({ mailbox }) => mailbox.size)).toEqual(all.map(() => 0));
        },
      ),
      { numRuns: 60 },
    );
  });
});

test("one group's rank broadcasts to all ranks of another, message after message", async () => {
  const nodes = ["a", "a", "b", "b", "c"];
  const groups = joined(
    [
      ["actor", 1],
      ["rollout", 4],
    ],
    { nodes },
  );
  const [actor] = groups.get("actor") as [ReturnType<typeof ranksOf>[0]];
  const rollouts = groups.get("rollout") as ReturnType<typeof ranksOf>;
  for (const version of [1, 2]) await actor.broadcastTo({ groupName: "rollout", size: 4 }, { version }, "weights");
  for (const version of [1, 2]) {
    const got = await Promise.all(rollouts.map((each) => each.broadcastFrom("actor/0", "weights")));
    expect(got).toEqual(rollouts.map(() => ({ version })));
  }
});

test("MS2: what a dead worker's process had sent is dropped where another one still passes it on", async () => {
  const [, , two] = ranksOf("actor", 3) as [never, never, ReturnType<typeof ranksOf>[0]];
  const told = { from: "actor/0", tag: "x" };
  two.peerDied("actor/0", died, 2);
  await two.deliver({ ...told, incarnation: 1, value: "of the dead" });
  await two.deliver({ ...told, incarnation: 2, value: "of the present one" });
  expect(await two.recv("actor/0", "x")).toBe("of the present one");
  expect(two.mailbox.size).toBe(0);
});

test("MS3: whoever passes a message on has it after all that get it by way of it", async () => {
  const order: string[] = [];
  const all = ranksOf("actor", 3, { nodes: ["a", "b", "b"], delay: () => 3 });
  await Promise.all(
    all.map(async (each) => {
      await each.broadcast("value");
      order.push(each.self);
    }),
  );
  expect(order.indexOf("actor/2")).toBeLessThan(order.indexOf("actor/1"));
});

describe("allReduceSum", () => {
  test("adds in the order of the ranks, whatever their number and the length: the bits of adding by hand", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 2, max: 5 }),
        fc.constantFrom(0, 1, 7, 32_767, 32_768, 70_001),
        async (size, length) => {
          const own = Array.from({ length: size }, (_, rank) =>
            Float32Array.from({ length }, (_, at) => Math.fround(Math.sin(rank * 7 + at) * 10 ** (at % 5))),
          );
          const before = own.map((each) => each.slice());
          const byHand = (own[0] as Float32Array).slice();
          for (const each of own.slice(1))
            for (let at = 0; at < length; at++) byHand[at] = (byHand[at] as number) + (each[at] as number);
          const nodes = own.map((_, rank) => `${rank % 2}`);
          const sums = await Promise.all(
            ranksOf("actor", size, { nodes }).map((each, rank) => each.allReduceSum(own[rank] as Float32Array)),
          );
          for (const sum of sums) expect(Buffer.from(sum.buffer).equals(Buffer.from(byHand.buffer))).toBe(true);
          expect(own).toEqual(before);
        },
      ),
      { numRuns: 30 },
    );
  });

  test("of a long array gives no rank more than its share to add up", async () => {
    const received = new Map<string, number>();
    const all = ranksOf("actor", 4, { sent: ({ to }) => received.set(to, (received.get(to) ?? 0) + 1) });
    await inCall(all, 1, (each) => each.allReduceSum(new Float32Array(4 * 16_384)));
    expect([...received.values()]).toEqual([6, 6, 6, 6]); // three parts, three totals
  });
});

describe("who holds a wait up", () => {
  const workers = ["a", "b", "c", "d", "e", "f"];
  const said: fc.Arbitrary<Said> = fc.oneof(
    { weight: 4, arbitrary: fc.record({ type: fc.constant("waits" as const), waitsFor: fc.subarray(workers) }) },
    { weight: 1, arbitrary: fc.constantFrom<Said>({ type: "silent" }, { type: "absent" }) },
  );

  test("is reached from the awaited one, and says nothing, waits for nobody, or in a circle (HU1); none is asked twice (HU2)", () => {
    fc.assert(
      fc.property(
        fc.array(said, { minLength: 6, maxLength: 6 }),
        fc.constantFrom(...workers.slice(1)),
        (all, awaited) => {
          const answers = new Map(workers.map((worker, at) => [worker, all[at] as Said]));
          const search = findHoldUp("a", awaited);
          const asked: string[] = [];
          let step = search.next();
          while (!step.done) {
            asked.push(step.value);
            step = search.next(answers.get(step.value) as Said);
          }
          const { worker, why } = step.value;
          expect(new Set(asked).size).toBe(asked.length);
          expect(asked[0]).toBe(awaited);
          for (const [at, each] of asked.slice(1).entries())
            expect((answers.get(asked[at] as string) as Extract<Said, { type: "waits" }>).waitsFor).toContain(each);
          expect(asked.at(-1)).toBe(worker);
          const last = answers.get(worker) as Said;
          if (last.type !== "waits") expect(why).toBe(last.type);
          else if (last.waitsFor.length === 0) expect(why).toBe("elsewhere");
          else {
            expect(why).toBe("circle");
            expect(last.waitsFor.every((each) => each === "a" || asked.includes(each))).toBe(true);
          }
        },
      ),
      { numRuns: 500 },
    );
  });
});

describe("MS4, AW1: a wait that lasts too long names who holds it up:", () => {
  const limit = { peerTimeoutMs: 40 };
  const late = (culprit: string, awaited: string, why: string, what: string) => ({
    code: "worker.late",
    details: { culprit, awaited, why },
    origin: { worker: culprit },
    message: expect.stringMatching(what),
  });

  test("the root that does not come to a broadcast", async () => {
    const [zero, one] = ranksOf("actor", 2, limit) as [never, ReturnType<typeof ranksOf>[0]];
    void zero;
    await expect(inCall([one], 7, (each) => each.broadcast(undefined))).rejects.toMatchObject(
      late(
        "actor/0",
        "actor/0",
        "elsewhere",
        "'broadcast', collective 1 of call 7, of 'actor/0', which answers.*supervision.peerTimeoutMs",
      ),
    );
    expect(one.mailbox.size).toBe(0);
    expect(one.awaited(-1)).toEqual([]);
  });

  test("the root that is stopped", async () => {
    const [, one] = ranksOf("actor", 2, { ...limit, silent: new Set(["actor/0"]) }) as [
      never,
      ReturnType<typeof ranksOf>[0],
    ];
    await expect(one.broadcast(undefined)).rejects.toMatchObject(
      late("actor/0", "actor/0", "silent", "does not answer"),
    );
  }, 20_000);

  test("the one that is to pass it on, and is stopped: the root and those behind it say so", async () => {
    const nodes = ["a", "b", "b", "c"];
    const all = ranksOf("actor", 4, { ...limit, nodes, silent: new Set(["actor/1"]) });
    const [root, , behind, other] = await Promise.allSettled(
      all.map((each, rank) => (rank === 1 ? Promise.resolve() : each.broadcast("value"))),
    );
    const blamed = {
      status: "rejected",
      reason: { code: "worker.late", details: { culprit: "actor/1", why: "silent" } },
    };
    expect(root).toMatchObject(blamed);
    expect(behind).toMatchObject(blamed);
    expect(other).toEqual({ status: "fulfilled", value: "value" });
  }, 30_000);

  test("the one behind it that is stopped: it says so to the root before the root gives up on it", async () => {
    const nodes = ["a", "b", "b"];
    const all = ranksOf("actor", 3, { peerTimeoutMs: 2000, nodes, silent: new Set(["actor/2"]) });
    const root = all[0]?.broadcast("value");
    await expect(root).rejects.toMatchObject(
      late("actor/2", "actor/2", "silent", "'actor/1' waited .* for the receipt of"),
    );
  }, 30_000);

  test("the one that is waited for in the end, seen from behind another that waits for it, and gives up first (AW4)", async () => {
    const [zero, one] = ranksOf("actor", 3, limit) as [ReturnType<typeof ranksOf>[0], ReturnType<typeof ranksOf>[0]];
    const waits = one.answer("actor/2", "its sum", new Promise(() => {}));
    const blamed = late("actor/2", "actor/1", "elsewhere", "of 'actor/1': it is held up by 'actor/2'");
    const [gathered, answered] = await Promise.allSettled([zero.broadcast(undefined, 1), waits]);
    expect(gathered).toMatchObject({ reason: blamed });
    expect(answered).toMatchObject({ reason: late("actor/2", "actor/2", "elsewhere", "for its sum of 'actor/2'") });
  });

  test("ranks that wait for each other in different collectives (AW4)", async () => {
    const [zero, one] = ranksOf("actor", 2, limit) as [ReturnType<typeof ranksOf>[0], ReturnType<typeof ranksOf>[0]];
    const [first, second] = await Promise.allSettled([zero.broadcast(undefined, 1), one.broadcast(undefined, 0)]);
    expect(first).toMatchObject({ reason: { details: { why: "circle" } } });
    expect(second).toMatchObject({ reason: { details: { why: "circle" } } });
  });

  test("AW2: what comes while the culprit is looked for still counts", async () => {
    const [zero, one] = ranksOf("actor", 2, { peerTimeoutMs: 30, silent: new Set(["actor/0"]) }) as [
      ReturnType<typeof ranksOf>[0],
      ReturnType<typeof ranksOf>[0],
    ];
    const waits = one.broadcast(undefined);
    await new Promise((resolve) => setTimeout(resolve, 200)); // long after the limit, while nobody answers
    await zero.broadcast("at last");
    expect(await waits).toBe("at last");
  });

  test("AW3: one that is still starting is nobody's culprit", async () => {
    const absent = new Set(["actor/0"]);
    const [zero, one] = ranksOf("actor", 2, { peerTimeoutMs: 30, absent }) as [
      ReturnType<typeof ranksOf>[0],
      ReturnType<typeof ranksOf>[0],
    ];
    let isSettled = false;
    const waits = one.broadcast(undefined).finally(() => {
      isSettled = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 6000)); // longer than anybody is given to answer
    for (let i = 0; i < 5; i++) await turn();
    expect(isSettled).toBe(false);
    absent.clear();
    await zero.broadcast("has started");
    expect(await waits).toBe("has started");
  }, 20_000);

  test("AW3: nor is one that has started and takes no calls yet, whose answer is waited for", async () => {
    const starting = new Set(["actor/0"]);
    const [, one] = ranksOf("actor", 2, { peerTimeoutMs: 30, starting }) as [never, ReturnType<typeof ranksOf>[0]];
    let give = (_value: string) => {};
    const waits = one.answer("actor/0", "its weights", new Promise<string>((resolve) => (give = resolve)));
    await new Promise((resolve) => setTimeout(resolve, 300));
    give("weights");
    expect(await waits).toBe("weights");
  });
});
