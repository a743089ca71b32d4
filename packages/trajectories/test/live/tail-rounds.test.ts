import fc from "fast-check";
import { expect, test } from "vitest";
import { begunFor } from "../../src/live/tail-race.ts";
import { tailRound } from "../../src/live/tail-rounds.ts";

test("TQ1, TQ2, TQ3: whoever loses, every prompt is drawn once, trained once or waits, and few wait", () => {
  let numLateSteps = 0;
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 12 }),
      fc.constantFrom(1, 1.25, 1.5, 2, 3),
      fc.integer({ min: 0, max: 3 }),
      fc.array(fc.nat(1000), { minLength: 1, maxLength: 60 }),
      (numWanted, prompts, staleness, choices) => {
        const numBegun = begunFor(numWanted, prompts);
        let late: string[] = [];
        /** of steps that overlap: what lost is known only so many steps later */
        const pending: string[][] = [];
        const [drawn, trained]: [string[], string[]] = [[], []];
        numLateSteps = 0;
        for (const [index, choice] of choices.entries()) {
          if (pending.length > staleness) late.push(...(pending.shift() as string[]));
          const step = index + 1;
          const round = tailRound({ step, numWanted, numLate: late.length, numLateSteps }, { prompts });
          if (round.type === "late") {
            numLateSteps++;
            expect(late.length).toBeGreaterThanOrEqual(numWanted);
            trained.push(...late.slice(0, round.count));
            late = late.slice(round.count);
            pending.push([]);
          } else {
            expect(late.length).toBeLessThan(numWanted);
            const batch = Array.from({ length: round.count }, (_, at) => `${round.round}.${at}`);
            drawn.push(...batch);
            // Any of them may lose, as many as are too many.
            const from = choice % (numBegun - numWanted + 1);
            const lost = batch.filter((_, at) => (at + choice) % numBegun < from);
            trained.push(...batch.filter((id) => !lost.includes(id)));
            pending.push(lost);
          }
          expect(late.length).toBeLessThan(numWanted + (staleness + 1) * (numBegun - numWanted) + 1);
        }
        const waiting = [...late, ...pending.flat()];
        expect([...trained, ...waiting].sort()).toEqual([...drawn].sort());
        const numRounds = choices.length - numLateSteps;
        const all = Array.from({ length: numRounds }, (_, at) =>
          Array.from({ length: numBegun }, (_none, item) => `${at + 1}.${item}`),
        );
        expect(drawn).toEqual(all.flat());
      },
    ),
  );
});
