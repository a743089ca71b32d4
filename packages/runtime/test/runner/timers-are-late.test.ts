import fc from "fast-check";
import { expect, test, vi } from "vitest";
import { TimerLateness } from "../../src/runner/run/timer-lateness.ts";

const stretches = fc.array(fc.record({ late: fc.array(fc.nat(30), { maxLength: 8 }), isForgotten: fc.boolean() }), {
  maxLength: 6,
});

test("lateness is the mean of what was seen between resume and pause, without the stretches that are forgotten", () => {
  fc.assert(
    fc.property(stretches, (all) => {
      vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
      let nowMs = 0;
      const clock = vi.spyOn(performance, "now").mockImplementation(() => nowMs);
      try {
        const lateness = new TimerLateness();
        for (const { late, isForgotten } of all) {
          lateness.resume();
          for (const lateMs of late) {
            nowMs += 10 + lateMs;
            vi.advanceTimersByTime(10);
          }
          lateness.pause();
          nowMs += 1000;
          vi.advanceTimersByTime(1000);
          if (isForgotten) lateness.forget();
        }
        const counted = all.flatMap(({ late, isForgotten }) => (isForgotten ? [] : late));
        const mean = counted.reduce((sum, each) => sum + each, 0) / Math.max(1, counted.length);
        expect(lateness.meanMs).toBeCloseTo(mean, 9);
      } finally {
        clock.mockRestore();
        vi.useRealTimers();
      }
    }),
  );
});
