import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { axisLabels } from "../src/view/axis.ts";
import { colourSlots } from "../src/view/colours.ts";
import { chooseEpisodes, type EpisodeLine } from "../src/view/episodes.ts";
import { whyIdle } from "../src/view/idle.ts";
import { runPhase } from "../src/view/run-status.ts";
import { categories, SpanTable, spanHeader } from "../src/view/span-table.ts";
import { appendSpan, type OneSpan } from "./support/append-span.ts";

describe("labels of an axis", () => {
  it("tell its ticks apart, however close they are", () => {
    expect(axisLabels([0.0095, 0.01, 0.0105], { percent: true })).toEqual(["0.95 %", "1.00 %", "1.05 %"]);
    expect(axisLabels([0, 0.25, 0.5], { percent: true })).toEqual(["0 %", "25 %", "50 %"]);
    fc.assert(
      fc.property(
        fc.integer({ min: -9, max: 9 }),
        fc.integer({ min: -50, max: 50 }),
        fc.constantFrom(1, 2, 2.5, 5),
        fc.integer({ min: 2, max: 9 }),
        fc.boolean(),
        (power, first, factor, count, percent) => {
          const step = factor * 10 ** power;
          const ticks = Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
          expect(new Set(axisLabels(ticks, { percent })).size).toBe(new Set(ticks).size);
        },
      ),
    );
  });
});

describe("colours of components", () => {
  const names = fc.uniqueArray(fc.constantFrom("rollout", "actor", "inference", "judge", "planner", "lo", "env", "x"), {
    maxLength: 7,
  });

  it("depend on the names alone, and differ up to seven components", () => {
    fc.assert(
      fc.property(names, fc.integer(), (list, seed) => {
        const shuffled = [...list].sort((a, b) => ((a.length * 31 + seed) % 7) - ((b.length * 17 + seed) % 5));
        const slots = colourSlots(list);
        expect(colourSlots(shuffled)).toEqual(slots);
        expect(new Set(slots.values()).size).toBe(list.length);
        // The runner is there in traces and not in plans.
        const withRunner = colourSlots([...list, "runner"]);
        for (const name of list) expect(withRunner.get(name)).toBe(slots.get(name));
      }),
    );
  });
});

const arbitrarySpan = fc.record({
  worker: fc.constantFrom("rollout/0", "rollout/1", "actor/0"),
  category: fc.constantFrom(...categories),
  name: fc.constantFrom("decode", "episodes", "train"),
  startMs: fc.double({ min: 0, max: 1000, noNaN: true }),
  durationMs: fc.double({ min: 0, max: 300, noNaN: true }),
});

const tableOf = (spans: readonly OneSpan[]) => {
  const table = new SpanTable();
  for (const span of spans) appendSpan(table, span);
  return table;
};

describe("a table of spans", () => {
  it("arrives whole, in whatever parts it is sent (ST1)", () => {
    fc.assert(
      fc.property(fc.array(arbitrarySpan, { maxLength: 60 }), fc.integer({ min: 1, max: 20 }), (spans, part) => {
        const sent = tableOf(spans);
        const got = new SpanTable();
        do {
          const bytes = sent.encode(got.length, part);
          expect(got.decode(bytes.buffer as ArrayBuffer)).toBe(true);
          expect(spanHeader(bytes.buffer as ArrayBuffer).isAll).toBe(got.length === sent.length);
          expect(spanHeader(sent.encode(0, part, false).buffer as ArrayBuffer).isAll).toBe(false);
        } while (got.length < sent.length);
        expect(got.decode(sent.encode(got.length + 1).buffer as ArrayBuffer)).toBe(got.length === sent.length);
        expect([got.names, got.workers, got.length]).toEqual([sent.names, sent.workers, sent.length]);
        for (let row = 0; row < sent.length; row++) {
          expect(got.start[row]).toBe(sent.start[row]);
          expect(got.category[row]).toBe(sent.category[row]);
          expect(got.names[got.name[row]!]).toBe(spans[row]!.name);
        }
      }),
    );
  });

  it("refuses rows of another generation", () => {
    const sent = new SpanTable(2);
    expect(new SpanTable(1).decode(sent.encode(0).buffer as ArrayBuffer)).toBe(false);
  });
});

