import { readFile } from "node:fs/promises";
import fc from "fast-check";
import { expect, test } from "vitest";
import { Kernels, Scratch } from "../src/embedded/kernels.ts";

test("the kernels that engines load are what their source compiles to", async () => {
  // Its compiler declares globals of its own, which would take the place of Node's in every file here.
  const { compileKernels } = (await import(new URL("../kernels/compile.mjs", import.meta.url).href)) as {
    compileKernels: () => Promise<string>;
  };
  const loaded = await readFile(new URL("../src/embedded/kernels.generated.ts", import.meta.url), "utf8");
  expect(loaded === (await compileKernels()), "run `npm run kernels` in packages/engines").toBe(true);
});

const sizes = fc.integer({ min: 1, max: 45 });

test("a matrix product equals that in float64, straight, transposed and added", () => {
  const kernels = new Kernels();
  const [a, b, c] = [kernels.reserve(45 * 45 * 4), kernels.reserve(45 * 45 * 4), kernels.reserve(45 * 45 * 4)];
  fc.assert(
    fc.property(sizes, sizes, sizes, fc.boolean(), fc.boolean(), fc.nat(1000), (m, n, k, isTransposed, add, seed) => {
      const draw = (i: number) => Math.sin(seed + i * 1.7);
      const x = Float32Array.from({ length: m * k }, (_, i) => draw(i));
      const y = Float32Array.from({ length: k * n }, (_, i) => draw(i + 1e4));
      const before = Float32Array.from({ length: m * n }, (_, i) => draw(i + 2e4));
      kernels.floats(a, m * k).set(x);
      kernels.floats(b, k * n).set(y);
      kernels.floats(c, m * n).set(before);
      const [row, column] = isTransposed ? [1, m] : [k, 1];
      kernels.call.matmul(m, n, k, a, row, column, b, n, c, n, add ? 1 : 0);
      const result = kernels.floats(c, m * n);
      for (let i = 0; i < m; i++) {
        for (let j = 0; j < n; j++) {
          let sum = add ? before[i * n + j]! : 0;
          for (let l = 0; l < k; l++) sum += x[i * row + l * column]! * y[l * n + j]!;
          expect(Math.abs(result[i * n + j]! - sum)).toBeLessThan(1e-5 * (k + 1));
        }
      }
    }),
    { numRuns: 40 },
  );
});

test("a row of a product has the same bits, whatever rows stand beside it", () => {
  const kernels = new Kernels();
  const [a, b, c] = [kernels.reserve(45 * 45 * 4), kernels.reserve(45 * 45 * 4), kernels.reserve(45 * 45 * 4)];
  fc.assert(
    fc.property(sizes, sizes, sizes, (m, n, k) => {
      kernels.floats(a, m * k).set(Float32Array.from({ length: m * k }, (_, i) => Math.sin(i)));
      kernels.floats(b, k * n).set(Float32Array.from({ length: k * n }, (_, i) => Math.cos(i)));
      kernels.call.matmul(m, n, k, a, k, 1, b, n, c, n, 0);
      const together = kernels.floats(c, m * n).slice();
      for (let row = 0; row < m; row++)
        kernels.call.matmul(1, n, k, a + 4 * row * k, k, 1, b, n, c + 4 * row * n, n, 0);
      expect(kernels.floats(c, m * n)).toEqual(together);
    }),
    { numRuns: 40 },
  );
});

test("log-probabilities are those of float64, over hundreds of nats and for any number of tokens", () => {
  const kernels = new Kernels();
  const [x, scratch] = [kernels.reserve(400), kernels.reserve(400)];
  const logits = fc.array(fc.double({ min: -60, max: 60, noNaN: true }), { minLength: 1, maxLength: 50 });
  fc.assert(
    fc.property(logits, (given) => {
      const values = Float32Array.from(given);
      kernels.floats(x, values.length).set(values);
      kernels.call.logSoftmax(1, values.length, x, scratch);
      const most = Math.max(...values);
      const total = most + Math.log(values.reduce((sum, value) => sum + Math.exp(value - most), 0));
      kernels.floats(x, values.length).forEach((logprob, i) => {
        expect(Math.abs(logprob - (values[i]! - total))).toBeLessThan(2e-5);
      });
    }),
  );
});

test("memory grows to what is asked for, and scratch is used again", () => {
  const kernels = new Kernels();
  const scratch = new Scratch(kernels);
  scratch.begin(1_000_000, 2);
  const first = scratch.take(600_000);
  kernels.floats(scratch.take(400_000), 400_000).fill(1);
  const bytes = kernels.sizeBytes;
  for (let i = 0; i < 10; i++) {
    scratch.begin(1_000_000, 2);
    expect(scratch.take(1_000_000)).toBe(first);
  }
  expect(kernels.sizeBytes).toBe(bytes);
  expect(() => kernels.reserve(2 ** 32)).toThrow("4 GiB at most");
});
