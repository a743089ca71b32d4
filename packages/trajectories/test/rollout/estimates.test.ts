import { type Interference, interferenceFactor } from "@treadle/trajectories";
import fc from "fast-check";
import { expect, test } from "vitest";
import { busyTokens, busyUntil } from "../../src/rollout/busy-rank.ts";
import { paperEstimate, scheduledEstimate } from "../../src/rollout/groups.ts";

/** One worker, the longest first: whoever is in a place makes a token every F(b) seconds, b being in places. */
function listScheduled(lengths: readonly number[], places: number, F: Interference): number {
  const factor = interferenceFactor(F);
  const waiting = [...lengths].sort((a, b) => b - a);
  let running: number[] = [];
  let seconds = 0;
  for (;;) {
    running = [
      ...running.filter((left) => left > 1e-9),
      ...waiting.splice(0, places - running.filter((left) => left > 1e-9).length),
    ];
    if (running.length === 0) return seconds;
    const least = Math.min(...running);
    seconds += least * factor(running.length);
    running = running.map((left) => left - least);
  }
}

const places = 6;
const lengths = fc.array(fc.integer({ min: 1, max: 2000 }), { minLength: 1, maxLength: 40 });
/** heavy-tailed: most are short */
const skewed = lengths.map((drawn) => drawn.map((each) => Math.ceil(each ** 3 / 4e6)));
const affine = fc.double({ min: 0, max: 1, noNaN: true }).map((slope): Interference => ({ type: "affine", slope }));
const table = fc.array(fc.double({ min: 0, max: 0.5, noNaN: true }), { minLength: 1, maxLength: places }).map(
  (more): Interference => ({
    type: "table",
    extend: "linear",
    values: more.map((_, k) => 1 + sum(more.slice(0, k))),
  }),
);

const sum = (values: readonly number[]): number => values.reduce((total, each) => total + each, 0);
const estimateOf = (F: Interference, drawn: readonly number[]) => {
  const sorted = Float64Array.from(drawn).sort().reverse();
  const [paper, ours] = [
    paperEstimate(interferenceFactor(F), places, 0),
    scheduledEstimate(interferenceFactor(F), places, 0),
  ];
  const real = listScheduled(drawn, places, F);
  return { real, paper: paper(sorted)(0, drawn.length), ours: ours(sorted)(0, drawn.length) };
};

test("BR2: no group is above what the paper has for it, and one that has a place each is as it is played, or above that where F is not affine", () => {
  fc.assert(
    fc.property(fc.oneof(lengths, skewed), fc.oneof(affine, table), (drawn, F) => {
      const { real, paper, ours } = estimateOf(F, drawn);
      expect(ours).toBeLessThanOrEqual(paper * (1 + 1e-9));
      if (drawn.length > places) return;
      expect(ours).toBeGreaterThanOrEqual(real * (1 - 1e-9));
      if (F.type === "affine") expect(ours).toBeCloseTo(real, 6);
    }),
  );
});

test("until one of a queue is over it takes what it takes where, token by token, those that have most to come go first", () => {
  const rests = fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(rests, fc.integer({ min: 1, max: 4 }), affine, ([rest = 1, ...others], places, F) => {
      const factor = interferenceFactor(F);
      const left = [...others, rest];
      let seconds = 0;
      while (left.at(-1)! > 0) {
        // Of equals it goes last.
        const order = [...left.keys()].filter((each) => left[each]! > 0).sort((a, b) => left[b]! - left[a]! || a - b);
        const running = order.slice(0, places);
        seconds += factor(running.length);
        for (const each of running) left[each]!--;
      }
      const estimated = busyTokens(factor, places)(busyUntil(rest, others, places));
      // Tokens are whole, so of those that share places each is within one of the others.
      expect(Math.abs(estimated - seconds)).toBeLessThanOrEqual(factor(places) * (2 + others.length / places));
    }),
  );
});

test.each([
  ["affine, more than its places", affine, (size: number) => size > places],
  ["by table, more than its places", table, (size: number) => size > places],
  ["affine, a place each", affine, (size: number) => size > 1 && size <= places],
  ["by table, a place each", table, (size: number) => size > 1 && size <= places],
])("an estimate errs less than half as much as one by the longest alone (F %s)", (_, anyF, isMeant) => {
  const many = fc.tuple(
    fc.oneof(lengths, skewed).filter((drawn) => isMeant(drawn.length)),
    anyF,
  );
  const errors = fc.sample(many, { numRuns: 300, seed: Number(process.env.TREADLE_SEED) }).map(([drawn, F]) => {
    const { real, paper, ours } = estimateOf(F, drawn);
    return { paper: Math.abs(Math.log(paper / real)), ours: Math.abs(Math.log(ours / real)) };
  });
  expect(sum(errors.map(({ ours }) => ours))).toBeLessThan(0.5 * sum(errors.map(({ paper }) => paper)));
});

test("BR1: a longer group never takes less, nor does one that begins with a longer trajectory, whatever predictions err by", () => {
  const s = fc.double({ min: 0, max: 0.6, noNaN: true });
  fc.assert(
    fc.property(fc.oneof(lengths, skewed), fc.oneof(affine, table), s, (drawn, F, s) => {
      const sorted = Float64Array.from(drawn).sort().reverse();
      const tokensOf = scheduledEstimate(interferenceFactor(F), places, s)(sorted);
      for (let start = 0; start < drawn.length; start++)
        for (let size = 1; start + size <= drawn.length; size++) {
          const here = tokensOf(start, size) * (1 + 1e-12);
          if (size > 1) expect(tokensOf(start, size - 1)).toBeLessThanOrEqual(here);
          if (size > 1) expect(tokensOf(start + 1, size - 1)).toBeLessThanOrEqual(here);
        }
    }),
  );
});

test("the longest of a group is not expected to become longer than an episode may be", () => {
  const sorted = Float64Array.of(90, 80, 70);
  const tokensOf = scheduledEstimate(() => 1, places, 0.5, 100)(sorted);
  expect(tokensOf(0, 1)).toBe(90);
  expect(tokensOf(0, 3)).toBe(100);
  expect(scheduledEstimate(() => 1, places, 0.5)(sorted)(0, 3)).toBeGreaterThan(120);
});
