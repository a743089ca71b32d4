import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { fifo, leastLoaded, priority } from "../../src/channel/pick-policy.ts";
import { RandomChannel } from "./random-channel.ts";

const steps = fc.array(fc.record({ op: fc.nat(99), a: fc.nat(1000), b: fc.nat(1000), c: fc.nat(1000) }), {
  minLength: 5,
  maxLength: 70,
});

const scenario = fc.record({
  producers: fc.integer({ min: 2, max: 4 }),
  consumers: fc.integer({ min: 1, max: 4 }),
  transformers: fc.integer({ min: 0, max: 2 }),
  numKeys: fc.constantFrom(0, 2, 5),
  channel: fc.record({
    name: fc.constant("episodes"),
    capacity: fc.record({
      items: fc.integer({ min: 1, max: 12 }),
      bytes: fc.option(fc.integer({ min: 1, max: 40 }), { nil: undefined }),
    }),
    policy: fc.constantFrom(fifo, priority, leastLoaded),
  }),
});

describe("a channel under arbitrary interleavings of puts, takes, acknowledgements, deaths and retries", () => {
  test("delivers, orders, bounds and ends as C1 to C6 promise, and never loses a wake-up", () => {
    fc.assert(
      fc.property(scenario, steps, (options, script) => {
        const run = new RandomChannel(options);
        for (const step of script) run.step(step);
      }),
      { numRuns: 3000 },
    );
  });

  test("acknowledges everything exactly once and ends, when every call does its part (C1, C3, C4, C6)", () => {
    fc.assert(
      fc.property(scenario, steps, (options, script) => {
        const run = new RandomChannel({ ...options, consumers: options.consumers + 2 });
        for (const step of script) if (step.op < 96) run.step(step);
        run.drain();
        expect(run.items.every((item) => item.state === "acked" || item.state === "dropped")).toBe(true);
        expect(run.channel.snapshot()).toMatchObject({ usedItems: 0, usedBytes: 0, streams: [] });
        // C6: an acknowledged input has one output that was acknowledged, however often its transformer died.
        for (const input of run.items) {
          const outputs = run.items.filter((item) => item.inputs.includes(input.id) && item.state === "acked");
          expect(outputs.length).toBeLessThanOrEqual(1);
        }
      }),
      { numRuns: 1500 },
    );
  });
});
