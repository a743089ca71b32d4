/** What agents tell in parts: lines of workers, and their beats with the stacks of those that compute. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { eventParts, maxEventBytes } from "../../src/node/event-parts.ts";

const sizeOf = (value: unknown) => Buffer.byteLength(JSON.stringify(value));
const entry = fc.record({
  worker: fc.constantFrom("rollout/0", "actor/12"),
  stack: fc
    .tuple(fc.constantFrom("x", "ä", "\u0000", "織"), fc.integer({ min: 0, max: 60_000 }))
    .map(([each, count]) => each.repeat(count)),
});

test("all that is told is told once and in order, in no more parts than are needed, none of which is too large", () => {
  fc.assert(
    fc.property(fc.array(entry, { maxLength: 40 }), (entries) => {
      const parts = [...eventParts(entries)];
      expect(parts.flat()).toEqual(entries);
      for (const [at, part] of parts.entries()) {
        expect(part.length).toBeGreaterThan(0);
        if (part.length > 1) expect(sizeOf(part)).toBeLessThanOrEqual(maxEventBytes + 1);
        const next = parts[at + 1]?.[0];
        if (next !== undefined) expect(sizeOf([...part, next])).toBeGreaterThan(maxEventBytes);
      }
    }),
  );
});
