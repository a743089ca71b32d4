import fc from "fast-check";
import { expect, test } from "vitest";
import { neverDecreases } from "../../src/interference.ts";
import { MeasuredInterference } from "../../src/live/measured-interference.ts";

type Turn = { readonly atSeconds: number; readonly tokens: number };
type Running = { readonly mark: Float64Array; readonly tokens: number; left: number };

/** A step of a rank whose token takes `alone + more · company` seconds, and whose places are taken as turns come. */
function playStep(
  measured: MeasuredInterference,
  turns: readonly Turn[],
  { alone, more, places }: { readonly alone: number; readonly more: number; readonly places: number },
) {
  const coming = [...turns].sort((a, b) => a.atSeconds - b.atSeconds);
  const waiting: Running[] = [];
  let running: Running[] = [];
  let now = 0;
  const company = () => measured.changed(now, running.length + waiting.length);
  company();
  while (coming.length + waiting.length + running.length > 0) {
    const rate = 1 / (alone + more * running.length);
    const endsIn =
      running.length === 0 ? Number.POSITIVE_INFINITY : Math.min(...running.map(({ left }) => left)) / rate;
    const comesIn = (coming[0]?.atSeconds ?? Number.POSITIVE_INFINITY) - now;
    const seconds = Math.min(endsIn, comesIn);
    now += seconds;
    for (const one of running) one.left -= rate * seconds;
    company();
    const ended = running.filter(({ left }) => left <= 1e-6);
    running = running.filter(({ left }) => left > 1e-6);
    for (const { mark, tokens } of ended) measured.turnEnded(mark, tokens);
    if (comesIn <= endsIn) {
      const { tokens } = coming.shift() as Turn;
      waiting.push({ mark: measured.mark(), tokens, left: tokens });
    }
    running.push(...waiting.splice(0, places - running.length));
    company();
  }
  measured.stepEnded();
}

const slopeOf = (measured: MeasuredInterference) => {
  const { factor } = measured;
  return factor?.type === "affine" ? factor.slope : undefined;
};

test("MI1, MI3: comes to what the engine takes, whatever the mixture of company and whether any wait", () => {
  const costs = fc.record({
    alone: fc.double({ min: 0.2, max: 2, noNaN: true }),
    more: fc.double({ min: 0, max: 1, noNaN: true }),
    places: fc.integer({ min: 4, max: 24 }),
    spreadSeconds: fc.integer({ min: 0, max: 4000 }),
  });
  const turn = fc.record({
    atSeconds: fc.double({ min: 0, max: 1, noNaN: true }),
    tokens: fc.integer({ min: 5, max: 120 }),
  });
  fc.assert(
    fc.property(costs, fc.array(turn, { minLength: 30, maxLength: 80 }), ({ spreadSeconds, ...cost }, turns) => {
      const measured = new MeasuredInterference(cost.places);
      const spread = turns.map(({ atSeconds, tokens }) => ({ atSeconds: atSeconds * spreadSeconds, tokens }));
      for (let step = 0; step < 12; step++) playStep(measured, spread, cost);
      const slope = slopeOf(measured);
      if (slope === undefined) return;
      expect(neverDecreases({ type: "affine", slope })).toBe(true);
      const factorAt = (of: number) => 1 + of * (cost.places - 1);
      const truth = factorAt(cost.more / (cost.alone + cost.more));
      expect(factorAt(slope)).toBeGreaterThan(0.7 * truth);
      expect(factorAt(slope)).toBeLessThan(1.4 * truth);
    }),
    { numRuns: 60 },
  );
});

test("MI2: says nothing of a few tokens, nor of company that is always the same", () => {
  const measured = new MeasuredInterference(4);
  expect(measured.factor).toBeUndefined();
  const alike = Array.from({ length: 100 }, (_, index) => ({ atSeconds: 100 * index, tokens: 50 }));
  playStep(measured, alike.slice(0, 5), { alone: 1, more: 0.5, places: 4 });
  expect(measured.factor).toBeUndefined();
  playStep(measured, alike, { alone: 1, more: 0.5, places: 4 });
  expect(measured.factor, "each was alone").toBeUndefined();
});

test("forgets: an engine that becomes another is measured again", () => {
  const measured = new MeasuredInterference(8);
  const turns = Array.from({ length: 60 }, (_, index) => ({ atSeconds: 40 * index, tokens: 10 + index }));
  for (let step = 0; step < 10; step++) playStep(measured, turns, { alone: 1, more: 0, places: 8 });
  expect(slopeOf(measured)).toBeLessThan(0.05);
  for (let step = 0; step < 12; step++) playStep(measured, turns, { alone: 1, more: 0.5, places: 8 });
  expect(slopeOf(measured)).toBeGreaterThan(0.2);
});
