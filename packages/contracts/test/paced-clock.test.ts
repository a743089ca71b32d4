import fc from "fast-check";
import { expect, test } from "vitest";
import { PacedClock } from "../src/index.ts";
import { ManualClock } from "../src/testing/index.ts";

test("what is to happen happens after that much work, whatever the paces in between (PC1)", async () => {
  const stretches = fc.array(
    fc.record({ ms: fc.integer({ min: 1, max: 50 }), pace: fc.constantFrom(0.5, 1, 1.3, 2, 4) }),
    { minLength: 1, maxLength: 12 },
  );
  await fc.assert(
    fc.asyncProperty(stretches, fc.array(fc.integer({ min: 0, max: 200 }), { maxLength: 4 }), async (paces, delays) => {
      const below = new ManualClock();
      const clock = new PacedClock(below);
      const startMs = below.now();
      const begun = clock.now();
      const rang: number[] = [];
      for (const delay of delays) clock.after(delay, () => rang.push(delay));
      clock.after(1, () => rang.push(-1))();
      // The work that is done by then, added up millisecond by millisecond.
      let work = 0;
      for (const { ms, pace } of paces) {
        clock.pace = pace;
        for (let i = 0; i < ms; i++) {
          await below.advance(1);
          work += 1 / pace;
          expect(clock.now() - begun).toBeCloseTo(work, 6);
          const due = delays.filter((delay) => delay <= work + 1e-6).length;
          const early = delays.filter((delay) => delay <= work - 1e-6).length;
          expect(rang.length).toBeGreaterThanOrEqual(early);
          expect(rang.length).toBeLessThanOrEqual(due);
        }
      }
      expect(below.now()).toBeGreaterThan(startMs);
      expect(rang.includes(-1)).toBe(false);
    }),
    { numRuns: 40 },
  );
});
