/** What is measured of works beside each other, against plain sums over all samples, and against devices with known costs. */
import type { WorkSample } from "@treadle/contracts";
import { KnownSlowdowns } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  leastSamples,
  memoryLevels,
  mostTries,
  mostTriesOfKnown,
  SlowdownModel,
} from "../../src/live/slowdown-model.ts";

const sample = (work: string, beside: readonly string[], rest: Partial<WorkSample>): WorkSample => ({
  ...{ work, beside: [...beside], devices: ["gpu:0"] },
  ...{ passes: 1, tokens: 0, ms: 1, cpuMs: 0, queuedMs: 0, forMs: 1, ends: true, ...rest },
});
const size = fc.record({ passes: fc.integer({ min: 1, max: 500 }), tokens: fc.integer({ min: 0, max: 50_000 }) });
const cost = fc.record({
  pass: fc.double({ min: 0.5, max: 20, noNaN: true }),
  token: fc.double({ min: 0, max: 0.1, noNaN: true }),
});

test("on a device with costs by pass and token, alone and beside others, slowdowns come out as they are (SM1)", () => {
  fc.assert(
    fc.property(
      cost,
      fc.array(size, { minLength: leastSamples, maxLength: 20 }),
      fc.array(size, { minLength: leastSamples, maxLength: 20 }),
      fc.double({ min: 1, max: 4, noNaN: true }),
      ({ pass, token }, alone, paired, factor) => {
        // Passes and tokens that grow together do not tell their costs apart, nor is that needed for more of the same.
        fc.pre(new Set(alone.map(({ passes, tokens }) => tokens / passes)).size > 1);
        const model = new SlowdownModel();
        const takes = ({ passes, tokens }: { passes: number; tokens: number }) => pass * passes + token * tokens;
        for (const each of paired) expect(model.add(sample("a", ["b"], { ...each, ms: takes(each) }), 0.4)).toBe(false);
        for (const each of alone) expect(model.add(sample("a", [], { ...each, ms: takes(each) }), 0.4)).toBe(true);
        for (const each of paired) model.add(sample("a", ["b"], { ...each, ms: factor * takes(each) }), 0.4);
        const found = model.slowdown("a", "b", 0.4)!;
        expect(found.factor).toBeCloseTo(factor, 3);
        expect(found.error).toBeLessThan(0.02 * factor);
        expect(model.slowdown("b", "a", 0.4)).toBeUndefined();
      },
    ),
    { numRuns: 200 },
  );
});

test("a mean ratio weighs samples by what was expected of them, and newer ones more; its error is theirs", () => {
  const noise = fc.array(fc.double({ min: 0.7, max: 1.4, noNaN: true }), { minLength: leastSamples, maxLength: 40 });
  fc.assert(
    fc.property(noise, fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 40, maxLength: 40 }), (ratios, sizes) => {
      const model = new SlowdownModel();
      for (let i = 0; i < leastSamples; i++) model.add(sample("a", [], { passes: 10, ms: 20 }), 1);
      const counted = ratios.map((ratio, i) => ({ ratio, passes: sizes[i]! }));
      for (const { ratio, passes } of counted) model.add(sample("a", ["b"], { passes, ms: 2 * passes * ratio }), 1);
      const weights = counted.map(({ passes }, i) => 2 * passes * 0.98 ** (counted.length - 1 - i));
      const sum = weights.reduce((a, b) => a + b);
      const mean = counted.reduce((all, { ratio }, i) => all + ratio * weights[i]!, 0) / sum;
      const variance = counted.reduce((all, { ratio }, i) => all + (ratio - mean) ** 2 * weights[i]!, 0) / sum;
      const count = counted.reduce((all, _, i) => all + 0.98 ** i, 0);
      const found = model.slowdown("a", "b", 1)!;
      expect(found.factor).toBeCloseTo(mean, 6);
      expect(found.error).toBeCloseTo(Math.sqrt(variance / Math.max(1, count - 1)), 5);
    }),
  );
});

test("between levels of memory an estimate is between what was measured; further than one level off it is not known (SM3)", () => {
  const measured = fc.subarray([...memoryLevels], { minLength: 1 });
  const factors = fc.array(fc.double({ min: 1, max: 3, noNaN: true }), { minLength: 5, maxLength: 5 });
  fc.assert(
    fc.property(measured, factors, (levels, drawn) => {
      const model = new SlowdownModel();
      for (const level of levels) for (let i = 0; i < leastSamples; i++) model.add(sample("a", [], { ms: 10 }), level);
      for (const level of levels)
        for (let i = 0; i < leastSamples; i++)
          model.add(sample("a", ["b"], { ms: 10 * drawn[memoryLevels.indexOf(level)]! }), level);
      for (const [at, level] of memoryLevels.entries()) {
        const here = levels.map((each) => memoryLevels.indexOf(each));
        const [below, above] = [here.filter((each) => each <= at).pop(), here.find((each) => each >= at)];
        const found = model.slowdown("a", "b", level);
        const near = [below, above].flatMap((each) => (each === undefined ? [] : [each]));
        if (near.length < 2 && Math.abs(near[0]! - at) > 1) {
          expect(found).toBeUndefined();
          continue;
        }
        const known = near.map((each) => drawn[each]!);
        expect(found!.factor).toBeGreaterThanOrEqual(Math.min(...known) - 1e-6);
        expect(found!.factor).toBeLessThanOrEqual(Math.max(...known) + 1e-6);
        if (levels.includes(level)) expect(found!.factor).toBeCloseTo(drawn[at]!, 6);
        else expect(found!.error).toBeGreaterThanOrEqual(0);
      }
    }),
  );
});

