import fc from "fast-check";
import { expect, test } from "vitest";
import { isLaidOutAs, stayingRanks } from "../../src/cluster/laid-out.ts";

const device = fc.constantFrom("a/cpu:0", "a/cpu:1", "b/cpu:0", "b/cpu:1");
const places = fc.array(fc.array(device, { minLength: 1, maxLength: 2 }), { maxLength: 5 });
const ranksOf = (devices: readonly string[][]) => devices.map((each, index) => ({ index, devices: each }));
const planOf = (devices: readonly string[][]) =>
  devices.map((each) => ({ node: each[0]?.split("/")[0] as string, devices: each }));

test("a rank goes on exactly where the plan gives it the devices that it has", () => {
  fc.assert(
    fc.property(places, places, (before, after) => {
      const staying = stayingRanks(ranksOf(before), planOf(after), { resizes: true, restart: "rank" });
      const expected = before.flatMap((each, index) => (each.join() === after[index]?.join() ? [index] : []));
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
