import fc from "fast-check";
import { expect, test } from "vitest";
import { HalfOpen, sourceOf } from "../src/link/half-open.ts";

const limits = { maxTotal: 6, maxPerSource: 4 };

const events = fc.array(
  fc.oneof(
    fc.record({ type: fc.constant("admit" as const), source: fc.constantFrom("a", "b", "c", "d", "e") }),
    fc.record({ type: fc.constantFrom("spoke" as const, "settle" as const), which: fc.nat(30) }),
  ),
  { maxLength: 80 },
);

test("HO1, HO2: bounds hold, the newest is let in, and who gives way is the oldest silent one of the fullest source", () => {
  fc.assert(
    fc.property(events, (drawn) => {
      const halfOpen = new HalfOpen<number>(limits);
      let waiting: { id: number; source: string; hasSpoken: boolean }[] = [];
      let next = 0;
      const of = (source: string) => waiting.filter((each) => each.source === source);
      for (const event of drawn) {
        if (event.type === "admit") {
          const id = next++;
          const evicted = halfOpen.admit(id, event.source);
          const gone = waiting.find((each) => each.id === evicted);
          if (of(event.source).length < limits.maxPerSource && waiting.length < limits.maxTotal) {
            expect(evicted).toBeUndefined();
          } else {
            if (gone === undefined) throw new Error("nobody gave way");
            const mates = of(gone.source);
            if (of(event.source).length >= limits.maxPerSource) expect(gone.source).toBe(event.source);
            else expect(mates.length).toBe(Math.max(...waiting.map(({ source }) => of(source).length)));
            expect(gone).toBe(mates.find(({ hasSpoken }) => !hasSpoken) ?? mates[0]);
          }
          waiting = waiting.filter((each) => each !== gone);
          waiting.push({ id, source: event.source, hasSpoken: false });
          expect(waiting.length).toBeLessThanOrEqual(limits.maxTotal);
          expect(of(event.source).length).toBeLessThanOrEqual(limits.maxPerSource);
        } else if (event.type === "spoke") {
          halfOpen.spoke(event.which);
          for (const each of waiting) if (each.id === event.which) each.hasSpoken = true;
        } else {
          halfOpen.settle(event.which);
          waiting = waiting.filter(({ id }) => id !== event.which);
        }
        expect(halfOpen.size).toBe(waiting.length);
      }
    }),
  );
});

test("HO2: however many say nothing, one that speaks keeps its place until its own source is full of such", () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom("flood", "honest", "other"), { maxLength: 300 }), (flood) => {
      const halfOpen = new HalfOpen<string>(limits);
      halfOpen.admit("worker", "honest");
      halfOpen.spoke("worker");
      for (const [i, source] of flood.entries()) expect(halfOpen.admit(`idle ${i}`, source)).not.toBe("worker");
    }),
  );
});

test.each([
  [undefined, "this machine"],
  ["10.1.2.3", "10.1.2.3"],
  ["::ffff:10.1.2.3", "10.1.2.3"],
  ["2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"],
  ["2001:db8:1:2::9", "2001:db8:1:2::/64"],
  ["2001:db8::9", "2001:db8:0:0::/64"],
  ["fe80::1%eth0", "fe80:0:0:0::/64"],
  ["::1", "0:0:0:0::/64"],
])("%s counts as %s", (address, source) => {
  expect(sourceOf(address)).toBe(source);
});
