/** Who computes beside whom, against both courses followed in small steps of time. */
import type { Computing, WorkSample } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { CoRunner } from "../../src/live/co-runner.ts";
import { RunTrace } from "../../src/live/run-trace.ts";
import { mostTries, mostTriesOfKnown, SlowdownModel } from "../../src/live/slowdown-model.ts";

const devices = ["gpu:0", "gpu:1"];
const turn = (work: string, ms: number, rest: Partial<WorkSample> = {}): WorkSample => ({
  ...{ work, devices, beside: [], passes: ms, tokens: 0, ms, cpuMs: 0, queuedMs: 0, forMs: ms, ends: true, ...rest },
});
const computing = (run: string, work: string, rest: Partial<Computing> = {}): Computing => ({
  ...{ run, work, devices, memory: 0.5, sinceMs: 0, maxSlowdown: undefined, ...rest },
});

/** It knows two works alone, and beside each other by the factors that are given. */
function taught(
  lengths: readonly [number, number],
  factors?: readonly [number, number],
  method?: "greedy" | "playout",
) {
  const runner = new CoRunner({ method });
  const works = ["a/train", "b/train"] as const;
  for (const [i, work] of works.entries()) {
    const ms = lengths[i]!;
    for (let step = 1; step <= 4; step++) runner.worked(work[0]!, turn(work, ms), 0.5, step * 2 * ms);
    if (factors === undefined) continue;
    const beside = { beside: [works[1 - i]!], passes: ms, ms: ms * factors[i]!, ends: false };
    for (let step = 0; step < 4; step++) runner.worked(work[0]!, turn(work, ms, beside), 0.5, 10 * ms);
  }
  return runner;
}
const ask = (runner: CoRunner, waiter: Computing, holder: Computing, nowMs: number) =>
  runner.sharesNow({ waiter, holders: [holder], running: [holder], waiting: [] }, nowMs).shares;

test("the waiter begins when both end sooner by it, from what is left of the holder", () => {
  const factor = fc.double({ min: 1, max: 3, noNaN: true });
  fc.assert(
    fc.property(
      fc.integer({ min: 50, max: 400 }),
      fc.integer({ min: 50, max: 400 }),
      factor,
      factor,
      fc.double({ min: 0, max: 0.85, noNaN: true }),
      (lengthA, lengthB, slowA, slowB, part) => {
        const runner = taught([lengthA, lengthB], [slowA, slowB]);
        const nowMs = 100_000;
        const sinceMs = nowMs - part * lengthA;
        const holder = computing("a", "a/train", { sinceMs });
        let [a, b, ms] = [lengthA * (1 - part), lengthB, 0];
        const solo = a + b;
        const step = 0.05;
        for (; a > 0 || b > 0; ms += step) {
          const [paceA, paceB] = a > 0 && b > 0 ? [slowA, slowB] : [1, 1];
          if (a > 0) a -= step / paceA;
          if (b > 0) b -= step / paceB;
        }
        fc.pre(Math.abs(ms / solo - 1) > 0.01);
        expect(ask(runner, computing("b", "b/train"), holder, nowMs)).toBe(ms < solo);
      },
    ),
    { numRuns: 60 },
  );
});

test("what is not known beside another begins beside it only to be measured, and not for ever (CR1)", () => {
  const nobody = new CoRunner();
  const [a, b] = [computing("a", "a/train"), computing("b", "b/train")];
  expect(ask(nobody, b, a, 10)).toBe(false);
  const runner = taught([100, 100]);
  expect(ask(runner, b, a, 1000)).toBe(true);
  for (let i = 0; i < mostTries; i++)
    runner.worked("a", turn("a/train", 100, { beside: ["b/train"], queuedMs: 100, ends: false }), 0.5, 1000);
  expect(ask(runner, b, a, 1000)).toBe(false);
});

