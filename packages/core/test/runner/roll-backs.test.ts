import fc from "fast-check";
import { expect, test } from "vitest";
import { RollBacks } from "../../src/index.ts";

const limits = { maxRestarts: 3, restartWindowMs: 600_000 };
const crash = { nodeLost: false, hasCommitted: false };

test("RB1: a run that gets nowhere ends with the crash after those that are allowed, within the window", () => {
  const rollBacks = new RollBacks(limits);
  expect([0, 1, 2, 3].map((atMs) => rollBacks.next(crash, atMs))).toEqual([true, true, true, false]);
  const slow = new RollBacks(limits);
  const minutes = Array.from({ length: 20 }, (_, i) => i * 200_001);
  expect(minutes.map((atMs) => slow.next(crash, atMs))).not.toContain(false);
});

test("RB1: however many nodes are lost, and however many crashes have steps between them, the run goes on", () => {
  const harmless = fc.oneof(
    fc.record({ nodeLost: fc.constant(true), hasCommitted: fc.boolean() }),
    fc.record({ nodeLost: fc.boolean(), hasCommitted: fc.constant(true) }),
  );
  fc.assert(
    fc.property(fc.array(harmless, { maxLength: 50 }), (deaths) => {
      const rollBacks = new RollBacks(limits);
      expect(deaths.map((death, atMs) => rollBacks.next(death, atMs))).not.toContain(false);
    }),
  );
});

test("RB1: neither losses nor what was forgiven use up what crashes are allowed", () => {
  const rollBacks = new RollBacks(limits);
  for (let i = 0; i < 3; i++) rollBacks.next(crash, 0);
  expect(rollBacks.next({ nodeLost: true, hasCommitted: false }, 1)).toBe(true);
  expect(rollBacks.next({ nodeLost: false, hasCommitted: true }, 2)).toBe(true); // the first that counts now
  expect([3, 4, 5].map((atMs) => rollBacks.next(crash, atMs))).toEqual([true, true, false]);
});