test("contended samples count for nothing; on processors, what works beside each other take is their slowdown (SM2)", () => {
  const model = new SlowdownModel();
  const queued = { ms: 10, queuedMs: 2 };
  expect(model.add(sample("a", [], queued), 1)).toBe(false);
  for (let i = 0; i < leastSamples; i++) expect(model.add(sample("a", [], { ms: 10 }), 1)).toBe(true);
  expect(model.add(sample("a", ["b"], queued), 1)).toBe(false);
  const onProcessors = { ...queued, devices: ["cpu:0"] };
  expect(model.add(sample("a", ["b"], onProcessors), 1), "it computes elsewhere").toBe(false);
  expect(model.add(sample("a", ["b"], { ...onProcessors, cpuMs: 8 }), 1)).toBe(true);
  expect(model.add(sample("a", ["b"], { ...queued, cpuMs: 8 }), 1), "its device is no processor").toBe(false);
  expect(model.add(sample("a", [], onProcessors), 1)).toBe(false);
});

test("a pair is tried so many times at most, whether its samples count or not", () => {
  const model = new SlowdownModel();
  expect(model.mayTry("a", "b", 1)).toBe(false);
  for (let i = 0; i < leastSamples; i++) model.add(sample("a", [], { ms: 10 }), 1);
  for (let i = 0; i < mostTries; i++) {
    expect(model.mayTry("a", "b", 1)).toBe(true);
    model.add(sample("a", ["b"], { ms: 10, queuedMs: 10 }), 1);
  }
  expect(model.mayTry("a", "b", 1)).toBe(false);
  expect(model.slowdown("a", "b", 1)).toBeUndefined();
});

test("what meets in the company of others alone is bounded by the worst of them, once half of its tries are over (SM4)", () => {
  fc.assert(
    fc.property(
      fc.double({ min: 1, max: 3, noNaN: true }),
      fc.double({ min: 1, max: 3, noNaN: true }),
      fc.nat(leastSamples),
      (besideB, besideC, numPure) => {
        const model = new SlowdownModel();
        for (let i = 0; i < leastSamples; i++) model.add(sample("a", [], { ms: 10 }), 1);
        for (let i = 0; i < numPure; i++) model.add(sample("a", ["b"], { ms: 10 * besideB }), 1);
        const both = () => model.add(sample("a", ["b", "c"], { ms: 10 * Math.max(besideB, besideC) }), 1);
        for (let i = numPure; i < mostTries / 2; i++) expect(both()).toBe(false);
        for (let i = 0; i < mostTries / 2; i++) both();
        expect(model.slowdown("a", "c", 1)?.factor).toBeCloseTo(Math.max(besideB, besideC));
        // What was measured by itself is not made worse by that.
        if (numPure === leastSamples) expect(model.slowdown("a", "b", 1)?.factor).toBeCloseTo(besideB);
      },
    ),
  );
});

test("a pair that is known is tried on, since the other way round may not be, and not for ever", () => {
  const model = new SlowdownModel();
  for (let i = 0; i < leastSamples; i++) model.add(sample("a", [], { ms: 10 }), 1);
  for (let i = 0; i < mostTriesOfKnown; i++) {
    expect(model.mayTry("a", "b", 1), `after ${i} tries`).toBe(true);
    model.add(sample("a", ["b"], { ms: 11 }), 1);
  }
  expect(model.mayTry("a", "b", 1)).toBe(false);
});

test("what is kept is all that is known", () => {
  const model = new SlowdownModel();
  for (let i = 0; i < 9; i++)
    for (const beside of [[], ["b"]]) model.add(sample("a", beside, { passes: i + 1, tokens: i * i, ms: 7 + i }), 0.5);
  const kept = KnownSlowdowns.parse(JSON.parse(JSON.stringify(model.known())));
  const again = new SlowdownModel(kept);
  expect(again.known()).toEqual(model.known());
  expect(again.slowdown("a", "b", 0.5)).toEqual(model.slowdown("a", "b", 0.5));
});
