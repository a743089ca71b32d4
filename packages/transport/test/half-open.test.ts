import fc from "fast-check";
import { expect, test } from "vitest";
import { HalfOpen, sourceOf } from "../src/link/half-open.ts";

const limits = { maxTotal: 6, maxPerSource: 4, maxSeen: 50 };

const events = fc.array(
  fc.oneof(
    fc.record({ type: fc.constant("admit" as const), source: fc.constantFrom("a", "b", "c", "d", "e") }),
    fc.record({ type: fc.constant("vouched" as const), which: fc.nat(30), nonce: fc.constantFrom("n", "o", "p", "q") }),
    fc.record({ type: fc.constantFrom("refused" as const, "settle" as const), which: fc.nat(30) }),
  ),
  { maxLength: 80 },
);

const standings = ["refused", "silent", "vouched"];

test("HO1, HO2, HO3: bounds hold, the newest is let in, and who gives way is of the fullest source the oldest that has shown least", () => {
  fc.assert(
    fc.property(events, (drawn) => {
      const halfOpen = new HalfOpen<number>(limits);
      let waiting: { id: number; source: string; standing: string }[] = [];
      const seen = new Set<string>();
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
            const inTurn = standings.flatMap((each) => mates.filter(({ standing }) => standing === each));
            expect(gone).toBe(inTurn[0]);
          }
          waiting = waiting.filter((each) => each !== gone);
          waiting.push({ id, source: event.source, standing: "silent" });
          expect(waiting.length).toBeLessThanOrEqual(limits.maxTotal);
          expect(of(event.source).length).toBeLessThanOrEqual(limits.maxPerSource);
        } else if (event.type === "vouched") {
          halfOpen.vouched(event.which, event.nonce);
          const each = waiting.find(({ id }) => id === event.which);
          if (each === undefined || seen.has(event.nonce)) continue;
          each.standing = "vouched";
          seen.add(event.nonce);
        } else if (event.type === "refused") {
          halfOpen.refused(event.which);
          for (const each of waiting) if (each.id === event.which) each.standing = "refused";
        } else {
          halfOpen.settle(event.which);
          waiting = waiting.filter(({ id }) => id !== event.which);
        }
        expect(halfOpen.size).toBe(waiting.length);
      }
    }),
  );
});

test("HO2, HO3: one with a hello of its own keeps its place, however many say nothing, or again what was heard", () => {
  const flood = fc.record({ source: fc.constantFrom("flood", "honest", "other"), replays: fc.boolean() });
  fc.assert(
    fc.property(fc.array(flood, { maxLength: 300 }), (floods) => {
      const halfOpen = new HalfOpen<string>(limits);
      halfOpen.admit("worker", "honest");
      halfOpen.vouched("worker", "heard");
      for (const [i, { source, replays }] of floods.entries()) {
        expect(halfOpen.admit(`stranger ${i}`, source)).not.toBe("worker");
        if (replays) halfOpen.vouched(`stranger ${i}`, "heard");
      }
    }),
  );
});

test("HO3: of the hellos that were seen the newest are remembered", () => {
  const halfOpen = new HalfOpen<number>({ maxTotal: 2, maxPerSource: 2, maxSeen: 2 });
  const outranks = (nonce: string): boolean => {
    halfOpen.admit(1, "a");
    halfOpen.vouched(1, nonce);
    halfOpen.admit(2, "a");
    const evicted = halfOpen.admit(3, "a");
    for (const each of [1, 2, 3]) halfOpen.settle(each);
    return evicted === 2;
  };
  expect(["a", "b", "a", "c", "b", "a"].map(outranks)).toEqual([true, true, false, true, false, true]);
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
