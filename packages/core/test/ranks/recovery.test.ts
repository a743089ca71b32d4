import fc from "fast-check";
import { expect, test } from "vitest";
import { RecoveryClock, type RecoveryMark } from "../../src/ranks/recovery.ts";

const marks: readonly RecoveryMark[] = ["placed", "reached", "ready", "up"];

test("the parts of a recovery are never negative, and together last from the last sign of life until it is over", () => {
  const passing = fc.array(fc.option(fc.nat(10_000)), { minLength: 4, maxLength: 4 });
  fc.assert(
    fc.property(fc.nat(5000), fc.nat(5000), passing, (silentMs, lostMs, durations) => {
      const clock = new RecoveryClock({ heardMs: 1000, knownMs: 1000 + silentMs, lostMs });
      let nowMs = 1000 + silentMs;
      for (const [i, durationMs] of durations.entries()) {
        if (durationMs === null) continue;
        nowMs += durationMs;
        clock.mark(marks[i] as RecoveryMark, nowMs);
        clock.mark(marks[i] as RecoveryMark, nowMs + 99); // a second one changes nothing
      }
      const parts = Object.values(clock.seconds());
      expect(Math.min(...parts)).toBeGreaterThanOrEqual(0);
      expect(parts.reduce((sum, part) => sum + part, 0)).toBeCloseTo((nowMs - 1000 + lostMs) / 1000);
    }),
  );
});
