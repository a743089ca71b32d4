import fc from "fast-check";
import { expect, test } from "vitest";
import { EventQueue } from "../src/event-queue.ts";

test("events happen by time, and at one time in the order in which they were asked for", () => {
  const batches = fc.array(fc.array(fc.nat(5), { maxLength: 8 }), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(batches, (delays) => {
      const queue = new EventQueue();
      const expected: { timeMs: number; order: number }[] = [];
      const happened: { timeMs: number; order: number }[] = [];
      let order = 0;
      // Each batch is asked for while the first event of the one before happens.
      const ask = (at: number): void => {
        for (const [i, delay] of (delays[at] ?? []).entries()) {
          const event = { timeMs: queue.nowMs + delay, order: order++ };
          expected.push(event);
          queue.after(delay, () => {
            happened.push({ timeMs: queue.nowMs, order: event.order });
            if (i === 0) ask(at + 1);
          });
        }
      };
      ask(0);
      while (queue.runNext());
      expect(happened).toEqual(expected.toSorted((a, b) => a.timeMs - b.timeMs || a.order - b.order));
    }),
  );
});

test("time never goes back", () => {
  const queue = new EventQueue();
  queue.at(5, () => {});
  queue.runNext();
  expect(() => queue.at(4, () => {})).toThrow("an event at '4' ms was asked for at 5 ms");
  expect(() => queue.at(Number.NaN, () => {})).toThrow("'NaN'");
});
