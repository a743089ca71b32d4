import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { toChoices } from "../src/arrange/choices.ts";
import { elasticOf } from "../src/decide/queued-action.ts";
import {
  decide,
  defaultDecideOptions,
  type Policy,
  policies,
  type QueuedAction,
  type ResourceState,
  solveActions,
} from "../src/index.ts";

type Waiting = { id: string; cost: Record<string, number | number[]>; key?: string; seconds?: number | number[] };

const seconds = fc.integer({ min: 1, max: 60 });
const scalable = (key: "cpu" | "gpu", other: number) =>
  fc
    .uniqueArray(fc.tuple(fc.integer({ min: 1, max: 8 }), seconds), {
      minLength: 1,
      maxLength: 4,
      selector: ([u]) => u,
    })
    .map((pairs) => ({ cost: { [key]: pairs.map((p) => p[0]), memory: other }, key, seconds: pairs.map((p) => p[1]) }));
const waitingActions = fc
  .array(
    fc.oneof(
      { weight: 3, arbitrary: scalable("cpu", 1) },
      { weight: 2, arbitrary: scalable("gpu", 0.5) },
      {
        weight: 1,
        arbitrary: fc.record({
          cost: fc.constant({ cpu: 1, search: 1 }),
          seconds: fc.option(seconds, { nil: undefined }),
        }),
      },
      { weight: 1, arbitrary: fc.constant({ cost: { memory: 2.5 } }) },
    ),
    { maxLength: 10 },
  )
  .map((actions): Waiting[] =>
    actions.map((action, i) => ({
      id: `a${i}`,
      cost: action.cost,
      ...("key" in action ? { key: action.key } : {}),
      ...("seconds" in action && action.seconds !== undefined ? { seconds: action.seconds } : {}),
    })),
  );
const busy = fc.array(fc.record({ units: fc.integer({ min: 1, max: 4 }), endsInSeconds: seconds }), { maxLength: 3 });
const resources = fc.record({
  cpu: fc.record({ free: fc.integer({ min: 0, max: 16 }), busy }),
  gpu: fc.constantFrom(
    { chunks: [{ node: 0, start: 0, size: 8 }], busy: [] },
    {
      chunks: [
        { node: 0, start: 4, size: 2 },
        { node: 1, start: 0, size: 4 },
        { node: 1, start: 7, size: 1 },
      ],
      busy: [{ units: 2, endsInSeconds: 5 }],
    },
    { chunks: [], busy: [{ units: 8, endsInSeconds: 9 }] },
  ),
  memory: fc.record({ free: fc.integer({ min: 0, max: 12 }) }),
  search: fc.record({ free: fc.integer({ min: 0, max: 2 }) }),
});
const order = fc.constantFrom("prefix" as const, "per-resource" as const);
const isolated = { numRuns: 300 };

const freeOf = (r: { free: number } | { chunks: readonly { size: number }[] }): number =>
  "free" in r ? r.free : r.chunks.reduce((sum, c) => sum + c.size, 0);

