import { TransformerEngine } from "@treadle/engines";
import fc from "fast-check";
import { expect, test } from "vitest";
import { passesOf } from "../src/embedded/passes.ts";
import { randomBatch, smallConfig, smallTransformer } from "./small-transformer.ts";

const maxTokens = 20;

test("each row is read once, up to its last entry that counts, and passes keep to the bound but for a longer row", () => {
  const rows = fc.array(fc.nat(24), { maxLength: 12 });
  fc.assert(
    fc.property(rows, (lasts) => {
      const columns = 25;
      const tokens = Int32Array.from({ length: lasts.length * columns }, (_, i) => i);
      const weights = new Float32Array(tokens.length);
      lasts.forEach((last, row) => {
        weights.fill(1, row * columns + Math.ceil(last / 2), row * columns + last + 1);
      });
      const passes = passesOf({ rows: lasts.length, columns, tokens, weights }, maxTokens);
      const read = passes.flatMap((pass) => pass.rows);
      expect(read.toSorted((a, b) => a - b)).toEqual([...lasts.keys()].filter((row) => (lasts[row] as number) > 0));
      for (const pass of passes) {
        if (pass.rows.length > 1) expect(pass.tokens.length).toBeLessThanOrEqual(maxTokens);
        expect(pass.tokens.length).toBe(pass.lengths.reduce((sum, length) => sum + length, 0));
        pass.rows.forEach((row, which) => {
          expect(pass.lengths[which]).toBe(lasts[row]);
          const start = pass.starts[which] as number;
          const expected = [...tokens.subarray(row * columns, row * columns + (lasts[row] as number))];
          expect([...pass.tokens.subarray(start, start + expected.length)]).toEqual(expected);
        });
      }
    }),
  );
});

test("without weights every token that predicts another is read", () => {
  const [pass, ...others] = passesOf({ rows: 2, columns: 3, tokens: Int32Array.of(1, 2, 3, 4, 5, 6) }, maxTokens);
  expect(others).toEqual([]);
  expect(pass).toMatchObject({ rows: [0, 1], lengths: [2, 2], starts: [0, 2], tokens: Int32Array.of(1, 2, 4, 5) });
});

const loss = {
  type: "policy-gradient",
  clipLow: 0.2,
  clipHigh: 0.3,
  klCoefficient: 0.1,
  entropyCoefficient: 0.01,
  value: { coefficient: 0.5, clip: 0.2 },
} as const;

test("sequences of any lengths in one pass have the losses and gradients that each has in a pass of its own", async () => {
  const contextLength = 40;
  const engine = await smallTransformer({ valueHead: true, contextLength });
  const drawn = fc.record({
    lengths: fc.array(fc.integer({ min: 2, max: contextLength }), { minLength: 1, maxLength: 9 }),
    ratio: fc.constantFrom("token" as const, "sequence" as const, "sequence-product" as const),
    seed: fc.nat(1000),
  });
  await fc.assert(
    fc.asyncProperty(drawn, async ({ lengths, ratio, seed }) => {
      const clear = () => engine.setGradients(new Float32Array(engine.numParameters));
      const all = randomBatch(lengths.length, contextLength, seed);
      lengths.forEach((length, row) => {
        all.weights.fill(0, row * contextLength, (row + 1) * contextLength);
        all.weights.fill(0.5, row * contextLength + 1, row * contextLength + length);
      });
      const alone = lengths.map((length, row) => {
        const cut = <T extends Int32Array | Float32Array>(array: T | undefined): T =>
          (array as T).slice(row * contextLength, row * contextLength + length) as T;
        const [oldLogprobs, refLogprobs] = [cut(all.oldLogprobs), cut(all.refLogprobs)];
        const [returns, oldValues] = [cut(all.returns), cut(all.oldValues)];
        const scores = { advantages: cut(all.advantages), oldLogprobs, refLogprobs, returns, oldValues };
        const temperatures = (all.temperatures as Float32Array).slice(row, row + 1);
        return {
          rows: 1,
          columns: length,
          tokens: cut(all.tokens),
          weights: cut(all.weights),
          temperatures,
          ...scores,
        };
      });
      clear();
      const together = await engine.forwardBackward(all, { ...loss, ratio });
      const gradient = engine.gradients();
      clear();
      const sums: Record<string, number> = {};
      for (const one of alone) {
        const metrics = await engine.forwardBackward(one, { ...loss, ratio });
        for (const [name, value] of Object.entries(metrics)) sums[name] = (sums[name] ?? 0) + value;
      }
      const expected = engine.gradients();
      for (const [name, value] of Object.entries(together)) {
        expect(Math.abs(value - (sums[name] as number)), name).toBeLessThan(1e-5 * Math.max(1, Math.abs(value)));
      }
      const largest = expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const apart = gradient.reduce((most, value, at) => Math.max(most, Math.abs(value - (expected[at] as number))), 0);
      expect(apart).toBeLessThan(1e-4 * largest);
      // Scores are the same bits.
      const [logprobs, values] = [await engine.logprobs(all), await engine.values(all)];
      for (const [row, one] of alone.entries()) {
        const own = logprobs.subarray(row * contextLength, row * contextLength + one.columns);
        expect(own).toEqual(await engine.logprobs(one));
        const ownValues = values.subarray(row * contextLength, row * contextLength + one.columns);
        expect(ownValues).toEqual(await engine.values(one));
      }
    }),
    { numRuns: 40 },
  );
  await engine.close();
});

test("a batch without rows is nothing to compute, and adds nothing", async () => {
  const engine = await smallTransformer({ valueHead: true });
  const empty = randomBatch(0, smallConfig.contextLength, 1);
  expect(await engine.forwardBackward(empty, { ...loss, ratio: "token" })).toMatchObject({ loss: 0, weight: 0 });
  expect(await engine.logprobs(empty)).toEqual(new Float32Array(0));
  expect(engine.gradients().every((value) => value === 0)).toBe(true);
  await engine.close();
});

test("an engine counts the passes that it makes, the tokens that they read, and the time that they take", async () => {
  const engine = await TransformerEngine.create({ vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 60 });
  const prompts = [Int32Array.of(1, 2, 3), Int32Array.of(4, 5)];
  await engine.generate(prompts, { maxTokens: 4, temperature: 1, stopTokens: [], seed: 1 });
  const generated = engine.takeWork();
  // Of each sequence all is read but the last token that was chosen.
  expect(generated.tokens).toBe(3 + 3 + 2 + 3);
  expect(generated.passes).toBe(4);
  expect(generated.ms).toBeGreaterThan(0);
  expect(engine.takeWork()).toEqual({ passes: 0, tokens: 0, ms: 0 });
  const tokens = Int32Array.from({ length: 12 }, (_, i) => i % 9);
  const weights = Float32Array.from(tokens, (_, i) => (i % 6 === 0 ? 0 : 1));
  const batch = { rows: 2, columns: 6, tokens, weights };
  await engine.logprobs(batch);
  expect(engine.takeWork()).toMatchObject({ passes: 1, tokens: 10 });
  await engine.forwardBackward(batch, { type: "cross-entropy" });
  expect(engine.takeWork()).toMatchObject({ passes: 1, tokens: 10 });
});
