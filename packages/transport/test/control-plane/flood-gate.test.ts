import fc from "fast-check";
import { expect, test } from "vitest";
import { FloodGate } from "../../src/control-plane/flood-gate.ts";

const limits = { messages: 3, bytes: 100, allMessages: 8, allBytes: 300, kept: 4 };
const arrivals = fc.array(
  fc.record({ subject: fc.constantFrom("a", "b", "c", "d", "e", "f"), bytes: fc.nat(120), ends: fc.nat(9) }),
  { maxLength: 80 },
);

test("FG1, FG2: a flood passes as far as a window has room, and the newest of each subject is told in the end", () => {
  fc.assert(
    fc.property(arrivals, (all) => {
      const gate = new FloodGate<number>(limits);
      const passed: { subject: string; bytes: number }[] = [];
      let waiting: { subject: string; at: number }[] = [];
      const end = () => {
        const told = gate.ends();
        expect(told.length).toBeLessThanOrEqual(limits.kept);
        const newest = [...new Set(waiting.map(({ subject }) => subject))].slice(0, limits.kept);
        expect(told).toEqual(newest.map((name) => waiting.findLast(({ subject }) => subject === name)?.at));
        passed.length = 0;
        waiting = [];
      };
      all.forEach(({ subject, bytes, ends }, at) => {
        const own = passed.filter((each) => each.subject === subject);
        const sum = (each: typeof passed) => each.reduce((total, { bytes }) => total + bytes, 0);
        const passes = gate.arrives(subject, bytes, at);
        const hasRoom = own.length === 0 || (own.length < limits.messages && sum(own) + bytes <= limits.bytes);
        const hasRoomInAll = passed.length < limits.allMessages && sum(passed) + bytes <= limits.allBytes;
        const waits = waiting.some((each) => each.subject === subject); // nothing overtakes what was said before
        const isKept = waits && new Set(waiting.map((each) => each.subject)).size <= limits.kept;
        if (!waits || isKept) expect(passes).toBe(hasRoom && hasRoomInAll && !waits);
        if (passes) passed.push({ subject, bytes });
        else waiting.push({ subject, at });
        if (ends === 0) end();
      });
      end();
    }),
  );
});