describe("one decision", () => {
  test.each([...policies])(
    "%s: DC1 DC2 PL1 PL3 first come on every resource, allowed units, within every resource",
    (policy) => {
      fc.assert(
        fc.property(waitingActions, resources, order, (waiting, states, by) => {
          const { selected } = solveActions({ policy, order: by, resources: states, waiting });
          const chosen = new Map(selected.map((s) => [s.id, s.allocation]));
          expect(selected.map((s) => s.id)).toEqual(waiting.filter((w) => chosen.has(w.id)).map((w) => w.id));
          if (by === "prefix")
            expect(selected.map((s) => s.id)).toEqual(waiting.slice(0, selected.length).map((w) => w.id));
          const used: Record<string, number> = {};
          const leastUsed: Record<string, number> = {};
          for (const { id, cost } of waiting)
            for (const [resource, amount] of Object.entries(chosen.has(id) ? cost : {})) {
              expect([amount].flat()).toContain(chosen.get(id)![resource]);
              used[resource] = (used[resource] ?? 0) + chosen.get(id)![resource]!;
              leastUsed[resource] = (leastUsed[resource] ?? 0) + Math.min(...[amount].flat());
            }
          // Whoever was passed on a resource could have started, and was passed only by actions that do not scale there.
          waiting.forEach((passed, i) => {
            if (chosen.has(passed.id)) return;
            for (const [resource, amount] of Object.entries(passed.cost)) {
              const passers = waiting.slice(i + 1).filter((w) => chosen.has(w.id) && w.cost[resource] !== undefined);
              if (passers.length === 0) continue;
              expect(Array.isArray(passed.seconds)).toBe(true);
              if (resource === passed.key)
                expect(
                  passers.some((w) => w.key === resource && Array.isArray(w.seconds) && w.seconds.length > 1),
                ).toBe(false);
              const least = Math.min(...[amount].flat());
              expect(leastUsed[resource]! + least).toBeLessThanOrEqual(
                freeOf(states[resource as keyof typeof states]) + 1e-9,
              );
            }
          });
          for (const [resource, units] of Object.entries(used))
            expect(units).toBeLessThanOrEqual(freeOf(states[resource as keyof typeof states]) + 1e-9);
        }),
        isolated,
      );
    },
  );

  test.each([...policies])("%s: PL2 whoever is first and fits starts when nothing runs", (policy) => {
    fc.assert(
      fc.property(waitingActions, order, (waiting, by) => {
        const idle = {
          cpu: { free: 16 },
          gpu: { chunks: [{ node: 0, start: 0, size: 8 }] },
          memory: { free: 12 },
          search: { free: 2 },
        };
        const { selected } = solveActions({ policy, order: by, resources: idle, waiting });
        if (waiting.length > 0) expect(selected[0]?.id).toBe("a0");
      }),
      isolated,
    );
  });

  test("an action that waits for one resource holds up only those that share one with it", () => {
    const waiting = [
      { id: "blocked", cost: { search: 1 } },
      { id: "other", cost: { cpu: 1 } },
      { id: "behind", cost: { cpu: 1, search: 1 } },
      { id: "after", cost: { cpu: 1 } },
    ];
    const states = { cpu: { free: 8 }, search: { free: 0 } };
    expect(solveActions({ order: "per-resource", resources: states, waiting }).selected.map((s) => s.id)).toEqual([
      "other",
    ]);
    expect(solveActions({ resources: states, waiting }).selected).toEqual([]);
  });

  test("actions that scale on different resources are each given their own key", () => {
    const answer = solveActions({
      resources: { cpu: { free: 8 }, gpu: { chunks: [{ node: 0, start: 0, size: 4 }] } },
      waiting: [
        { id: "tests", cost: { cpu: [1, 2, 4, 8] }, key: "cpu", seconds: [80, 40, 20, 10] },
        { id: "judge", cost: { gpu: [1, 2, 4], cpu: 1 }, key: "gpu", seconds: [9, 5, 3] },
      ],
    });
    expect(answer.selected).toEqual([
      { id: "tests", allocation: { cpu: 4 } },
      { id: "judge", allocation: { gpu: 4, cpu: 1 } },
    ]);
    expect(answer.objective).toBe(23);
  });
});

/** Algorithm 1 and 2 by the letter, on one pool, with every arrangement by trying all. */
function literalPaper(
  waiting: { units: number[]; seconds: number[] }[],
  free: number,
  busyEnds: number[],
  depth: number,
) {
  const arrange = (n: number): { total: number; picks: number[] } => {
    let best = { total: Number.POSITIVE_INFINITY, picks: [] as number[] };
    const visit = (i: number, left: number, total: number, picks: number[]): void => {
      if (left < 0) return;
      if (i === n) {
        if (total < best.total) best = { total, picks: [...picks] };
        return;
      }
      for (const [k, u] of waiting[i]!.units.entries())
        visit(i + 1, left - u, total + waiting[i]!.seconds[k]!, [...picks, k]);
    };
    visit(0, free, 0, []);
    return best;
  };
  let candidates = 0;
  for (let sum = 0; candidates < waiting.length; candidates++) {
    sum += waiting[candidates]!.units[0]!;
    if (sum > free) break;
  }
  const objective = (n: number): number => {
    const { total, picks } = arrange(n);
    let least = n === waiting.length ? 0 : Number.POSITIVE_INFINITY;
    for (let d = 0; n < waiting.length && d < Math.min(depth, waiting[n]!.seconds.length); d++) {
      const heap = [...busyEnds, ...picks.map((k, i) => waiting[i]!.seconds[k]!)];
      let sum = 0;
      for (let i = n; i < waiting.length; i++) {
        heap.sort((a, b) => a - b);
        const ends = (heap.shift() ?? 0) + waiting[i]!.seconds[i === n ? d : 0]!;
        sum += ends;
        heap.push(ends);
      }
      least = Math.min(least, sum);
    }
    return total + least;
  };
  if (candidates === 0) return { started: 0, objective: objective(0) };
  let started = candidates;
  let value = objective(started);
  while (started > 1) {
    const next = objective(started - 1);
    if (next >= value) break;
    value = next;
    started--;
  }
  return { started, objective: value };
}