describe("why devices are idle", () => {
  const span = (worker: string, category: (typeof categories)[number], from: number, to: number, name = "x") => ({
    ...{ worker, category, name },
    startMs: from,
    durationMs: to - from,
  });

  it("counts every instant once: what work hides costs nothing", () => {
    const table = tableOf([
      span("rollout/0", "call", 0, 100),
      span("rollout/0", "compute", 0, 60),
      span("rollout/0", "channel-wait", 40, 80, "prompts"),
    ]);
    const { components, causes } = whyIdle(table, { fromMs: 0, toMs: 200 });
    expect(components[0]).toMatchObject({ component: "rollout", compute: 0.3, channelWait: expect.closeTo(0.1) });
    expect(causes.map(({ cause, seconds }) => [cause, Math.round(seconds * 1000)])).toEqual([
      ["has no call to do", 100],
      ["waits at channel 'prompts'", 20],
      ["is in a call, in what no timer measures", 20],
    ]);
  });

  it("accounts for all of the window, worst first", () => {
    fc.assert(
      fc.property(fc.array(arbitrarySpan, { minLength: 1, maxLength: 40 }), (spans) => {
        const { seconds, components, causes } = whyIdle(tableOf(spans), { fromMs: 100, toMs: 900 });
        for (const { component, compute, transfer, lockWait, channelWait, idle } of components) {
          expect(compute + transfer + lockWait + channelWait + idle).toBeCloseTo(1, 6);
          const lost = causes
            .filter((cause) => cause.component === component)
            .reduce((sum, each) => sum + each.seconds, 0);
          expect(Math.abs(lost + compute * seconds - seconds)).toBeLessThan(0.02);
        }
        expect(causes.map((cause) => cause.seconds)).toEqual(
          causes.map((cause) => cause.seconds).toSorted((a, b) => b - a),
        );
      }),
    );
  });
});

describe("the state of a run", () => {
  const gone = { beatAgeMs: undefined, hasSummary: false, hasFailed: false, isJournalFinished: false, silentMs: 0 };
  it("is told from what its folder says", () => {
    expect(runPhase(gone)).toBe("interrupted");
    expect(runPhase({ ...gone, beatAgeMs: 800 })).toBe("running");
    expect(runPhase({ ...gone, beatAgeMs: 60_000 })).toBe("interrupted");
    expect(runPhase({ ...gone, beatAgeMs: 800, hasFailed: true })).toBe("running");
    expect(runPhase({ ...gone, hasFailed: true })).toBe("failed");
    expect(runPhase({ ...gone, hasSummary: true, isJournalFinished: true })).toBe("finished");
    expect(runPhase({ ...gone, hasSummary: true })).toBe("stopped");
  });
});

describe("choosing episodes", () => {
  const line = (index: number, reward: number, length: number, text = ""): EpisodeLine => ({
    ...{ index, step: index, worker: "rollout/0", promptId: `p${index}`, reward, length },
    ...{ finishReason: "stop", numCalls: 0, prompt: "1+1=", text },
  });
  const lines = [line(0, 0, 5, "abc"), line(1, 1, 9, "ABD"), line(2, 0.5, 2, "x")];
  it("filters by reward, length and text, and orders", () => {
    const indices = (...args: Parameters<typeof chooseEpisodes>) => chooseEpisodes(...args).map(({ index }) => index);
    expect(indices(lines, {}, "best")).toEqual([1, 2, 0]);
    expect(indices(lines, { leastReward: 0.5 }, "shortest")).toEqual([2, 1]);
    expect(indices(lines, { text: "ab" }, "newest")).toEqual([1, 0]);
    expect(indices(lines, { mostLength: 5, mostReward: 0.2 }, "oldest")).toEqual([0]);
  });
});
