import fc from "fast-check";
import { expect, test } from "vitest";
import { verdictOn, wanted } from "./verdict.ts";

const { medianRecoverySeconds, longestPauseSeconds } = wanted;
const seconds = (limit: number) => fc.double({ min: 0, max: 3 * limit, noNaN: true });

test("on a quiet machine recoveries and pauses are judged by what is wanted, and on a busy one, or by a few, told and not judged", () => {
  fc.assert(
    fc.property(
      seconds(medianRecoverySeconds),
      seconds(longestPauseSeconds),
      fc.nat(40),
      fc.double({ min: 0, max: 4, noNaN: true }),
      fc.integer({ min: 1, max: 64 }),
      (median, pause, num, load, processors) => {
        const measured = { recovery: { num, median }, longestPauseWithRunnerSeconds: pause, processors };
        const { type, text } = verdictOn({ ...measured, loadBefore: load * processors });
        const isJudged = type !== "not judged";
        if (load < 0.49) expect(isJudged).toBe(num >= 10);
        if (load > 0.51) expect(isJudged).toBe(false);
        const isSlow = median > medianRecoverySeconds || pause > longestPauseSeconds;
        if (isJudged) expect(type).toBe(isSlow ? "exceeded" : "kept");
        expect(text).toContain(
          `${median.toFixed(1)} s, ${(median / medianRecoverySeconds).toFixed(2)} times the 3 s wanted`,
        );
        expect(text).toContain(
          `${pause.toFixed(1)} s, ${(pause / longestPauseSeconds).toFixed(2)} times the 15 s wanted`,
        );
      },
    ),
  );
});