const fractionOf = (value: number): number => Math.abs(Math.sin(value * 12.9898) * 43758.5453) % 1;

describe("policies", () => {
  const descending = fc
    .tuple(
      fc.uniqueArray(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 3 }),
      fc.uniqueArray(fc.integer({ min: 1, max: 999 }), { minLength: 3, maxLength: 3 }),
    )
    .map(([units, values]) => ({
      units: [...units].sort((a, b) => a - b),
      // Fractions that no two sums share: of arrangements that are equally good, the two may choose different ones.
      seconds: [...values]
        .sort((a, b) => b - a)
        .slice(0, units.length)
        .map((value) => value + fractionOf(value)),
    }));

  test("paper equals Algorithms 1 and 2 by the letter with exact arrangements", () => {
    fc.assert(
      fc.property(
        fc.array(descending, { minLength: 1, maxLength: 6 }),
        fc.integer({ min: 1, max: 10 }),
        fc.array(fc.integer({ min: 1, max: 500 }), { maxLength: 2 }),
        fc.integer({ min: 1, max: 3 }),
        (actions, free, ends, depth) => {
          const expected = literalPaper(actions, free, ends, depth);
          const answer = solveActions({
            policy: "paper",
            depth,
            resources: { cpu: { free, busy: ends.map((endsInSeconds) => ({ units: 1, endsInSeconds })) } },
            waiting: actions.map((a, i) => ({ id: `a${i}`, cost: { cpu: a.units }, key: "cpu", seconds: a.seconds })),
          });
          expect(answer.selected.length).toBe(expected.started);
          expect(answer.objective).toBeCloseTo(expected.objective, 6);
        },
      ),
      { numRuns: 300 },
    );
  });

  test("fixed-dop waits for its units, fcfs-min takes the least", () => {
    const waiting = [1, 2, 3].map((i) => ({
      id: `a${i}`,
      cost: { cpu: [1, 2, 4, 8] },
      key: "cpu",
      seconds: [80, 40, 20, 10],
    }));
    const at = (policy: Policy) =>
      solveActions({
        policy,
        resources: { cpu: { free: 10, busy: [{ units: 2, endsInSeconds: 1 }] } },
        waiting,
      }).selected.map((s) => s.allocation.cpu);
    expect(at("fixed-dop")).toEqual([4, 4]);
    expect(at("fcfs-min")).toEqual([1, 1, 1]);
  });

  test("unit-aware waits a moment for many units rather than a minute on one", () => {
    const states = (endsInSeconds: number) => ({ cpu: { free: 1, busy: [{ units: 31, endsInSeconds }] } });
    const waiting = [{ id: "reward", cost: { cpu: [1, 2, 4, 8, 16, 32] }, key: "cpu", seconds: [60, 30, 15, 8, 4, 2] }];
    expect(solveActions({ resources: states(0.1), waiting }).selected).toEqual([]);
    expect(solveActions({ resources: states(500), waiting }).selected).toEqual([
      { id: "reward", allocation: { cpu: 1 } },
    ]);
  });
});

