import fc from "fast-check";
import { expect, test } from "vitest";
import { type Look, NodeInquiry } from "../../src/membership/node-inquiry.ts";

const silentLooks = 5;
const looks = fc.array(
  fc.record({
    heard: fc.constantFrom<Look["heard"]>("answer", "nobody", "nobody", "nothing", "nothing", "nothing"),
    couldHear: fc.boolean(),
    afterMs: fc.nat(500),
    askedAgoMs: fc.nat(800),
  }),
  { maxLength: 40 },
);

test("MB4: an agent is there as soon as it says anything, hangs by an unbroken row of looks that could have told, and has gone once nobody has served it for long enough", () => {
  fc.assert(
    fc.property(looks, (all) => {
      const inquiry = new NodeInquiry(silentLooks);
      const counted: Look[] = [];
      let nowMs = 0;
      for (const { heard, couldHear, afterMs, askedAgoMs } of all) {
        nowMs += afterMs;
        const look: Look = heard === "nobody" ? { heard, askedMs: nowMs - askedAgoMs, nowMs } : { heard };
        const verdict = inquiry.looked(look, couldHear);
        if (couldHear || heard === "answer") counted.push(look);
        const lastOther = counted.findLastIndex((each) => each.heard !== heard);
        const row = counted.slice(lastOther + 1);
        const sinceMs = row.flatMap((each) => (each.heard === "nobody" ? [each.askedMs] : []))[0] ?? nowMs;
        const expected = {
          answer: "there",
          nothing: couldHear && row.length >= silentLooks ? "hangs" : "look again",
          nobody: couldHear && nowMs - sinceMs >= 700 ? "gone" : "look again",
        }[heard];
        expect(verdict).toBe(expected);
        if (verdict !== "look again") return;
      }
    }),
  );
});
