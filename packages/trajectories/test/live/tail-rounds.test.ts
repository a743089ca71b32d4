import fc from "fast-check";
import { expect, test } from "vitest";
import { begunFor, wantedOf } from "../../src/live/tail-race.ts";
import { tailRound } from "../../src/live/tail-rounds.ts";

test("TQ1, TQ2: whoever loses, every prompt is drawn once, trained once or waits, and few wait", () => {
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
          const round = tailRound(
            { step, numWanted, numLate: late.length, numLateSteps },
            { prompts, lateJoin: false },
          );
          if (!round.fresh) {
            numLateSteps++;
            expect(late.length).toBeGreaterThanOrEqual(numWanted);
            expect(round.numLate).toBe(numWanted);
            trained.push(...late.slice(0, round.numLate));
            late = late.slice(round.numLate);
            pending.push([]);
          } else {
            expect(late.length).toBeLessThan(numWanted);
            expect(round.numLate).toBe(0);
            const { fresh } = round;
            const batch = Array.from({ length: fresh.count }, (_, at) => `${fresh.round}.${at}`);
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

test("TQ1, TQ3: where late prompts join new ones, each is played in the next step, and as many are trained as are wanted", () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 12 }),
      fc.constantFrom(1, 1.25, 1.5, 2, 3),
      fc.array(fc.nat(1000), { minLength: 1, maxLength: 30 }),
      (numWanted, prompts, choices) => {
        let late: string[] = [];
        const trained: string[] = [];
        for (const [index, choice] of choices.entries()) {
          const given = { step: index + 1, numWanted, numLate: late.length, numLateSteps: Math.max(0, index - 1) };
          const { numLate, fresh } = tailRound(given, { prompts, lateJoin: true });
          expect(fresh).toEqual({ round: index + 1, count: numWanted });
          expect(numLate).toBe(late.length);
          const numKept = wantedOf(numWanted, prompts);
          const batch = Array.from({ length: numWanted }, (_, at) => `${index + 1}.${at}`);
          const lost = batch.filter((_, at) => (at + choice) % numWanted >= numKept);
          if (index > 0) expect(late.length + numKept).toBe(numWanted);
          trained.push(...late, ...batch.filter((id) => !lost.includes(id)));
          late = lost;
        }
        expect(new Set(trained).size).toBe(trained.length);
        expect(trained.length + late.length).toBe(choices.length * numWanted);
      },
    ),
  );
});