describe("a queue of suites that came together", () => {
  const seconds = (units: number, one: number, serialShare: number): number =>
    one * (serialShare + (1 - serialShare) / units);
  const queue = (num: number, one: number, serialShare: number, waitedSeconds: number): QueuedAction[] => {
    const units = Array.from({ length: 8 }, (_, i) => i + 1);
    const choices = toChoices(
      "suite",
      units,
      units.map((count) => seconds(count, one, serialShare)),
    );
    const elastic = elasticOf("cpu", choices);
    return Array.from({ length: num }, (_, i) => {
      return { id: `${i}`, demands: [["cpu", 1]] as const, elastic, seconds: one, waitedSeconds };
    });
  };

  test("PL4 the first has waited long enough, and those behind it are not made to start on one unit each", () => {
    const given = (waitedSeconds: number): number[] =>
      decide(queue(4, 60, 0.05, waitedSeconds), new Map([["cpu", { free: 4 }]])).selected.map((s) => s.allocation.cpu!);
    // One after the other on four ends after 17, 35, 52 and 69 s; on one each, after 60.
    expect(given(0)).toEqual([4]);
    expect(given(63)).toEqual([4]);
  });

  test("no units are left idle until what runs has ended, which is far off", () => {
    const busy = [71, 41].map((endsInSeconds) => ({ units: 2, endsInSeconds }));
    const { selected } = decide(queue(59, 60, 0.02, 0), new Map([["cpu", { free: 28, busy }]]));
    expect(selected.reduce((sum, { allocation }) => sum + allocation.cpu!, 0)).toBeGreaterThan(20);
  });
});

test("unit-aware gives fewer units the more actions run: as many will come while it runs (Little's law)", () => {
  const units = [1, 2, 4, 8, 16, 32];
  const waiting = [{ id: "reward", cost: { cpu: units }, key: "cpu", seconds: units.map((u) => 60 * (0.1 + 0.9 / u)) }];
  const given = [0, 1, 8, 64].map((running) => {
    const busy = Array.from({ length: running }, () => ({ units: 2, endsInSeconds: 30 }));
    return solveActions({ resources: { cpu: { free: 128, busy } }, waiting }).selected[0]!.allocation.cpu!;
  });
  expect(given[0]).toBe(32);
  expect(given).toEqual(given.toSorted((a, b) => b - a));
  expect(given.at(-1)).toBeLessThan(32);
});

test("unit-aware gives fewer units while tool calls wait or run on them: each of them would wait for a unit, too", () => {
  const units = [1, 2, 4, 8, 16, 32];
  const seconds = units.map((u) => 60 * (0.1 + 0.9 / u));
  const elastic = elasticOf("cpu", toChoices("reward", units, seconds));
  const reward: QueuedAction = { id: "reward", demands: [["cpu", 1]], elastic, seconds: seconds[0] };
  const given = (running: number, waiting: number): number => {
    const busy = Array.from({ length: running }, () => ({ units: 1, endsInSeconds: 2, fixed: true }));
    const calls = Array.from({ length: waiting }, (_, i) => ({
      id: `call${i}`,
      demands: [["cpu", 40]] as const,
      elastic: undefined,
      seconds: 2,
    }));
    const { selected } = decide([reward, ...calls], new Map([["cpu", { free: 32, busy }]]));
    return selected.find(({ id }) => id === "reward")!.allocation.cpu!;
  };
  // Under a price p, (0.1 + 0.9 / u)(1 + p u) is least at u = 3 / sqrt(p), of which the set has a neighbour: 8 of 40 units
  // busy by 8 calls, with 8 more given, are a price of 8 / 40 * 16 / 40; 48 of 80, with 4 more, of 48 / 80 * 52 / 80.
  expect([0, 8, 48, 256].map((running) => given(running, 0))).toEqual([32, 8, 4, 4]);
  const waiting = [0, 4, 16, 64].map((numWaiting) => given(0, numWaiting));
  expect(waiting).toEqual(waiting.toSorted((a, b) => b - a));
  expect(waiting.at(-1)).toBeLessThan(waiting[0]!);
});

