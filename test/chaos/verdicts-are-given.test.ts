import fc from "fast-check";
import { expect, test } from "vitest";
import { Absences, type Part } from "./absences.ts";
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
      const absences = new Absences(3);
      const ends: [number, () => void][] = [];
      for (let now = 0; now < 30; now++) {
        for (const [at, end] of ends) if (at === now) end();
        for (const { takes, from, lasts } of strikes)
          if (from === now) ends.push([now + 1 + lasts, absences.begin(takes)]);
        const away = new Set(
          strikes.filter(({ from, lasts }) => from <= now && now <= from + lasts).flatMap(({ takes }) => takes),
        );
        const numOf = (kind: string) => [...away].filter((part) => part.startsWith(kind)).length;
        expect(absences.isStandstill).toBe(away.has("runner") || numOf("node") === 3 || numOf("server") === 3);
      }
    }),
  );
});
