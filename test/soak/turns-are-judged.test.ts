/** What the soak's judge finds, in turns that a sound machine never makes. */
import type { RunnerEffect, RunnerInput, RunnerState } from "@treadle/core";
import { expect, test } from "vitest";
import { Judge } from "./judge.ts";

type Turn = readonly [RunnerInput | undefined, readonly RunnerEffect[]];

function judged(
  turns: readonly Turn[],
  used: { readonly items: number; readonly overdrawn: number } = { items: 0, overdrawn: 0 },
) {
  const judge = new Judge({ capacity: 4, maxStaleness: 1, replayed: "pull" });
  const credit = [{ stream: "step-1", usedItems: used.items, usedBytes: 0, overdrawnItems: used.overdrawn }];
  const state = { channelSnapshots: () => [{ channel: "items", credit }] } as unknown as RunnerState;
  for (const [input = { type: "tick" } as const, effects] of turns) judge.turn(input, effects, state);
}

const step = (index: number): Turn => [{ type: "begin-step", step: index }, []];
const maker = (incarnation = 0) => ({ worker: "maker/0", incarnation });
const trainer = { worker: "trainer/0", incarnation: 0 };
const up = (id: { readonly worker: string; readonly incarnation: number }): RunnerEffect => ({
  type: "up",
  ...id,
  isFirst: true,
});
const send = (call: string, id = trainer): RunnerEffect => ({ type: "send", ...id, call });
const died: RunnerEffect[] = [
  { type: "died", ...maker(), cause: new Error("killed") as never, code: null, signal: "SIGKILL" },
  { type: "discard", ...maker() },
];
const told: RunnerEffect = { type: "peer-died", ...trainer, dead: "maker/0" };
const pulled: Turn[] = [
  [{ type: "call", sequence: 3, component: "maker", method: "pull", ranks: [0], ends: [] }, [send("3/0", maker())]],
  [undefined, [{ type: "settle", call: "3/0" }]],
  [undefined, died],
  [{ type: "ready", ...maker(1), memoryBytes: 0 }, []],
];
const replay = (of: number): RunnerEffect => ({ type: "replay", ...maker(1), call: "9/0", sequence: 9, of });
const take = (request: number, from = trainer, call = "2/0"): RunnerInput => {
  return { type: "take", request, from, call, channel: "items", acknowledge: true };
};
const batch = (request: number, ...payloads: string[]): RunnerEffect => {
  const items = payloads.map((payload, delivery) => ({ payload, delivery }));
  return { type: "answer", request, answer: { type: "batch", worker: "trainer/0", items: items as never } };
};
const put: Turn = [
  { type: "put", request: 1, from: maker(), call: "1/0", channel: "items", items: [{ payload: "a", sizeBytes: 1 }] },
  [{ type: "answer", request: 1, answer: { type: "done" } }],
];
const train: Turn = [
  { type: "call", sequence: 2, component: "trainer", method: "trainer", ranks: [0, 1], ends: [] },
  [],
];
const inRound = [0, 1].map((index): Turn => {
  const from = { worker: `trainer/${index}`, incarnation: 0 };
  return [{ ...take(5 + index, from, `2/${index}`), inGang: true } as RunnerInput, []];
});
const committed: Turn = [{ type: "returned", ...maker(), call: "1/0" }, []];

test.each<[string, readonly Turn[], readonly Turn[]]>([
  ["W2: a step that begins too early", [step(1), step(2)], [step(1), step(2), step(3)]],
  [
    "RK1: calls out of order",
    [[undefined, [send("1/0"), send("2/0"), send("1/0")]]],
    [[undefined, [send("2/0"), send("1/0")]]],
  ],
  [
    "RS2: a death that a peer is not told of",
    [
      [undefined, [up(trainer), up(maker())]],
      [undefined, [...died, told]],
    ],
    [
      [undefined, [up(trainer), up(maker())]],
      [undefined, died],
    ],
  ],
  [
    "CB2: a call that is not repeated",
    [...pulled, [undefined, [replay(3), up(maker(1))]]],
    [...pulled, [undefined, [up(maker(1))]]],
  ],
  [
    "CB2: an older call that is repeated",
    [...pulled, [undefined, [replay(4), up(maker(1))]]],
    [...pulled, [undefined, [replay(2), up(maker(1))]]],
  ],
  ["C6: an item before its commit", [put, committed, [take(2), [batch(2, "a")]]], [put, [take(2), [batch(2, "a")]]]],
  [
    "C1: an item twice",
    [put, committed, [take(2), [batch(2, "a")]], [take(3), [batch(3, "b")]]],
    [put, committed, [take(2), [batch(2, "a")]], [take(3), [batch(3, "a")]]],
  ],
  [
    "C8: a round of one rank alone",
    [train, ...inRound, [undefined, [batch(5, "a"), batch(6, "b")]]],
    [train, ...inRound, [undefined, [batch(5, "a")]]],
  ],
  ["RS5: an answer twice", [put], [put, [undefined, put[1]]]],
])("%s", (name, sound, broken) => {
  expect(() => judged(sound)).not.toThrow();
  expect(() => judged(broken)).toThrow(`${name.slice(0, name.indexOf(":"))}: `);
});

test("C3: a stream that holds more than it may, unless takes have let that through", () => {
  expect(() => judged([put], { items: 6, overdrawn: 2 })).not.toThrow();
  expect(() => judged([put], { items: 6, overdrawn: 1 })).toThrow(
    "C3: 'items' holds 6 items of 'step-1', of 4 that it may",
  );
});
