import fc from "fast-check";
import { expect, test } from "vitest";
import { Absences, type Part, placed } from "./absences.ts";
import { recoveriesOf } from "./chaos.ts";
import { Pauses } from "./pauses.ts";
import { verdictOn, wanted } from "./verdict.ts";

const { medianRecoverySeconds, longestRecoverySeconds } = wanted;
const seconds = (limit: number) => fc.double({ min: 0, max: 3 * limit, noNaN: true });

test("on a quiet machine recoveries and pauses are judged by what is wanted, and on a busy one, or by a few, told and not judged", () => {
  fc.assert(
    fc.property(
      seconds(medianRecoverySeconds),
      seconds(longestRecoverySeconds),
      fc.nat(40),
      fc.double({ min: 0, max: 4, noNaN: true }),
      fc.integer({ min: 1, max: 64 }),
      (median, pause, num, load, processors) => {
        const measured = {
          recovery: { num, median },
          longestRecoverySeconds: pause,
          longestPause: { seconds: 2 * pause, strikes: 4 },
          processors,
        };
        const { type, text } = verdictOn({ ...measured, loadBefore: load * processors });
        const isJudged = type !== "not judged";
        if (load < 0.49) expect(isJudged).toBe(num >= 10);
        if (load > 0.51) expect(isJudged).toBe(false);
        const isSlow = median >= medianRecoverySeconds || pause >= longestRecoverySeconds;
        if (isJudged) expect(type).toBe(isSlow ? "exceeded" : "kept");
        expect(text).toContain(
          `${median.toFixed(1)} s, ${(median / medianRecoverySeconds).toFixed(2)} times the 3 s wanted`,
        );
        expect(text).toContain(`${(2 * pause).toFixed(1)} s, in which it was struck '4' times`);
        expect(text).toContain(
          `${pause.toFixed(1)} s, ${(pause / longestRecoverySeconds).toFixed(2)} times the 15 s wanted`,
        );
      },
    ),
  );
});

test("nobody can go on without the runner, any node, or any server, for as long as any strike keeps them away", () => {
  const parts = ["runner", ...[0, 1, 2].flatMap((place) => [`node ${place}`, `server ${place}`])] as Part[];
  const strike = fc.record({ takes: fc.subarray(parts, { minLength: 1 }), from: fc.nat(20), lasts: fc.nat(8) });
  fc.assert(
    fc.property(fc.array(strike, { maxLength: 6 }), (strikes) => {
      const absences = new Absences();
      const needed: Part[][] = [["runner"], placed("node", 3), placed("server", 3)];
      const ends: [number, () => void][] = [];
      for (let now = 0; now < 30; now++) {
        for (const [at, end] of ends) if (at === now) end();
        for (const { takes, from, lasts } of strikes)
          if (from === now) ends.push([now + 1 + lasts, absences.begin(takes)]);
        const away = new Set(
          strikes.filter(({ from, lasts }) => from <= now && now <= from + lasts).flatMap(({ takes }) => takes),
        );
        const numOf = (kind: string) => [...away].filter((part) => part.startsWith(kind)).length;
        expect(absences.isStandstill(needed)).toBe(away.has("runner") || numOf("node") === 3 || numOf("server") === 3);
      }
    }),
  );
});

test("a pause counts from the step or the strike before it, less what nobody could have used, and the last one with no step behind it", () => {
  const tick = fc.record({
    ms: fc.integer({ min: 1, max: 500 }),
    isStandstill: fc.boolean(),
    isStep: fc.integer({ min: 0, max: 5 }).map((drawn) => drawn === 0),
    isStrike: fc.integer({ min: 0, max: 5 }).map((drawn) => drawn === 0),
  });
  fc.assert(
    fc.property(fc.array(tick, { minLength: 1, maxLength: 60 }), (ticks) => {
      const pauses = new Pauses(1000, 7);
      const counted = (from: number, to: number) =>
        ticks.slice(from, to).reduce((sum, { ms, isStandstill }) => sum + (isStandstill ? 0 : ms), 0);
      let [nowMs, steps, moved, struck] = [1000, 7, 0, 0];
      const longest = { ms: 0, counted: 0, sinceStruck: 0 };
      for (const [at, { ms, isStandstill, isStep, isStrike }] of ticks.entries()) {
        nowMs += ms;
        if (isStep) steps += 1 + (ms % 3);
        const pause = pauses.look({ nowMs, steps, isStandstill }, 2);
        const whole = ticks.slice(moved, at + 1).reduce((sum, each) => sum + each.ms, 0);
        const expected = {
          ms: whole,
          countedMs: counted(moved, at + 1),
          sinceStruckMs: counted(Math.max(moved, struck), at + 1),
          awayMs: whole - counted(moved, at + 1),
        };
        longest.ms = Math.max(longest.ms, expected.ms);
        longest.counted = Math.max(longest.counted, expected.countedMs);
        longest.sinceStruck = Math.max(longest.sinceStruck, expected.sinceStruckMs);
        expect(pause).toEqual(isStep ? expected : undefined);
        if (isStep) moved = at + 1;
        expect(pauses.quietMs(nowMs)).toBe(isStep ? 0 : whole);
        if (!isStrike) continue;
        pauses.strike(nowMs);
        struck = at + 1;
      }
      expect(pauses.longestMs).toBe(longest.ms);
      expect(pauses.longestCounted).toEqual({ ms: longest.counted, strikes: longest.counted === 0 ? 0 : 2 });
      expect(pauses.longestSinceStruckMs).toBe(longest.sinceStruck);
    }),
  );
});

test("recoveries are those that workers told of, their median by all parts together", () => {
  const restarted = (detection: number, start: number) => ({
    type: "worker-restarted" as const,
    recovery: { detection, placement: 0.5, start, state: 0, redone: 1 },
  });
  const events = [restarted(0.1, 1), restarted(3, 1), restarted(0.2, 2), { type: "worker-restarted" as const }];
  expect(recoveriesOf(events as unknown as Parameters<typeof recoveriesOf>[0])).toEqual({
    num: 3,
    median: 3.7,
    p90: 5.5,
    longest: 5.5,
    medianParts: { detection: 0.2, placement: 0.5, start: 1, state: 0, redone: 1 },
    longestParts: { detection: 3, placement: 0.5, start: 1, state: 0, redone: 1 },
    medianOfSilent: 5.5,
    medianOfEnded: 3.15,
  });
});