describe("over time", () => {
  test.each([...policies])(
    "%s: DC3 PL4 every action of a long random stream starts, those that scale in order and the others in order",
    (policy) => {
      fc.assert(
        fc.property(fc.integer({ min: 1, max: 2 ** 30 }), (seed) => {
          let state = seed;
          const draw = (n: number): number => {
            state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
            return Math.floor((state / 2 ** 32) * n);
          };
          let now = 0;
          const queue: (QueuedAction & { since: number })[] = [];
          const scaling: number[] = [];
          const running: { units: number; ends: number }[] = [];
          const startOrder: number[] = [];
          for (let arrived = 0; startOrder.length < 60; ) {
            for (let n = draw(4); n > 0 && arrived < 60; n--) {
              const one = 5 + draw(100);
              const scales = draw(3) > 0;
              const choices = toChoices(`${arrived}`, [2, 4, 8], [one, one * 0.6, one * 0.4]);
              queue.push({
                id: `${arrived}`,
                demands: [["cpu", scales ? 2 : 1]],
                elastic: scales ? elasticOf("cpu", choices) : undefined,
                seconds: one,
                since: now,
              });
              arrived++;
            }
            const free = 12 - running.reduce((sum, r) => sum + r.units, 0);
            const cpu: ResourceState = {
              free,
              busy: running.map((r) => ({ units: r.units, endsInSeconds: r.ends - now })),
            };
            const { selected } = decide(
              queue.map((q) => ({ ...q, waitedSeconds: now - q.since })),
              new Map([["cpu", cpu]]),
              {
                policy,
                order: "per-resource",
                depth: 2,
                dop: 4,
              },
            );
            for (const { id, allocation, seconds: lasts } of selected) {
              const at = queue.findIndex((q) => q.id === id);
              if (queue.splice(at, 1)[0]!.elastic !== undefined) scaling.push(Number(id));
              running.push({ units: allocation.cpu!, ends: now + lasts! });
              startOrder.push(Number(id));
            }
            if (running.length === 0) {
              if (queue.length > 0) throw new Error("nothing runs and nobody starts");
              if (arrived === 60) break;
              continue;
            }
            running.sort((a, b) => a.ends - b.ends);
            now = running.shift()!.ends;
          }
          const ascending = (ids: number[]): number[] => [...ids].sort((a, b) => a - b);
          expect(ascending(startOrder)).toEqual(Array.from({ length: 60 }, (_, i) => i));
          expect(scaling).toEqual(ascending(scaling));
          const others = startOrder.filter((id) => !scaling.includes(id));
          expect(others).toEqual(ascending(others));
        }),
        { numRuns: 15 },
      );
    },
  );
});

test("PL4 the first that scales and could start has waited no longer than it would have run, however wrong the estimates", () => {
  const action = fc.record({
    at: fc.integer({ min: 0, max: 60 }),
    one: fc.integer({ min: 1, max: 60 }),
    serialShare: fc.double({ min: 0, max: 1, noNaN: true }),
    // What it takes, in parts of what is thought.
    wrongBy: fc.constantFrom(0.1, 0.5, 1, 2, 30),
    least: fc.integer({ min: 1, max: 4 }),
    scales: fc.boolean(),
  });
  let numAtTheBound = 0;
  fc.assert(
    fc.property(fc.array(action, { minLength: 2, maxLength: 14 }), (actions) => {
      const coming = [...actions].sort((a, b) => a.at - b.at);
      const queue: (QueuedAction & { since: number; wrongBy: number })[] = [];
      let running: { units: number; thought: number; since: number; ends: number }[] = [];
      let numStarted = 0;
      for (let now = 0; numStarted < actions.length; ) {
        for (; coming.length > 0 && coming[0]!.at <= now; coming.shift()) {
          const { one, serialShare, least, scales, wrongBy, at } = coming[0]!;
          const units = [least, 2 * least, 8];
          const choices = toChoices(
            `${queue.length + numStarted}`,
            units,
            units.map((count) => one * (serialShare + (1 - serialShare) / count)),
          );
          const elastic = scales ? elasticOf("cpu", choices) : undefined;
          const id = `${actions.length - coming.length}`;
          queue.push({ id, demands: [["cpu", least]], elastic, seconds: choices.seconds[0]!, since: at, wrongBy });
        }
        let again: number | undefined;
        for (let started = true; started; ) {
          const busy = running.map(({ units, thought, since }) => {
            const left = thought - (now - since);
            return { units, endsInSeconds: left > 0 ? left : Math.max(0.001, now - since) };
          });
          const free = 8 - running.reduce((sum, { units }) => sum + units, 0);
          const waiting = queue.map((one) => ({ ...one, waitedSeconds: now - one.since }));
          const { selected, againInSeconds } = decide(waiting, new Map([["cpu", { free, busy }]]));
          for (const { id, allocation, seconds: thought } of selected) {
            const [one] = queue.splice(
              queue.findIndex((waits) => waits.id === id),
              1,
            );
            running.push({
              units: allocation.cpu!,
              thought: thought!,
              since: now,
              ends: now + thought! * one!.wrongBy,
            });
            numStarted++;
          }
          started = selected.length > 0;
          again = againInSeconds;
        }
        const free = 8 - running.reduce((sum, { units }) => sum + units, 0);
        const first = queue[0];
        if (first?.elastic !== undefined && first.demands[0]![1] <= free) {
          expect(now - first.since).toBeLessThan(first.seconds!);
          // Whoever decides again then finds that it starts.
          expect(again).toBeLessThanOrEqual(first.seconds! - (now - first.since) + 1e-9);
          numAtTheBound++;
        }
        const next = Math.min(now + (again ?? Number.POSITIVE_INFINITY), coming[0]?.at ?? Number.POSITIVE_INFINITY);
        now = Math.min(next, ...running.map(({ ends }) => ends)) + 1e-6;
        running = running.filter(({ ends }) => ends > now);
      }
    }),
    { numRuns: 400 },
  );
  expect(numAtTheBound).toBeGreaterThan(10);
});

