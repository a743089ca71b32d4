import { type Interference, interferenceFactor } from "@treadle/trajectories";
import fc from "fast-check";
import { expect, test } from "vitest";
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

test("a group that has no more than its places is as the paper has it, and a larger one is never above that", () => {
  fc.assert(
    fc.property(fc.oneof(lengths, skewed), fc.oneof(affine, table), (drawn, F) => {
      const { paper, ours } = estimateOf(F, drawn);
      if (drawn.length <= places) expect(ours).toBe(paper);
      else expect(ours).toBeLessThanOrEqual(paper * (1 + 1e-9));
    }),
  );
});

test.each([
  ["affine", affine],
  ["by table", table],
])("of groups that outnumber their places, an estimate errs less than one by the longest alone (F %s)", (_, anyF) => {
  const many = fc.tuple(
    fc.oneof(lengths, skewed).filter((drawn) => drawn.length > places),
    anyF,
  );
  const errors = fc.sample(many, { numRuns: 300, seed: Number(process.env.TREADLE_SEED) }).map(([drawn, F]) => {
    const { real, paper, ours } = estimateOf(F, drawn);
    return { paper: Math.abs(Math.log(paper / real)), ours: Math.abs(Math.log(ours / real)) };
  });
  expect(sum(errors.map(({ ours }) => ours))).toBeLessThan(0.5 * sum(errors.map(({ paper }) => paper)));
});

test("a longer group never takes less, nor does one that begins with a longer trajectory, whatever predictions err by", () => {
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
