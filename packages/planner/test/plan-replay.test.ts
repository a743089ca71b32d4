import fc from "fast-check";
import { expect, test } from "vitest";
import { type ReplayedCall, replaySeconds } from "../src/auto/plan-replay.ts";

const seconds = (whole: number) => (share: number) => whole * share;
const flow = { onceSeconds: 0, turnSeconds: 0 };
const calm = { bytes: 0, onloadSeconds: 0, offloadSeconds: 0 };

/** A chain in which each call takes what the one before puts, all at once. */
const chain = (parts: readonly (Pick<ReplayedCall, "component" | "ranks"> & { readonly work: number })[]) =>
  parts.map(
    ({ component, ranks, work }, at): ReplayedCall => ({
      component,
      ranks,
      takes: [{ channel: `to-${component}`, items: 12, most: "all" }],
      puts: at + 1 < parts.length ? [{ channel: `to-${parts[at + 1]!.component}`, items: 12, capacity: 1000 }] : [],
      secondsOf: (share) => seconds(work)(share * ranks.length),
      ...flow,
    }),
  );

test("what takes turns on shared devices does so one after the other, with the swaps that the device lock makes (L4)", () => {
  const [two, three] = [
    ["0", "1"],
    ["0", "1", "2"],
  ];
  const devices = [three, two, two, three, two];
  const parts = devices.map((own, i) => ({ component: `c${i}`, ranks: [own], work: 0 }));
  const costs: [number, number, number][] = [
    [73, 0.077, 0.077],
    [37, 0.031, 0.136],
    [18, 0.039, 0.032],
    [79, 0.073, 0.085],
    [63, 0.022, 0.035],
  ];
  const workers = new Map(
    costs.map(([bytes, onloadSeconds, offloadSeconds], i) => [`c${i}`, { bytes, onloadSeconds, offloadSeconds }]),
  );
  const memory = new Map(three.map((device) => [device, 86]));
  // Everything is loaded once a step, and the two that fit together are freed together.
  const expected = 0.077 + 0.031 + 0.039 + 0.073 + 0.022 + (0.077 + 0.136 + 0.085 + 0.035);
  expect(replaySeconds({ calls: chain(parts), workers, memory })).toBeCloseTo(expected, 6);
});

test("nothing is swapped where all fit, everything where none fits beside another, and never more than that", () => {
  const sizes = fc.array(
    fc.record({
      bytes: fc.integer({ min: 1, max: 10 }),
      onload: fc.integer({ min: 1, max: 9 }),
      offload: fc.integer({ min: 1, max: 9 }),
    }),
    { minLength: 2, maxLength: 6 },
  );
  fc.assert(
    fc.property(sizes, fc.integer({ min: 10, max: 70 }), (all, capacity) => {
      const workers = new Map(
        all.map(({ bytes, onload, offload }, i) => [
          `c${i}`,
          { bytes, onloadSeconds: onload, offloadSeconds: offload },
        ]),
      );
      const calls = chain(all.map((_, i) => ({ component: `c${i}`, ranks: [["0"]], work: 0 })));
      const swaps = replaySeconds({ calls, workers, memory: new Map([["0", capacity]]) })!;
      const everything = all.reduce((sum, { onload, offload }) => sum + onload + offload, 0);
      expect(swaps).toBeLessThanOrEqual(everything);
      if (all.reduce((sum, { bytes }) => sum + bytes, 0) <= capacity) expect(swaps).toBe(0);
      const [least, next] = all.map(({ bytes }) => bytes).sort((a, b) => a - b);
      if (least! + next! > capacity) expect(swaps).toBe(everything);
    }),
  );
});

test("what is independent but called before runs first on a shared device, whatever a schedule has in mind (L2)", () => {
  const source = { takes: [{ channel: "in", items: 4, most: "all" as const }], ...flow };
  const calls: ReplayedCall[] = [
    { component: "early", ranks: [["0"]], puts: [], secondsOf: () => 3, ...source },
    {
      component: "late",
      ranks: [["0"], ["1"]],
      puts: [],
      secondsOf: () => 1,
      ...source,
      takes: [{ channel: "too", items: 4, most: "all" }],
    },
  ];
  const workers = new Map([
    ["early", calm],
    ["late", calm],
  ]);
  expect(replaySeconds({ calls, workers, memory: new Map() })).toBeCloseTo(4, 9);
});

test("a producer that waits for credit lends its device to its consumer, which it shares it with", () => {
  const calls: ReplayedCall[] = [
    {
      component: "producer",
      ranks: [["0"]],
      takes: [{ channel: "in", items: 4, most: 1 }],
      puts: [{ channel: "between", items: 4, capacity: 1 }],
      secondsOf: () => 1,
      ...flow,
    },
    {
      component: "consumer",
      ranks: [["0"]],
      takes: [{ channel: "between", items: 4, most: 1 }],
      puts: [],
      secondsOf: () => 2,
      ...flow,
      onceSeconds: 5,
    },
  ];
  const workers = new Map([
    ["producer", calm],
    ["consumer", calm],
  ]);
  expect(replaySeconds({ calls, workers, memory: new Map() })).toBeCloseTo(4 * 1 + 4 * 2 + 5, 9);
});