test("one way round may be measured much more often than the other, which is then still tried (CR1)", () => {
  const runner = taught([100, 100]);
  const [a, b] = [computing("a", "a/train"), computing("b", "b/train")];
  const beside = { beside: ["b/train"], ms: 110, ends: false };
  for (let i = 0; i < mostTries; i++) runner.worked("a", turn("a/train", 100, beside), 0.5, 1000);
  expect(ask(runner, b, a, 1000)).toBe(true);
  for (let i = mostTries; i < mostTriesOfKnown; i++) runner.worked("a", turn("a/train", 100, beside), 0.5, 1000);
  expect(ask(runner, b, a, 1000)).toBe(false);
});

test("no run begins beside one that makes it slower than its bound, whatever all gain (CR2)", () => {
  const runner = taught([100, 100], [1.3, 1.1]);
  const [a, b] = [computing("a", "a/train"), computing("b", "b/train")];
  expect(ask(runner, b, a, 1000)).toBe(true);
  expect(ask(runner, b, { ...a, maxSlowdown: 1.2 }, 1000)).toBe(false);
  expect(ask(runner, { ...b, maxSlowdown: 1.2 }, a, 1000)).toBe(true);
  expect(ask(runner, { ...b, maxSlowdown: 1.05 }, a, 1000)).toBe(false);
});

test("in a run's first step, whose length nobody knows, what was measured before decides as it does for every length (CR4)", () => {
  const factor = fc.double({ min: 1, max: 3, noNaN: true });
  const length = fc.integer({ min: 50, max: 400 });
  const answers = new Set<boolean>();
  fc.assert(
    fc.property(factor, factor, fc.array(length, { minLength: 4, maxLength: 4 }), (slowA, slowB, lengths) => {
      fc.pre(Math.abs(1 / slowA + 1 / slowB - 1) > 0.01);
      const { model } = taught([100, 100], [slowA, slowB]);
      const [a, b] = [computing("a", "a/train"), computing("b", "b/train")];
      const first = ask(new CoRunner({ known: model.known() }), b, a, 10);
      answers.add(first);
      for (const lengthA of lengths.slice(0, 2))
        for (const lengthB of lengths.slice(2))
          expect(ask(taught([lengthA, lengthB], [slowA, slowB]), b, { ...a, sinceMs: 1e5 }, 1e5)).toBe(first);
      expect(ask(new CoRunner({ known: model.known() }), b, { ...a, maxSlowdown: 1 }, 10)).toBe(first && slowA === 1);
      expect(ask(new CoRunner({ known: model.known(), method: "temporal" }), b, a, 10)).toBe(false);
    }),
    {
      numRuns: 60,
      examples: [
        [1.3, 1.2, [50, 400, 400, 50]],
        [3, 2, [50, 400, 400, 50]],
      ],
    },
  );
  expect(answers.size).toBe(2);
});

/** It has no step of any run, and knows works beside each other: by name, how many times as long, of the first and of the second. */
function knowing(pairs: Readonly<Record<string, readonly [number, number]>>, noise = 0) {
  const model = new SlowdownModel();
  for (const pair of Object.keys(pairs))
    for (const work of pair.split(" ")) for (let i = 0; i < 4; i++) model.add(turn(work, 100), 0.5);
  for (const [pair, factors] of Object.entries(pairs)) {
    const works = pair.split(" ");
    for (const [i, work] of works.entries())
      for (const sign of [-1, 1, -1, 1]) {
        const ms = 100 * (factors[i]! + sign * noise);
        model.add(turn(work, ms, { beside: [works[1 - i]!], passes: 100 }), 0.5);
      }
  }
  return new CoRunner({ known: model.known() });
}

