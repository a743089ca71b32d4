import { isDeepStrictEqual } from "node:util";
import fc from "fast-check";
import { expect, test } from "vitest";
import { isLaidOutAs, stayingRanks } from "../../src/ranks/laid-out.ts";
import { RankTable } from "../../src/ranks/rank-table.ts";

const device = fc.constantFrom("a/cpu:0", "a/cpu:1", "b/cpu:0", "b/cpu:1");
const placed = fc
  .array(device, { minLength: 1, maxLength: 2 })
  .map((devices) => ({ node: devices[0]?.split("/")[0] as string, devices }));
const without = fc.constantFrom("a", "b").map((node) => ({ node, devices: [] }));
const places = fc.array(fc.oneof(placed, without), { maxLength: 5 });
type Places = readonly { node: string; devices: string[] }[];
const ranksOf = (all: Places) => all.map((place, index) => ({ index, place }));
const planOf = (all: Places) => [...all];

const keptOf = (place: Places[number] | undefined) => (place?.devices.length === 0 ? place.node : place?.devices);

test("a rank goes on exactly where the plan gives it the devices that it has, or without any, its node", () => {
  fc.assert(
    fc.property(places, places, (before, after) => {
      const staying = stayingRanks(ranksOf(before), planOf(after), { resizes: true, restart: "rank" });
      const expected = before.flatMap((each, index) =>
        isDeepStrictEqual(keptOf(each), keptOf(after[index])) ? [index] : [],
      );
      expect(staying.map(({ index }) => index)).toEqual(expected);
      if (isLaidOutAs(ranksOf(before), planOf(after))) expect(staying).toHaveLength(before.length);
    }),
  );
});

test("no rank goes on whose class does not say so, or that holds one state with others", () => {
  fc.assert(
    fc.property(places, fc.boolean(), (all, resizes) => {
      const restart = resizes ? "group" : "rank";
      expect(stayingRanks(ranksOf(all), planOf(all), { resizes, restart })).toEqual([]);
    }),
  );
});

test("RT2: a name never gets an incarnation again, however often it restarts and plans end it and bring it back", () => {
  const plan = fc.record({ size: fc.nat(3), deaths: fc.array(fc.nat(3), { maxLength: 4 }), stays: fc.boolean() });
  fc.assert(
    fc.property(fc.array(plan, { maxLength: 8 }), (plans) => {
      const table = new RankTable({ rejoinMs: 0, placeWaitMs: 0 });
      const traits = { component: "a", restart: "rank", resizes: true, replays: [] } as const;
      table.addComponent(traits);
      const last = new Map<string, number>();
      for (const { size, deaths, stays } of plans) {
        const staying = new Set(stays ? table.of("a").slice(0, size) : []);
        // The process of a rank that leaves has ended by then.
        for (const rank of table.of("a")) if (!staying.has(rank)) rank.incarnation++;
        const places = Array.from({ length: size }, () => ({ node: "n", devices: ["n/cpu:0"] }));
        for (const { worker, incarnation } of table.layOut("a", places, staying)) {
          expect(incarnation).toBeGreaterThan(last.get(worker) ?? -1);
          last.set(worker, incarnation);
        }
        for (const index of deaths) {
          const rank = table.of("a")[index];
          if (rank !== undefined) last.set(rank.worker, ++rank.incarnation);
        }
      }
    }),
  );
});
