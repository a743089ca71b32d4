import fc from "fast-check";
import { expect, test as it } from "vitest";
import { type Segment, SegmentPool, segmentBytesFor } from "../src/memory/segment-pool.ts";
import type { SharedMemory } from "../src/memory/shared-memory.ts";

const maxBytes = 2 ** 20;

/** Memory that is only counted. */
function countedMemory() {
  const mapped = new Map<bigint, number>();
  let last = 0n;
  const memory: SharedMemory = {
    key: "counted",
    create: (_name, sizeBytes) => {
      mapped.set(++last, sizeBytes);
      return { pointer: last, sizeBytes };
    },
    open: () => {
      throw new Error("nobody opens what is only counted");
    },
    view: () => new ArrayBuffer(0),
    isUnwritten: () => true,
    unmap: ({ pointer }) => {
      expect(mapped.delete(pointer)).toBe(true);
    },
  };
  const bytes = () => [...mapped.values()].reduce((sum, each) => sum + each, 0);
  return { memory, bytes };
}

it("a segment is idle, lent or gone, its number is its own, and what does not fit is refused (SP1, SP2)", () => {
  const step = fc.record({
    kind: fc.constantFrom("take", "take", "give", "retire", "trim"),
    size: fc.integer({ min: 1, max: maxBytes }),
    at: fc.nat(20),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const { memory, bytes } = countedMemory();
      const pool = new SegmentPool(memory, `treadle-lent-once-${process.pid}-`, maxBytes);
      const lent: Segment[] = [];
      const numbers = new Map<number, Segment>();
      const gone = new Set<Segment>();
      for (const { kind, size, at } of steps) {
        const index = at % Math.max(1, lent.length);
        const segment = lent[index];
        if (kind === "take") {
          const taken = pool.take(size);
          const lentBytes = lent.reduce((sum, { mapping }) => sum + mapping.sizeBytes, 0);
          if (taken === undefined) expect(lentBytes + segmentBytesFor(size)).toBeGreaterThan(maxBytes);
          else {
            expect(taken.mapping.sizeBytes).toBeGreaterThanOrEqual(size);
            expect(lent).not.toContain(taken);
            expect(gone.has(taken)).toBe(false);
            expect(numbers.get(taken.number) ?? taken).toBe(taken);
            numbers.set(taken.number, taken);
            lent.push(taken);
          }
        } else if (kind === "trim") pool.trimIdle(size);
        else if (segment !== undefined) {
          lent.splice(index, 1);
          if (kind === "give") pool.give(segment);
          else {
            pool.retire(segment);
            gone.add(segment);
          }
        }
        expect(bytes()).toBeLessThanOrEqual(maxBytes);
      }
      pool.close();
      expect(bytes()).toBe(0);
    }),
  );
});

it("a segment of messages sent together is free when the last holder gives it back, and gone when one is lost (SP1)", () => {
  const step = fc.record({ kind: fc.constantFrom("lend", "lend", "give", "abandon"), token: fc.nat(2), at: fc.nat(9) });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const pool = new SegmentPool(countedMemory().memory, `treadle-together-${process.pid}-`, maxBytes);
      const tokens = [{}, {}, {}];
      const holds: { segment: Segment; token: number }[] = [];
      const lost = new Set<Segment>();
      for (const { kind, token, at } of steps) {
        const mine = tokens[token] as object;
        if (kind === "lend") {
          const before = holds.filter((each) => each.token === token).map(({ segment }) => segment);
          const again = pool.takeAgain(mine, 1000, () => false);
          expect(again).toBe(before[0]);
          const segment = again ?? (pool.take(1000) as Segment);
          expect(holds.some((each) => each.segment === segment && each.token !== token)).toBe(false);
          expect(lost.has(segment) && before.length === 0).toBe(false);
          if (again === undefined) pool.noteTogether(segment, mine, 1000);
          holds.push({ segment, token });
        } else if (holds.length > 0) {
          const [{ segment }] = holds.splice(at % holds.length, 1) as [(typeof holds)[0]];
          if (kind === "give") pool.give(segment);
          else {
            lost.add(segment);
            pool.abandon(segment);
          }
        }
      }
      pool.close();
    }),
  );
});
