import fc from "fast-check";
import type { Interference } from "../src/index.ts";

/** Every kind of interference factor that never decreases. */
export const interference: fc.Arbitrary<Interference> = fc.oneof(
  fc.record({ type: fc.constant("affine" as const), slope: fc.double({ min: 0, max: 2, noNaN: true }) }),
  fc.record({
    type: fc.constant("power" as const),
    slope: fc.double({ min: 0, max: 2, noNaN: true }),
    exponent: fc.constantFrom(0.5, 1, 1.7),
  }),
  fc.record({
    type: fc.constant("roofline" as const),
    knee: fc.integer({ min: 1, max: 5 }),
    low: fc.double({ min: 0, max: 0.2, noNaN: true }),
    high: fc.double({ min: 0, max: 2, noNaN: true }),
  }),
  fc.record({
    type: fc.constant("table" as const),
    values: fc
      .array(fc.double({ min: 0.1, max: 5, noNaN: true }), { minLength: 1, maxLength: 4 })
      .map((v) => v.sort((a, b) => a - b)),
    extend: fc.constantFrom("linear" as const, "clamp" as const, "none" as const),
  }),
  fc.record({ type: fc.constant("affine" as const), slope: fc.constant(0.1), max: fc.integer({ min: 1, max: 3 }) }),
);
