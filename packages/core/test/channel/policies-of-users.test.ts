import fc from "fast-check";
import { expect, test } from "vitest";
import type { PickFunction, PolicyName } from "../../src/channel/pick-policy.ts";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";
import { RunnerWorld } from "../runner/runner-world.ts";

/** A rank takes what the workflow has put with these weights, so many at a time. */
function world(pick: PickFunction | PolicyName, weights: readonly number[]) {
  const runner = new RunnerWorld();
  const policy = typeof pick === "string" ? pick : { module: "file:///project/run.ts", exportName: "mine", pick };
  runner.feed({ type: "define-channel", name: "in", capacity: 1000, pick: policy });
  runner.component(1);
  runner.up("actor/0");
  const stream = "step-1";
  runner.feed({ type: "open", call: "own", end: { channel: "in", role: "sink", stream } });
  const items = weights.map((weight, payload) => ({ payload, sizeBytes: 1, weight }));
  runner.feed({ type: "put", request: 1000, call: "own", channel: "in", items });
  runner.feed({ type: "close", call: "own", outcome: { ok: true } });
  const ends = [{ channel: "in", role: "source", stream } as const];
  runner.feed({ type: "call", sequence: 1, component: "actor", method: "work", ranks: [0], ends });
  let request = 0;
  const take = (maxItems: number): number[] | undefined => {
    const ask = { type: "take", request: ++request, from: runner.id("actor/0"), call: "1/0", channel: "in" } as const;
    const effects = runner.feed({ ...ask, acknowledge: true, maxItems });
    const answered = effects.find((each): each is Extract<RunnerEffect, { type: "answer" }> => each.type === "answer");
    return answered?.answer.type === "batch"
      ? answered.answer.items.map(({ payload }) => payload as number)
      : undefined;
  };
  return { runner, take };
}

test("C5: a function chooses among what is there, and each item still comes once", () => {
  const lightest: PickFunction = (items, { maxItems }) =>
    [...items.keys()].sort((a, b) => items[a]!.weight - items[b]!.weight).slice(0, maxItems);
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 9 }), { minLength: 1, maxLength: 20 }),
      fc.integer({ min: 1, max: 7 }),
      (weights, size) => {
        const { take } = world(lightest, weights);
        const taken: number[] = [];
        for (let batch = take(size); batch !== undefined; batch = take(size)) taken.push(...batch);
        expect([...taken].sort((a, b) => a - b)).toEqual([...weights.keys()]);
        const order = taken.map((item) => weights[item] as number);
        // A batch comes in the order in which it was chosen, and the next one has nothing lighter.
        expect(order).toEqual(order.toSorted((a, b) => a - b));
      },
    ),
  );
});

test("C5: by weight, the heaviest come first", () => {
  const { take } = world("weight", [1, 9, 5, 7]);
  expect([take(1), take(2), take(1)]).toEqual([[1], [3, 2], [0]]);
});

test("a function that declines is overruled when nothing else can come", () => {
  const { take } = world(() => [], [1, 2]);
  expect(take(5)).toEqual([0, 1]);
});

/** The same, of which one property throws. */
const unreadable = <T extends object>(of: T, property: string): T =>
  new Proxy(of, {
    get: (target, name) => {
      if (name === property) throw new Error(`no '${property}' today`);
      return Reflect.get(target, name);
    },
  });

test("what it answers is read once: a changing answer neither repeats an item nor fails what reads it", () => {
  let reads = 0;
  const changing = new Proxy([0, 1], { get: (of, name) => (name === "1" && reads++ > 0 ? 0 : Reflect.get(of, name)) });
  const { take, runner } = world(() => changing, [1, 2]);
  expect(take(5)).toEqual([0, 1]);
  expect(runner.state.failure).toBeUndefined();
});

test.each<[string, PickFunction, string]>([
  [
    "throws",
    () => {
      throw new Error("no idea");
    },
    "no idea",
  ],
  ["answers with nothing", () => undefined as never, "answered with 'undefined', which is no array"],
  ["answers with a promise", () => Promise.resolve([0]) as never, "which is no array"],
  ["names what is not there", () => [7], "answered with '7', which is no index; it was given 3 items"],
  ["names half an item", () => [0.5], "answered with '0.5', which is no index"],
  ["names an item twice", () => [1, 1], "answered with an index twice"],
  ["names more than there is", () => [0, 1, 2, 0], "answered with 4 indices"],
  [
    "throws what has no text",
    () => {
      throw Object.create(null);
    },
    "it threw what cannot be read",
  ],
  [
    "throws an error whose message throws",
    () => {
      throw unreadable(new Error("hidden"), "message");
    },
    "it threw what cannot be read",
  ],
  ["answers with what has no text", () => Object.create(null) as never, "an object that cannot be read"],
  ["names an item by what has no text", () => [Object.create(null)], "an object that cannot be read"],
  ["answers with an array whose length throws", () => unreadable([0], "length"), "failed: no 'length' today"],
])("one that %s fails the run with its name, and nobody waits for it", (_, pick, says) => {
  const { runner, take } = world(pick, [1, 2, 3]);
  expect(take(2)).toEqual([0, 1]);
  expect(runner.state.failure).toMatchObject({ code: "channel.pick-failed" });
  expect(runner.state.failure?.message).toContain("the pick policy 'mine' of channel 'in' failed: ");
  expect(runner.state.failure?.message).toContain(says);
  expect(runner.all("settle-failed")).toHaveLength(1);
});

test("one that fails while a call ends fails the run with its name: the call that ended is told, and the machine goes on", () => {
  const { runner } = world(() => {
    throw Object.create(null);
  }, []);
  const stream = "step-2";
  runner.feed({ type: "open", call: "later", end: { channel: "in", role: "sink", stream } });
  const ends = [{ channel: "in", role: "source", stream } as const];
  runner.feed({ type: "call", sequence: 2, component: "actor", method: "work", ranks: [0], ends });
  const from = { from: runner.id("actor/0"), call: "2/0" };
  const take = { type: "take", request: 7, ...from, channel: "in", acknowledge: true } as const;
  runner.feed({ ...take, maxItems: 3, minItems: 3 });
  runner.feed({ type: "put", request: 1001, call: "later", channel: "in", items: [{ payload: 1, sizeBytes: 1 }] });
  const effects = runner.feed({ type: "close", call: "later", outcome: { ok: true } });
  expect(effects.map(({ type }) => type)).toContain("failed");
  expect(runner.state.failure?.message).toContain("the pick policy 'mine' of channel 'in' failed");
});
