import {
  type SpanBatch,
  type SpanCategory,
  SpanCategory as SpanCategorySchema,
  UtilisationShares,
} from "@treadle/contracts";
import fc from "fast-check";
import { expect, it } from "vitest";
import { utilisation } from "../src/index.ts";

type Stretch = [category: SpanCategory, startMs: number, durationMs: number];

function batch(worker: string, ...stretches: Stretch[]): SpanBatch {
  const records = stretches.map(([category, startMs, durationMs]) => ({
    kind: "span" as const,
    name: category,
    category,
    startMs,
    durationMs,
  }));
  return { worker, pid: 1, dropped: 0, records };
}

it("shares the window out among activities and averages over ranks", () => {
  const shares = utilisation([
    batch("rollout/0", ["compute", 0, 60], ["lock-wait", 60, 40]),
    batch("rollout/1", ["compute", 0, 20], ["onload", 20, 20]),
    batch("actor/0", ["channel-wait", 0, 100]),
  ]);
  expect(shares).toEqual({
    rollout: { compute: 0.4, transfer: 0.1, lockWait: 0.2, channelWait: 0, idle: expect.closeTo(0.3) },
    actor: { compute: 0, transfer: 0, lockWait: 0, channelWait: 1, idle: 0 },
  });
});

it("counts a wait that work hides as work, and onloading inside a wait for a lock as transfer", () => {
  const shares = utilisation([
    batch("a/0", ["compute", 0, 50], ["channel-wait", 10, 60], ["lock-wait", 70, 30], ["onload", 80, 20]),
  ]);
  expect(shares.a).toEqual({
    compute: 0.5,
    channelWait: expect.closeTo(0.2),
    lockWait: expect.closeTo(0.1),
    transfer: expect.closeTo(0.2),
    idle: expect.closeTo(0),
  });
});

it("clips to the window, counts ranks without spans as idle, and has no opinion on an empty window", () => {
  const batches = [batch("a/0", ["compute", 0, 100]), batch("a/1")];
  expect(utilisation(batches, { fromMs: 90, toMs: 110 }).a).toMatchObject({ compute: 0.25, idle: 0.75 });
  expect(utilisation(batches, { fromMs: 5, toMs: 5 })).toEqual({});
  expect(utilisation([])).toEqual({});
});

it("adds up to one and agrees with counting every millisecond by hand", () => {
  const stretch = fc.tuple(fc.constantFrom(...SpanCategorySchema.options), fc.nat(40), fc.nat(20));
  fc.assert(
    fc.property(fc.array(stretch, { maxLength: 12 }), (stretches) => {
      const shares = utilisation([batch("a/0", ...stretches)], { fromMs: 10, toMs: 40 }).a!;
      expect(UtilisationShares.parse(shares)).toEqual(shares);
      const on = (ms: number, ...names: SpanCategory[]) =>
        stretches.some(([name, start, length]) => names.includes(name) && start <= ms && ms < start + length);
      const count = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0, idle: 0 };
      for (let ms = 10; ms < 40; ms++) {
        if (on(ms, "compute")) count.compute++;
        else if (on(ms, "transfer", "onload", "offload", "checkpoint")) count.transfer++;
        else if (on(ms, "lock-wait")) count.lockWait++;
        else if (on(ms, "channel-wait")) count.channelWait++;
        else count.idle++;
      }
      for (const [name, ms] of Object.entries(count))
        expect(shares[name as keyof typeof count]).toBeCloseTo(ms / 30, 9);
    }),
    { numRuns: 300 },
  );
});