const fed = (producers: readonly string[][], isGang: boolean, capacity: number): ReplayedCall[] => [
  {
    component: "producer",
    ranks: producers,
    takes: [{ channel: "in", items: 3, most: 1 }],
    puts: [{ channel: "between", items: 3, capacity }],
    secondsOf: () => 2,
    ...flow,
  },
  {
    component: "trainer",
    ranks: [["0"], ["1"]],
    isGang,
    takes: [{ channel: "between", items: 3, most: 1 }],
    puts: [],
    secondsOf: () => 3,
    ...flow,
  },
];
const feeding = new Map([
  ["producer", calm],
  ["trainer", calm],
]);

test("ranks of a gang begin when each of them has something; other ranks, when they have", () => {
  const times = (isGang: boolean) =>
    replaySeconds({ calls: fed([["2"]], isGang, 9), workers: feeding, memory: new Map() });
  expect(times(false)).toBeCloseTo(2 + 3 + 1 + 3, 9); // the third item is there at 6, and a rank has waited for it since 5
  expect(times(true)).toBeCloseTo(4 + 3 + 3, 9); // both begin at 4, and one goes on at 7
});

test("a gang takes in rounds, each of all that its ranks want together, and one may have nothing of the last", () => {
  const [producer, trainer] = fed([["2"]], true, 9) as [ReplayedCall, ReplayedCall];
  const items = 5;
  const times = (isGang: boolean) =>
    replaySeconds({
      calls: [
        { ...producer, takes: [{ channel: "in", items, most: 1 }], puts: [{ channel: "between", items, capacity: 9 }] },
        { ...trainer, isGang, takes: [{ channel: "between", items, most: 2 }] },
      ],
      workers: feeding,
      memory: new Map(),
    });
  expect(times(true)).toBeCloseTo(8 + 3 + 3, 9); // four are there at 8, the fifth at 10, while it works until 11
  expect(times(false)).toBeCloseTo(10 + 3, 9); // two are there at 4, two at 8, one at 10
});

test("a gang goes first where a producer on its devices waits for room that only the gang makes", () => {
  // The second rank's item has no room, so it has had no turn: without room the gang would wait for it, and it for the gang.
  const seconds = replaySeconds({ calls: fed([["0"], ["1"]], true, 1), workers: feeding, memory: new Map() });
  expect(seconds).toBeGreaterThanOrEqual(2 + 3 + 3);
});

test("a take that nobody can serve is a standstill, not a time", () => {
  const waiting = { takes: [{ channel: "never", items: 1, most: 1 }], secondsOf: () => 1, ...flow };
  const calls: ReplayedCall[] = [
    { component: "a", ranks: [["0"]], puts: [{ channel: "never", items: 1, capacity: 1 }], ...waiting },
  ];
  expect(replaySeconds({ calls, workers: new Map([["a", calm]]), memory: new Map() })).toBeUndefined();
});

test("what streams is taken on its way, however much of it was begun at once", () => {
  const ends = fc.array(fc.double({ min: 0.01, max: 1, noNaN: true }), { minLength: 12, maxLength: 12 });
  fc.assert(
    fc.property(
      ends,
      fc.integer({ min: 1, max: 12 }),
      fc.double({ min: 0, max: 20, noNaN: true }),
      (gaps, piece, work) => {
        const until = [0];
        for (const gap of gaps) until.push(until.at(-1)! + gap);
        const secondsUntil = (part: number) => until[Math.round(12 * part)]!;
        const [maker, taker] = chain([
          { component: "maker", ranks: [["0"]], work: until[12]! },
          { component: "taker", ranks: [["1"]], work },
        ]) as [ReplayedCall, ReplayedCall];
        const calls = [
          { ...maker, streamed: { piece: 1, ofTake: () => ({ items: 12, secondsUntil }) } },
          { ...taker, takes: [{ ...taker.takes[0]!, most: piece }] },
        ];
        // By hand: a chunk begins when its last item is there, and the one before is done.
        let done = 0;
        for (let at = 0; at < 12; at += piece) {
          const next = Math.min(12, at + piece);
          done = Math.max(done, until[next]!) + (work * (next - at)) / 12;
        }
        const free = new Map([calm, calm].map((worker, i) => [i === 0 ? "maker" : "taker", worker]));
        expect(replaySeconds({ calls, workers: free, memory: new Map() })).toBeCloseTo(done, 6);
      },
    ),
  );
});

test("a rank that waits for room has had its turn, so that consumers on its devices make some", () => {
  const one = (
    component: string,
    ranks: ReplayedCall["ranks"],
    takes: string,
    puts: string | undefined,
  ): ReplayedCall => ({
    component,
    ranks,
    takes: [{ channel: takes, items: 8, most: 1 }],
    puts: puts === undefined ? [] : [{ channel: puts, items: 8, capacity: 1 }],
    secondsOf: seconds(1),
    ...flow,
  });
  const calls = [one("a", [["0"], ["1"]], "input", "to-b"), one("b", [["0", "1", "2"]], "to-b", undefined)];
  const workers = new Map(calls.map(({ component }) => [component, calm]));
  expect(replaySeconds({ calls, workers, memory: new Map() })).toBeGreaterThan(1);
});