test("beside several, the waiter is as slow as the one that slows it most makes it (CR4)", () => {
  const factor = fc.double({ min: 1, max: 3, noNaN: true });
  const waiter = computing("w", "w");
  const holders = ["h1", "h2"].map((name, i) => computing(name, name, { devices: [devices[i]!] }));
  const answers = new Set<boolean>();
  const four = fc.tuple(factor, factor, factor, factor);
  fc.assert(
    fc.property(four, ([byFirst, first, bySecond, second]) => {
      const mostSlowed = Math.max(byFirst, bySecond);
      const gains = Math.min(1 / mostSlowed + 1 / first, 1 / mostSlowed + 1 / second) - 1;
      fc.pre(Math.abs(gains) > 0.01);
      const runner = knowing({ "w h1": [byFirst, first], "w h2": [bySecond, second] });
      const begins = runner.sharesNow({ waiter, holders, running: holders, waiting: [] }, 10).shares;
      answers.add(begins);
      expect(begins).toBe(gains > 0);
    }),
    {
      numRuns: 60,
      // Of the first, each pair would gain alone.
      examples: [[[3, 1.2, 1.2, 3]], [[1.2, 3, 3, 1.2]], [[1.4, 1.2, 1.2, 3]]],
    },
  );
  expect(answers.size).toBe(2);
});

test("a slowdown that is not well known has to leave room for its standard error (CR4)", () => {
  const [waiter, holder] = [computing("w", "w"), computing("h", "h")];
  // 2 / 1.9 is more than 1, and 2 / (1.9 + the error of four samples that are 0.4 off) is not.
  expect(ask(knowing({ "w h": [1.9, 1.9] }), waiter, holder, 10)).toBe(true);
  expect(ask(knowing({ "w h": [1.9, 1.9] }, 0.4), waiter, holder, 10)).toBe(false);
});

test("past its time a decision is what is gained here and now (CR3)", () => {
  let ms = 0;
  const timed = taught([100, 100], [1.3, 1.1], "playout");
  const slow = new CoRunner({ method: "playout", known: timed.model.known(), nowMs: () => (ms += 20) });
  const greedy = new CoRunner({ method: "greedy", known: timed.model.known() });
  const asked = [slow, greedy].map((runner) => {
    for (const [run, work] of [
      ["a", "a/train"],
      ["b", "b/train"],
    ] as const)
      for (let step = 1; step <= 4; step++) runner.worked(run, turn(work, 100), 0.5, step * 200);
    return ask(runner, computing("b", "b/train"), computing("a", "a/train"), 900);
  });
  expect(asked[0]).toBe(asked[1]);
  expect(() => new CoRunner({ method: "serial" as never })).toThrow(/'serial'.*greedy/);
});

test("what followed a stage in the step before follows it again, and then the next step", () => {
  const stage = fc.record({ work: fc.constantFrom("rollout", "train", "score"), ms: fc.integer({ min: 50, max: 90 }) });
  const cycle = fc.array(stage, { minLength: 2, maxLength: 4 }).filter((all) => {
    // Of two equal stages in a row there would be one; which of two equal ones it is, what is before tells.
    return (
      all.every(({ work }, i) => work !== all[(i + 1) % all.length]!.work) &&
      new Set(all.map(({ work }) => work)).size === all.length
    );
  });
  fc.assert(
    fc.property(cycle, fc.nat(3), fc.nat(40), (step, at, gapMs) => {
      const trace = new RunTrace();
      let nowMs = 0;
      const now = at % step.length;
      const all = [...step, ...step, ...step, ...step.slice(0, now + 1)];
      for (const { work, ms } of all) {
        nowMs += gapMs + ms;
        trace.worked(turn(work, ms), ms, nowMs);
      }
      const next = trace.next(step[now]!.work, 1e6, 2 * step.length);
      const expected = Array.from({ length: 2 * step.length }, (_, i) => step[(now + 1 + i) % step.length]!);
      expect(next.map(({ work, aloneMs }) => [work, aloneMs.get("gpu:0")])).toEqual(
        expected.map(({ work, ms }) => [work, ms]),
      );
      for (const each of next) expect(each.gapMs).toBe(gapMs);
      for (const { work, ms } of step) expect(trace.usualMs(work, "gpu:1")).toBe(ms);
    }),
  );
});