describe("when to decide again", () => {
  const on = (resource: string, id: string, waitedSeconds: number): QueuedAction => {
    const elastic = elasticOf(
      resource,
      toChoices(
        id,
        [1, 2, 4, 8],
        [1, 2, 4, 8].map((units) => 1000 / units),
      ),
    );
    return { id, demands: [[resource, 1]] as const, elastic, seconds: 1000, waitedSeconds };
  };
  const busy = [{ units: 7, endsInSeconds: 1 }];

  test("PL4 in strict order, only the action whose turn it is counts", () => {
    const waiting = [on("cpu", "first", 1), ...Array.from({ length: 6 }, (_, i) => on("gpu", `${i}`, 5000))];
    const resources = new Map([
      ["cpu", { free: 1, busy }],
      ["gpu", { free: 8 }],
    ]);
    const { selected, againInSeconds } = decide(waiting, resources, { ...defaultDecideOptions, order: "prefix" });
    expect(selected).toEqual([]);
    expect(againInSeconds).toBe(999);
  });

  test.each(["paper", "fixed-dop", "fcfs-min"] as const)("%s does not look at how long one has waited", (policy) => {
    const resources = new Map([["cpu", { free: 1, busy }]]);
    const { againInSeconds } = decide([on("cpu", "overdue", 5000)], resources, { ...defaultDecideOptions, policy });
    expect(againInSeconds).toBeUndefined();
  });
});

describe("bad input names the field, its value and what is allowed", () => {
  const resourcesOf = { cpu: { free: 4 } };
  test.each([
    [{ resources: {}, waiting: [{ id: "a", cost: { cpu: 1 } }] }, /waiting\[0\]\.cost\.cpu/],
    [
      { resources: resourcesOf, waiting: [{ id: "a", cost: { cpu: [1, 2] }, key: "cpu", seconds: [1] }] },
      /waiting\[0\]\.seconds/,
    ],
    [
      { resources: resourcesOf, waiting: [{ id: "a", cost: { cpu: [1, 2] } }] },
      /waiting\[0\]\.cost\.cpu.*key resource/,
    ],
    [
      {
        resources: resourcesOf,
        waiting: [
          { id: "a", cost: {} },
          { id: "a", cost: {} },
        ],
      },
      /waiting\[1\]\.id.*'a'/,
    ],
    [{ resources: { cpu: { free: -1 } }, waiting: [] }, /resources\.cpu\.free.*'-1'/],
    [{ policy: "best", resources: {}, waiting: [] }, /policy.*'best'/],
  ])("%j", (input, message) => {
    expect(() => solveActions(input)).toThrow(message);
  });

  test("an unknown method", () => {
    expect(() => solveActions({ resources: {}, waiting: [] }, { method: "best" })).toThrow(
      /'best' is not known; allowed are 'unit-aware'/,
    );
  });
});
